"""Softmax attention: causal with rotary positions and a cache that grows with the text, over whole documents, or cross."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator

from kernels.errors import ConfigError
from kernels.layout import Layout
from kernels.rotary import rotate
from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig, Mode
from models.state import State

GROWTH = 32  # spare cache columns that a step adds at a time [tokens]
SLICE = 1024  # tokens of extend that read the cache at a time: a mask holds slice x cache numbers


class Config(MixerConfig):
    """Multi-head attention (JRT's baseline: 16 heads, rotary_fraction 0.5, no biases; CAB's: biases, no rotary)."""

    kind: Literal["attention"] = "attention"
    heads: int = Field(4, ge=1, description="H; must divide the width")
    kv_heads: int | None = Field(None, ge=1, description="Heads of k and v, each read by heads / kv_heads queries in turn "
                                                         "(GQA, arXiv 2305.13245); must divide heads. None = heads")
    rotary_fraction: float = Field(1.0, ge=0, le=1, description="Share of each head that turns; 0 = no positions, the "
                                                                "default of mode cross")
    rotary_base: float = Field(10_000.0, gt=1, description="Base of the rotary wavelengths (released: 10000)")
    bias: bool = Field(False, description="Biases of all projections (LAVO's and CAB's baseline: yes)")
    mode: Mode = Field(
        "causal", description="Reads the document so far, the whole document, or a context")

    @model_validator(mode="before")
    @classmethod
    def _no_positions_across(cls, given: Any) -> Any:
        """Two sequences share no positions: cross turns nothing unless rotary_fraction is given."""
        if isinstance(given, dict) and given.get("mode") == "cross":
            return {"rotary_fraction": 0.0, **given}
        return given

    @model_validator(mode="after")
    def _shares_heads(self) -> Config:
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads {self.kv_heads} must divide heads {self.heads}; change one of them")
        return self

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "rotary": cls(heads=2),
            "partly_rotary": cls(heads=4, rotary_fraction=0.5),
            "no_positions": cls(heads=1, rotary_fraction=0),
            "grouped": cls(heads=4, kv_heads=2, bias=True),
            "one_kv_head": cls(heads=4, kv_heads=1, rotary_fraction=0.5),
            "non_causal": cls(heads=2, mode="non_causal"),
            "non_causal_grouped": cls(heads=4, kv_heads=2, rotary_fraction=0, bias=True, mode="non_causal"),
            "cross": cls(heads=2, bias=True, mode="cross"),
            "cross_grouped": cls(heads=4, kv_heads=1, rotary_fraction=1, mode="cross"),
        }


def head_width(kind: str, width: int, heads: int) -> int:
    """Width of one head. Raises ConfigError unless the heads divide the width."""
    if width % heads:
        raise ConfigError(f"{kind}: width {width} is not a multiple of heads {heads}; change one of them")
    return width // heads


class Attention(Mixer):
    """Wqkv (rows: q, k, v), rotary positions, softmax, out_proj; Wq and Wkv instead where k and v are a context's."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        self.rotary_width = int(self.head_width * config.rotary_fraction) // 2 * 2
        self.kv_heads = config.kv_heads or config.heads
        self.kv_width = self.kv_heads * self.head_width
        if config.mode == "cross":
            self.Wq, self.Wkv = Linear(width, width, bias=config.bias), Linear(width, 2 * self.kv_width, bias=config.bias)
        else:
            self.Wqkv = Linear(width, width + 2 * self.kv_width, bias=config.bias)
        self.out_proj = Linear(width, width, bias=config.bias)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities(causal=config.mode == "causal", non_causal=config.mode == "non_causal",
                         cross=config.mode == "cross", streaming=config.mode == "causal", growth="linear")

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = project_rotated(self, x_BLD, layout)
        if self.config.mode == "non_causal":
            visible = layout.real_BL[:, None, None, :] if layout.padded else None
            return self._attended(q, k, v, attn_mask=visible), None
        if state is None or layout.offset_B is None:
            y = self._attended(q, k, v, is_causal=True)
            if state is not None:
                state = state.advanced(layout.lengths_B, k=_cached(k, layout), v=_cached(v, layout))
        else:
            width = _total(layout, state)
            k, v = (_appended(state[name], new, width, layout, state.count_B) for name, new in (("k", k), ("v", v)))
            column, position_BL = torch.arange(width, device=x_BLD.device), layout.position_BL
            y = torch.cat([self._attended(part, k, v, attn_mask=column <= place[:, None, :, None])
                           for part, place in zip(q.split(SLICE, 1), position_BL.split(SLICE, 1))], 1)
            state = state.advanced(layout.lengths_B, k=k, v=v)
        return y, state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v = project_rotated(self, x_BD[:, None], layout)
        width = _total(layout, state)
        cache = {name: _written(state[name], new, width, state.count_B) for name, new in (("k", k), ("v", v))}
        visible = torch.arange(width, device=x_BD.device) <= state.count_B[:, None, None, None]
        y = self._attended(q, *(cache[name][:, :width] for name in ("k", "v")), attn_mask=visible)
        return y[:, 0], state.advanced(layout.lengths_B, **cache)

    def encode_context(self, context_BND: torch.Tensor, layout: Layout) -> State:
        """k (turned, if anything turns) and v of the context, zeros behind each row's last token."""
        k, v = self.Wkv(context_BND).unflatten(-1, (2, self.kv_heads, self.head_width)).unbind(2)
        return self._empty(len(context_BND), context_BND.dtype, context_BND.device).advanced(
            layout.lengths_B, k=_cached(rotated(self, k, layout), layout), v=_cached(v, layout))

    def read_context(self, x_BLD: torch.Tensor, layout: Layout, memory: State) -> torch.Tensor:
        q = rotated(self, self.Wq(x_BLD).unflatten(-1, (self.config.heads, -1)), layout)
        k, v = memory["k"], memory["v"]
        visible = torch.arange(k.shape[1], device=x_BLD.device) < memory.count_B[:, None, None, None]
        return self._attended(q, k, v, attn_mask=visible)

    def _attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **mask: Any) -> torch.Tensor:
        """out_proj of softmax attention of (B, ·, H, K); a row that may see nothing gives out_proj of 0."""
        grouped = {"enable_gqa": True} if self.kv_heads != self.config.heads else {}
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), **mask, **grouped)
        return self.out_proj(y.transpose(1, 2).flatten(2))

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        return self._empty(B, dtype, device)

    def _empty(self, B: int, dtype: torch.dtype, device: Any) -> State:
        return self.new_state(B, dtype, device, **{
            name: torch.zeros(B, 0, self.kv_heads, self.head_width, dtype=dtype, device=device) for name in ("k", "v")})

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """mode cross: `length` targets read `length` tokens; its next token is a target. non_causal has no state."""
        own, context, pair = 4 * self.width**2, 4 * self.width * self.kv_width, 4 * self.width
        pairs = length * (length + 1) // 2 if self.config.mode == "causal" else length * length
        step = {"causal": own + context + (length + 1) * pair,
                "non_causal": own + context + (2 * length + 1) * pair,
                "cross": own + length * pair}[self.config.mode]
        kept = 0 if self.config.mode == "non_causal" else 2 * length * self.kv_width * dtype.itemsize + 8
        return Cost(parameters=self.parameter_count(), flops=length * (own + context) + pairs * pair, step_flops=step,
                    state_bytes=kept)


def project_rotated(mixer: Mixer, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, ...]:
    """q (B, L, H, K), k and v of a mixer with Wqkv, heads and rotary settings; q and k turned by their positions.

    k and v have the heads that Wqkv has rows for.
    """
    heads = mixer.config.heads
    qkv = mixer.Wqkv(x_BLD).unflatten(-1, (-1, mixer.head_width))
    shared = (qkv.shape[2] - heads) // 2
    if mixer.rotary_width == 0:
        return qkv.split((heads, shared, shared), dim=2)
    qk, v = qkv.split((heads + shared, shared), dim=2)
    return *rotated(mixer, qk, layout).split((heads, shared), dim=2), v


def rotated(mixer: Mixer, x_BLHK: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The first rotary_width channels of each head turned by the token's position in its document."""
    if mixer.rotary_width == 0:
        return x_BLHK
    wide = mixer.sum_dtype(x_BLHK.dtype)
    cos, sin = layout.rope(mixer.rotary_width, mixer.config.rotary_base, wide)
    return rotate(x_BLHK.to(wide), cos[:, :, None], sin[:, :, None]).to(x_BLHK.dtype)


def _total(layout: Layout, state: State) -> int:
    """Tokens of the longest row after this call: read from the device once for all layers of a model."""
    return layout.cached("tokens after", lambda: int((state.count_B + layout.lengths_B).max()))


def _cached(x_BLHK: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The first tokens of each row as a cache: no column more than the longest row has, zeros at pads (a bias acts there)."""
    if layout.padded:
        x_BLHK = torch.where(layout.real_BL[:, :, None, None], x_BLHK, 0)
    return x_BLHK[:, : layout.longest].clone(memory_format=torch.contiguous_format)


def _appended(
    cache_BWHK: torch.Tensor, new_BLHK: torch.Tensor, width: int, layout: Layout, count_B: torch.Tensor,
) -> torch.Tensor:
    """A cache of `width` columns: row b's new real tokens follow its first count_b columns, zeros follow them."""
    W, L = cache_BWHK.shape[1], new_BLHK.shape[1]
    column = torch.arange(width, device=count_B.device).expand(len(count_B), width)
    source = torch.where(column < count_B[:, None], column, W + column - count_B[:, None]).clamp(max=W + L - 1)
    filled = column < (count_B + layout.lengths_B)[:, None]
    both = torch.cat((cache_BWHK, new_BLHK), 1)
    taken = both.gather(1, source[:, :, None, None].expand(-1, -1, *both.shape[2:]))
    return torch.where(filled[:, :, None, None], taken, 0)


def _written(cache_BWHK: torch.Tensor, new_B1HK: torch.Tensor, width: int, count_B: torch.Tensor) -> torch.Tensor:
    """The cache with one more token at column count_b of each row; in place when gradients are off and it fits."""
    if cache_BWHK.shape[1] < width:
        spare = cache_BWHK.new_zeros(len(count_B), width - cache_BWHK.shape[1] + GROWTH, *cache_BWHK.shape[2:])
        cache_BWHK = torch.cat((cache_BWHK, spare), 1)
    where, new_BHK = (torch.arange(len(count_B), device=count_B.device), count_B), new_B1HK[:, 0].to(cache_BWHK.dtype)
    if torch.is_grad_enabled():
        return cache_BWHK.index_put(where, new_BHK)
    return cache_BWHK.index_put_(where, new_BHK)
