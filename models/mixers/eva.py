"""EVA (control variates, Zheng et al. 2023): exact attention to a window, one control variate for each chunk.

A chunk is one key, a learned map of its mean key, and one value, the mean of its values under random-feature weights around
mu = q_bar + k_bar. Causal: one softmax runs over the window and the chunks strictly before the reader's, for a chunk's own
q_bar is known only when it is closed; the summaries make the state grow. Both ways: the document is cut into `landmarks`
chunks, mu is half as long, and a block of the window's length reads itself, tokens on both sides and every chunk.
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
from models.initialise import Linear, draw_normal
from models.landmarks import segment_places
from models.mixer import Cost, MixerConfig
from models.modes import mode_field


class Config(MixerConfig):
    """Defaults: the released language models, except that their decoding slides a window which training did not."""

    kind: Literal["eva"] = "eva"
    mode: Literal["causal", "non_causal"] = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    window: int = Field(128, ge=1, description="Length of a block of near keys, causal a multiple of `chunk` (released: 128, "
                                               "256); or, sliding, near keys of a token, itself included [tokens]")
    chunk: int = Field(8, ge=1, description="causal: tokens behind one summary (released language models: 8, 16)")
    local: Literal["sliding", "blocks", "overlap"] = Field(
        "overlap", description="causal: near keys are those of the token's block and the block before (released, "
                               "overlap_window); of its block; or the last `window`")
    landmarks: int = Field(49, ge=1, description="non_causal: summaries of a document (released: 49), of chunks as even as can "
                                                 "be; the released code refuses lengths that do not divide")
    extension: int | None = Field(None, ge=0, description="non_causal: near tokens on each side of a block of `window`, and "
                                                          "of a chunk; None = half the window (released, overlap_window)")
    edge: Literal["tokens", "places"] = Field(
        "tokens", description="non_causal: chunk means count the document's tokens, or also the places beyond its ends, as "
                              "zeros (released)")
    norm: bool = Field(True, description="LayerNorm after the maps of the mean query and key (released: qk; off: no-ln)")
    offsets: bool = Field(True, description="T5's table of near offsets, shared by the heads if causal. The released one "
                                            "counts offsets from the first near place when there are keys before the block; "
                                            "ours from the token")
    noise: float = Field(0.0, ge=0, description="Standard deviation of the noise on mu in training (released: 1)")
    bias: bool = Field(True, description="Of the projections q, k, v and out")

    @property
    def rule(self) -> Rule:
        return Rule(self.window, self.chunk, 1, self.local)

    @property
    def buckets(self) -> int:
        """Entries of the offset table; both ways half of them are for later keys."""
        return max(min((self.farthest if self.mode == "non_causal" else reach(self.rule)) // 2, 64), 16)

    @property
    def farthest(self) -> int:
        """Both ways: the distance from which on near keys share the last entry."""
        return self.window + (max(1, self.window // 2) if self.extension is None else self.extension)

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "blocks": cls(heads=2, window=6, chunk=3, local="blocks"),
            "overlap": cls(heads=2, window=4, chunk=2, norm=False),
            "sliding": cls(heads=4, window=5, chunk=4, local="sliding", offsets=False, bias=False),
            "both_ways": cls(mode="non_causal", heads=2, window=4, landmarks=3),
            "both_ways_plain": cls(mode="non_causal", heads=4, window=3, landmarks=4, extension=0, edge="places", norm=False,
                                   offsets=False, bias=False),
        }


class EVA(SummaryMixer):
    """proj_q, proj_k, proj_v, maps of the chunk means, one softmax, out_proj. The state keeps the open chunk's q as well."""

    keep_init = frozenset({"offset_bias"})  # a table, whatever its name
    no_decay = keep_init

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        K = self.head_width
        self.proj_q, self.proj_k, self.proj_v, self.out_proj = (Linear(width, width, bias=config.bias) for _ in range(4))
        self.mean_q, self.mean_k = Linear(K, K), Linear(K, K)
        self.norm_q, self.norm_k = (nn.LayerNorm(K) if config.norm else None for _ in range(2))
        shape = (config.buckets, config.heads) if config.mode == "non_causal" else (config.buckets,)
        self.offset_bias = nn.Parameter(torch.empty(shape)) if config.offsets else None

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them; norms 1 and 0; the offset table N(0, 1), an embedding's law."""
        super().reset_parameters(generator)
        for norm in (self.norm_q, self.norm_k):
            if norm is not None:
                norm.reset_parameters()
        if self.offset_bias is not None:
            draw_normal(self.offset_bias, 1.0, generator)

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
            weights = self._log_xi(k, (q_bar + k_bar).unsqueeze(2)).softmax(2)
            return k_bar.to(dtype), (weights * v).sum(2).to(dtype)

    def summarise_all(self, q: torch.Tensor, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of `landmarks` even chunks and the tokens on both sides of each; mu = (q_bar + k_bar) / 2."""
        index_SJ, is_token_SJ, places_S = segment_places(q.shape[2], self.config.landmarks, self.extension, q.device)
        is_token_SJ1 = is_token_SJ[..., None]
        q, k, v = (torch.where(is_token_SJ1, t[:, :, index_SJ], 0) for t in (q, tokens["k"], tokens["v"]))
        count_S = places_S if self.config.edge == "places" else is_token_SJ.sum(-1)
        q_bar, k_bar = (self._bar(linear, norm, t.sum(3) / count_S[:, None]) for linear, norm, t in (
            (self.mean_q, self.norm_q, q), (self.mean_k, self.norm_k, k)))
        logs = self._log_xi(k, (q_bar + k_bar)[..., None, :] / 2).masked_fill(~is_token_SJ1, -torch.inf)
        return k_bar, (logs.softmax(3) * v).sum(3)

    def _log_xi(self, k: torch.Tensor, mu: torch.Tensor) -> torch.Tensor:
        """log xi(k, mu), last axis 1."""
        if self.training and self.config.noise:
            mu = mu + self.config.noise * torch.randn_like(mu)
        return self.head_width**-0.5 * ((k * mu).sum(-1, keepdim=True) - k.square().sum(-1, keepdim=True) / 2)

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

    def side_table(self) -> torch.Tensor | None:
        """(H, O) by offset -(W - 1 + E) .. W - 1 + E."""
        if self.offset_bias is None:
            return None
        most = self.config.window - 1 + self.extension
        index = [self.side_bucket(offset) for offset in range(-most, most + 1)]
        bias_OH = self.offset_bias[torch.tensor(index, device=self.offset_bias.device)]
        return bias_OH.T * self.head_width**-0.5

    def side_bucket(self, offset: int) -> int:
        """T5's bucket for both directions: the upper half of them for later keys."""
        half = self.config.buckets // 2
        return bucket(abs(offset), half, self.config.farthest) + (half if offset > 0 else 0)

    def others(self) -> dict[str, int]:
        return {"q": self.head_width}

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """The maps of a chunk's means are spread over its tokens."""
        D, K = self.width, self.head_width
        if self.config.mode == "non_causal":
            return self._cost_both_ways(length)
        token = 8 * D * D + 4 * D + 4 * D * K // self.config.chunk
        near, next_near = near_pairs(self.rule, length)
        far, slots = far_pairs(self.rule, length)
        return Cost(parameters=self.parameter_count(), flops=length * token + (near + far) * 4 * D,
                    step_flops=token + (next_near + slots) * 4 * D, state_bytes=self.state_bytes(slots, dtype))

    def _cost_both_ways(self, length: int) -> Cost:
        chunks = [self._chunk_flops(n) for n in (length, length + 1)]
        whole = self.cost_both_ways(length, 8 * self.width**2, lambda n: min(self.config.landmarks, n))
        return whole + Cost(0, *chunks, 0)

    def _chunk_flops(self, length: int) -> int:
        """Both ways: of all summaries; a chunk's sides go into it too."""
        D, S = self.width, min(self.config.landmarks, length)
        return 4 * D * (length + 2 * self.extension * S) + 4 * S * D * self.head_width


def bucket(offset: int, buckets: int, longest: int) -> int:
    """T5's causal bucket: half of them exact, the rest spaced by logarithm up to `longest`, the last for all beyond."""
    exact = buckets // 2
    if offset < exact:
        return offset
    if longest <= exact:
        return buckets - 1
    return min(buckets - 1, exact + int(math.log(offset / exact) / math.log(longest / exact) * (buckets - exact)))
