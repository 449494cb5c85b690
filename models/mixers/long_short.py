"""Long-short attention (Transformer-LS, Zhu et al. 2021): nearby keys and low-rank summaries of what is far.

Causal: each chunk of tokens is projected onto `rank` weighted means, weights normalised inside the chunk; one softmax runs
over the window and all summaries of chunks strictly before the reader's. The summaries make the state grow. Both ways: the
means are of the whole document, and a block of the window's length reads itself and tokens on both sides.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from kernels.errors import ConfigError
from kernels.layout import Layout
from kernels.rotary import rotate
from kernels.summary_window import Places, Rule, reach
from kernels.summary_window.near import far_pairs, near_pairs
from kernels.taylor.features import without_autocast
from models.closed_chunks import SummaryMixer, Tokens
from models.initialise import Linear
from models.mixer import Cost, MixerConfig
from models.modes import mode_field


class Config(MixerConfig):
    """Defaults: NVIDIA's language models (enwik8: window 512, chunk 16, rank 1). CAB: window 256, chunk 32.

    lucidrains: local overlap (both ways: extension = window, summaries_of raw), positions rotary, norm head, weights_from
    key, share_kv; its reader at a chunk's last token reads that chunk too, ours no chunk of its own. Not taken from NVIDIA's
    and CAB's code: `mem_len` zero tokens before every document, which nothing masks.
    """

    kind: Literal["long_short"] = "long_short"
    mode: Literal["causal", "non_causal"] = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    window: int = Field(512, ge=1, description="Near keys of a token, itself included, or the length of a block [tokens]")
    chunk: int = Field(16, ge=1, description="causal: tokens summarised together (CAB 32, NVIDIA and lucidrains 16)")
    rank: int = Field(1, ge=1, description="Summaries a chunk (published language models: 1); non_causal: of the whole "
                                           "document (CAB 16, LRA 32 and 128)")
    extension: int | None = Field(None, ge=0, description="non_causal: near tokens on each side of a block of `window`; None "
                                                          "= half of it (NVIDIA, CAB); lucidrains: the window [tokens]")
    summaries_of: Literal["normed", "raw"] = Field(
        "normed", description="non_causal: k and v after the norm of near ones (NVIDIA, CAB), or before it (lucidrains)")
    local: Literal["sliding", "blocks", "overlap"] = Field(
        "sliding", description="causal: near keys are the last `window` (NVIDIA, CAB); those of the token's block of "
                               "`window`; or of its block and the block before (lucidrains). Blocks must hold whole chunks")
    positions: Literal["relative", "rotary", "none"] = Field(
        "relative", description="Transformer-XL's relative encoding, of tokens and of chunks (NVIDIA, CAB); rotated q and k, "
                                "chunks without any (lucidrains); none")
    rotary_base: float = Field(10_000.0, gt=1, description="Base of the rotary wavelengths")
    norm: Literal["model", "head", "none"] = Field(
        "model", description="Two LayerNorms, one for near k and v, one for summaries (DualLN), over the width (NVIDIA, CAB) "
                             "or over a head (lucidrains)")
    weights_from: Literal["input", "key"] = Field(
        "input", description="Logits of the projection: a linear map of x with a bias (NVIDIA, CAB), or of the head's key "
                             "after rotation, shared by the heads (lucidrains)")
    share_kv: bool = Field(False, description="One projection for keys and values, rotation included (lucidrains)")
    bias: bool = Field(False, description="Of the projections q, k, v and out (NVIDIA, CAB: none)")

    @model_validator(mode="after")
    def _has_positions(self) -> Config:
        if self.mode == "non_causal" and self.positions == "relative":
            raise ConfigError("long_short: positions 'relative' are encoded backwards alone, so mode='non_causal' needs "
                              "positions='rotary' (lucidrains) or 'none' (NVIDIA, CAB)")
        return self

    @property
    def rule(self) -> Rule:
        return Rule(self.window, self.chunk, self.rank, self.local)

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "relative": cls(heads=2, window=5, chunk=4),
            "rank": cls(heads=2, window=3, chunk=3, rank=2, bias=True),
            "rotary": cls(heads=2, window=6, chunk=3, local="overlap", positions="rotary", norm="head", weights_from="key",
                          share_kv=True),
            "blocks": cls(heads=4, window=4, chunk=2, rank=2, local="blocks", positions="none", norm="none"),
            "both_ways": cls(mode="non_causal", heads=2, window=4, rank=3, positions="none", bias=True),
            "both_ways_rotary": cls(mode="non_causal", heads=2, window=3, rank=2, extension=3, positions="rotary", norm="head",
                                    weights_from="key", summaries_of="raw", share_kv=True),
        }


class LongShort(SummaryMixer):
    """proj_q, proj_k, proj_v, projection weights per chunk, one softmax, out_proj.

    State: the last reach - 1 k and v before normalisation, projection logits of the open chunk, and normalised summaries.
    """

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        H = config.heads
        self.rotary_width = self.head_width // 2 * 2 if config.positions == "rotary" else 0
        self.proj_q, self.proj_k, self.out_proj = (Linear(width, width, bias=config.bias) for _ in range(3))
        self.proj_v = None if config.share_kv else Linear(width, width, bias=config.bias)
        self.weights_proj = (Linear(width, H * config.rank) if config.weights_from == "input" else
                             Linear(self.head_width, config.rank, bias=False))
        size = {"model": width, "head": self.head_width, "none": 0}[config.norm]
        self.norm_near, self.norm_far = (nn.LayerNorm(size) if size else None for _ in range(2))
        if config.positions == "relative":
            self.place_near, self.place_far = Linear(width, width, bias=False), Linear(width, width)
            self.content_bias, self.place_bias = (nn.Parameter(torch.zeros(width)) for _ in range(2))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them; norms 1 and 0, the two position biases 0 (as published)."""
        super().reset_parameters(generator)
        for norm in (self.norm_near, self.norm_far):
            if norm is not None:
                norm.reset_parameters()
        if self.config.positions == "relative":
            nn.init.zeros_(self.content_bias)
            nn.init.zeros_(self.place_bias)

    def project(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, Tokens]:
        q, k = (self.heads(projection(x_BLD)) for projection in (self.proj_q, self.proj_k))
        if self.rotary_width:
            wide = self.sum_dtype(x_BLD.dtype)
            cos, sin = (t[:, :, None] for t in layout.rope(self.rotary_width, self.config.rotary_base, wide))
            q, k = (rotate(t.to(wide), cos, sin).to(t.dtype) for t in (q, k))
        v = k if self.proj_v is None else self.heads(self.proj_v(x_BLD))
        logits = self.heads(self.weights_proj(x_BLD)) if self.config.weights_from == "input" else self.weights_proj(k)
        return q, {"k": k, "v": v, "logits": logits}

    def _normed(self, norm: nn.LayerNorm | None, x: torch.Tensor) -> torch.Tensor:
        """x (..., H, K) through a LayerNorm over the width or over a head."""
        if norm is None:
            return x
        return norm(x) if self.config.norm == "head" else self.heads(norm(x.flatten(-2)))

    def near(self, x_BNHK: torch.Tensor) -> torch.Tensor:
        return self._normed(self.norm_near, x_BNHK)

    def summarise(self, chunks: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Means under weights normalised inside the chunk, then the summaries' norm; sums in float32 or wider."""
        dtype = chunks["k"].dtype
        with without_autocast(chunks["k"].device):
            chunks = {name: tokens.to(self.sum_dtype(dtype)) for name, tokens in chunks.items()}
            weights = chunks["logits"].softmax(2)
            k, v = (torch.einsum("bgchr,bgchk->bgrhk", weights, chunks[name]).flatten(1, 2).to(dtype) for name in ("k", "v"))
        return self._normed(self.norm_far, k), self._normed(self.norm_far, v)

    def summarise_all(self, q: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Means under weights normalised over the document, then the summaries' norm."""
        weights_BHRN = tokens["logits"].softmax(2).mT
        names = ("near_k", "near_v") if self.config.summaries_of == "normed" else ("k", "v")
        return tuple(self._far((weights_BHRN @ tokens[name]).transpose(1, 2)).transpose(1, 2) for name in names)

    def _far(self, x_BRHK: torch.Tensor) -> torch.Tensor:
        norm = self.norm_far
        return x_BRHK if norm is None else self._normed(norm, x_BRHK.to(norm.weight.dtype)).to(x_BRHK.dtype)

    def places(self, k_BNHK: torch.Tensor, S: int) -> Places | None:
        """Transformer-XL's terms: q·r_near, the place bias · r_near, the content bias · k, and q·r_far of the slots back."""
        if self.config.positions != "relative":
            return None
        O = min(reach(self.rule), k_BNHK.shape[1])
        near_OHK, far_SHK = (self.heads(place(waves(size, self.width, k_BNHK))) for place, size in (
            (self.place_near, O), (self.place_far, S)))
        table_HO = torch.einsum("hk,ohk->ho", self.heads(self.place_bias), near_OHK)
        key_BNH = torch.einsum("hk,bnhk->bnh", self.heads(self.content_bias), k_BNHK)
        return Places(near_OHK, table_HO, far_SHK, key_BNH)

    def step_places(self, q_BHK, k_BNHK, S: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The same for one token, the matrices applied to the query, since it is one and the offsets are many."""
        if self.config.positions != "relative":
            return None, None
        wide, H = self.sum_dtype(q_BHK.dtype), self.config.heads
        with without_autocast(q_BHK.device):
            q, k = (t.to(wide) for t in (q_BHK * self.head_width**-0.5, k_BNHK))
            near, far = (place.weight.to(wide).unflatten(0, (H, -1)) for place in (self.place_near, self.place_far))
            content, place = (self.heads(bias.to(wide)) for bias in (self.content_bias, self.place_bias))
            turned = torch.einsum("bhk,hkd->bhd", q + place, near)
            near_BHO = turned @ waves(k.shape[1], self.width, k).T
            near_BHO = near_BHO + torch.einsum("hk,bnhk->bhn", content, k).flip(-1)
            far_BHS = torch.einsum("bhk,hkd->bhd", q, far) @ waves(S, self.width, k).T
            far_BHS = far_BHS + (q * self.heads(self.place_far.bias.to(wide))).sum(-1, keepdim=True)
        return near_BHO, far_BHS

    def others(self) -> dict[str, int]:
        return {"logits": self.config.rank}

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """Position vectors are counted once per offset and slot in the forward, not in a step: they are weights' own."""
        D, R, O = self.width, self.config.rank, reach(self.rule)
        relative, spread = self.config.positions == "relative", self.config.weights_from == "input"
        maps = 3 if self.config.share_kv else 4
        token = 2 * maps * D * D + 2 * D * R * (self.config.heads if spread else 1) + 4 * R * D
        if self.config.mode == "non_causal":
            return self.cost_both_ways(length, token, lambda _: R)
        pair = (6 if relative else 4) * D
        near, next_near = near_pairs(self.rule, length)
        far, slots = far_pairs(self.rule, length)
        places = 2 * D * D * (min(O, length) + slots) if relative else 0
        return Cost(
            parameters=self.parameter_count(), flops=length * token + (near + far) * pair + places,
            step_flops=token + (next_near + slots) * pair,
            state_bytes=self.state_bytes(slots, dtype))


def waves(count: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """(count, width): [sin, cos] of n * 10000^(-2i/width) for n = 0 .. count-1, in the dtype of `like`."""
    rate = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=like.device) / width)
    angle = torch.arange(count, dtype=torch.float64, device=like.device)[:, None] * rate
    return torch.cat((angle.sin(), angle.cos()), -1)[:, :width].to(like.dtype)
