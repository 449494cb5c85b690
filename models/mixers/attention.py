"""Causal softmax attention with rotary positions and a cache that grows with the text: the Transformer's mixer."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from kernels.errors import ConfigError
from kernels.layout import Layout
from kernels.rotary import rotate
from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.state import State

GROWTH = 32  # spare cache columns that a step adds at a time [tokens]


class Config(MixerConfig):
    """Multi-head attention without biases (JRT's baseline: 16 heads, rotary_fraction 0.5)."""

    kind: Literal["attention"] = "attention"
    heads: int = Field(4, ge=1, description="H; must divide the width")
    rotary_fraction: float = Field(1.0, ge=0, le=1, description="Share of each head that turns; 0 = no positions")
    rotary_base: float = Field(10_000.0, gt=1, description="Base of the rotary wavelengths (released: 10000)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "rotary": cls(heads=2),
            "partly_rotary": cls(heads=4, rotary_fraction=0.5),
            "no_positions": cls(heads=1, rotary_fraction=0),
        }


def head_width(kind: str, width: int, heads: int) -> int:
    """Width of one head. Raises ConfigError unless the heads divide the width."""
    if width % heads:
        raise ConfigError(f"{kind}: width {width} is not a multiple of heads {heads}; change one of them")
    return width // heads


class Attention(Mixer):
    """Wqkv, rotary positions, softmax over all earlier tokens, out_proj."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        self.rotary_width = int(self.head_width * config.rotary_fraction) // 2 * 2
        self.Wqkv = Linear(width, 3 * width, bias=False)
        self.out_proj = Linear(width, width, bias=False)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities(growth="linear")

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = project_rotated(self, x_BLD, layout)
        if state is None or layout.offset_B is None:
            y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
            if state is not None:
                state = state.advanced(layout.lengths_B, k=_owned(k, layout.longest), v=_owned(v, layout.longest))
        else:
            width = _total(layout, state)
            k, v = (_appended(state[name], new, width, layout, state.count_B) for name, new in (("k", k), ("v", v)))
            visible = torch.arange(width, device=x_BLD.device) <= layout.position_BL[:, None, :, None]
            y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=visible)
            state = state.advanced(layout.lengths_B, k=k, v=v)
        return self.out_proj(y.transpose(1, 2).flatten(2)), state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v = project_rotated(self, x_BD[:, None], layout)
        width = _total(layout, state)
        cache = {name: _written(state[name], new, width, state.count_B) for name, new in (("k", k), ("v", v))}
        visible = torch.arange(width, device=x_BD.device) <= state.count_B[:, None, None, None]
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), *(cache[name][:, :width].transpose(1, 2) for name in ("k", "v")), attn_mask=visible)
        return self.out_proj(y.flatten(1)), state.advanced(layout.lengths_B, **cache)

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        empty = {name: torch.zeros(B, 0, self.config.heads, self.head_width, dtype=dtype, device=device)
                 for name in ("k", "v")}
        return self.new_state(B, dtype, device, **empty)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        projections, pair = 8 * self.width**2, 4 * self.width
        return Cost(
            parameters=self.parameter_count(),
            flops=length * projections + length * (length + 1) // 2 * pair,
            step_flops=projections + (length + 1) * pair,
            state_bytes=2 * length * self.width * dtype.itemsize + 8)


def project_rotated(mixer: Mixer, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, ...]:
    """q, k, v (B, L, H, K) of a mixer with Wqkv, heads and rotary settings; q and k turned by their positions."""
    B, L, _ = x_BLD.shape
    qkv = mixer.Wqkv(x_BLD).view(B, L, 3, mixer.config.heads, mixer.head_width)
    if mixer.rotary_width == 0:
        return qkv.unbind(2)
    qk, v = qkv.split((2, 1), dim=2)
    wide = mixer.sum_dtype(qk.dtype)
    cos, sin = layout.rope(mixer.rotary_width, mixer.config.rotary_base, wide)
    q, k = rotate(qk.to(wide), cos[:, :, None, None], sin[:, :, None, None]).to(qk.dtype).unbind(2)
    return q, k, v.squeeze(2)


def _total(layout: Layout, state: State) -> int:
    """Tokens of the longest row after this call: read from the device once for all layers of a model."""
    return layout.cached("tokens after", lambda: int((state.count_B + layout.lengths_B).max()))


def _owned(x_BLHK: torch.Tensor, longest: int) -> torch.Tensor:
    return x_BLHK[:, :longest].clone(memory_format=torch.contiguous_format)


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
