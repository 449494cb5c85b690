"""EVA (control variates, Zheng et al. 2023), causal: exact attention to a window, one control variate for each chunk.

A closed chunk is one key, a learned map of its mean key, and one value, the mean of its values under random-feature
weights around mu = q_bar + k_bar. One softmax runs over the window and the chunks strictly before the reader's: a chunk's
own q_bar is known only when it is closed. The summaries make the state grow.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from kernels.layout import Layout
from kernels.summary_window import Places, Rule, reach
from kernels.summary_window.near import far_pairs, near_pairs
from kernels.taylor.features import without_autocast
from models.closed_chunks import SummaryMixer, Tokens
from models.initialise import Linear
from models.mixer import Cost, MixerConfig


class Config(MixerConfig):
    """Defaults: the released language models, except that their decoding slides a window which training did not."""

    kind: Literal["eva"] = "eva"
    heads: int = Field(4, ge=1, description="H; must divide the width")
    window: int = Field(128, ge=1, description="Length of a block of near keys, a multiple of `chunk` (released: 128, 256); or, "
                                               "sliding, near keys of a token, itself included [tokens]")
    chunk: int = Field(8, ge=1, description="Tokens behind one summary (released language models: 8, 16)")
    local: Literal["sliding", "blocks", "overlap"] = Field(
        "overlap", description="Near keys: those of the token's block and the block before (released, overlap_window); of its "
                               "block; or the last `window`")
    norm: bool = Field(True, description="LayerNorm after the maps of the mean query and key (released: qk; off: no-ln)")
    offsets: bool = Field(True, description="T5's table of near offsets, shared by the heads. The released one counts offsets "
                                            "from the block before when blocks overlap; ours from the token")
    noise: float = Field(0.0, ge=0, description="Standard deviation of the noise on mu in training (released: 1)")
    bias: bool = Field(True, description="Of the projections q, k, v and out")

    @property
    def rule(self) -> Rule:
        return Rule(self.window, self.chunk, 1, self.local)

    @property
    def buckets(self) -> int:
        """Entries of the offset table."""
        return max(min(reach(self.rule) // 2, 64), 16)

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "blocks": cls(heads=2, window=6, chunk=3, local="blocks"),
            "overlap": cls(heads=2, window=4, chunk=2, norm=False),
            "sliding": cls(heads=4, window=5, chunk=4, local="sliding", offsets=False, bias=False),
        }


class EVA(SummaryMixer):
    """proj_q, proj_k, proj_v, maps of the chunk means, one softmax, out_proj. The state keeps the open chunk's q as well."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        K = self.head_width
        self.proj_q, self.proj_k, self.proj_v, self.out_proj = (Linear(width, width, bias=config.bias) for _ in range(4))
        self.mean_q, self.mean_k = Linear(K, K), Linear(K, K)
        self.norm_q, self.norm_k = (nn.LayerNorm(K) if config.norm else None for _ in range(2))
        self.offset_bias = nn.Parameter(torch.empty(config.buckets)) if config.offsets else None

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them; norms 1 and 0; the offset table N(0, 1), an embedding's law."""
        super().reset_parameters(generator)
        for norm in (self.norm_q, self.norm_k):
            if norm is not None:
                norm.reset_parameters()
        if self.offset_bias is not None and not self.offset_bias.is_meta:
            with torch.no_grad():
                self.offset_bias.copy_(torch.randn(self.config.buckets, generator=generator))

    def project(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, Tokens]:
        q, k, v = (self.heads(projection(x_BLD)) for projection in (self.proj_q, self.proj_k, self.proj_v))
        return q, {"k": k, "v": v, "q": q}

    def summarise(self, chunks: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Key k_bar; value: mean of v under softmax over the chunk of s (k·mu - |k|^2/2), the log of xi(k, mu)."""
        dtype = chunks["k"].dtype
        with without_autocast(chunks["k"].device):
            q, k, v = (chunks[name].to(self.sum_dtype(dtype)) for name in "qkv")
            q_bar = self._bar(self.mean_q, self.norm_q, q.mean(2))
            k_bar = self._bar(self.mean_k, self.norm_k, k.mean(2))
            mu = (q_bar + k_bar).unsqueeze(2)
            if self.training and self.config.noise:
                mu = mu + self.config.noise * torch.randn_like(mu)
            logs = self.head_width**-0.5 * ((k * mu).sum(-1, keepdim=True) - k.square().sum(-1, keepdim=True) / 2)
            return k_bar.to(dtype), (logs.softmax(2) * v).sum(2).to(dtype)

    def _bar(self, linear: nn.Linear, norm: nn.LayerNorm | None, mean: torch.Tensor) -> torch.Tensor:
        mapped = linear(mean.to(linear.weight.dtype))
        return (mapped if norm is None else norm(mapped)).to(mean.dtype)

    def places(self, k_BNHK: torch.Tensor, S: int) -> Places | None:
        """The table's entry of each offset's bucket, times the scale of q·k (as released)."""
        if self.offset_bias is None:
            return None
        return Places(table_HO=self._table(k_BNHK.device)[None])

    def step_places(self, q_BHK, k_BNHK, S: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        return (None if self.offset_bias is None else self._table(q_BHK.device)[None, None]), None

    def _table(self, device: torch.device) -> torch.Tensor:
        offsets = reach(self.rule)
        index = [bucket(offset, self.config.buckets, offsets) for offset in range(offsets)]
        return self.offset_bias[torch.tensor(index, device=device)] * self.head_width**-0.5

    def others(self) -> dict[str, int]:
        return {"q": self.head_width}

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """The maps of a chunk's means are spread over its tokens."""
        D, K = self.width, self.head_width
        token = 8 * D * D + 4 * D + 4 * D * K // self.config.chunk
        near, next_near = near_pairs(self.rule, length)
        far, slots = far_pairs(self.rule, length)
        return Cost(parameters=self.parameter_count(), flops=length * token + (near + far) * 4 * D,
                    step_flops=token + (next_near + slots) * 4 * D, state_bytes=self.state_bytes(slots, dtype))


def bucket(offset: int, buckets: int, longest: int) -> int:
    """T5's causal bucket: half of them exact, the rest spaced by logarithm up to `longest`, the last for all beyond."""
    exact = buckets // 2
    if offset < exact:
        return offset
    if longest <= exact:
        return buckets - 1
    return min(buckets - 1, exact + int(math.log(offset / exact) / math.log(longest / exact) * (buckets - exact)))
