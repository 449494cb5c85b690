"""ProbSparse attention (Informer, Zhou et al. 2021): full attention for the queries that look least uniform.

A query is measured on sampled keys: its greatest score minus the sum of its scores over the document's n (n, not the
number of samples: as released). The best factor·ceil(ln n) attend to all keys; the others get the mean of all values.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field

from models.initialise import seeded
from models.mixer import Abilities, MixerConfig
from models.whole_document import WholeDocumentConfig, WholeDocumentMixer


class Config(WholeDocumentConfig):
    """Defaults: Informer. Keys are drawn anew for each length, layer and seed, and for nothing else."""

    why_not_causal: ClassVar[str] = ("which queries attend is chosen among all of the document, by scores on sampled "
                                     "keys, later ones included")
    kind: Literal["prob_sparse"] = "prob_sparse"
    factor: int = Field(5, ge=1, description="Sampled keys a query, and chosen queries, per ceil(ln n) (Informer: 5)")
    seed: int = Field(0, ge=0, description="Of the sampled keys")

    @classmethod
    def cases(cls) -> dict[str, MixerConfig]:
        return {"one": cls(heads=2, factor=1), "two": cls(heads=4, factor=2, bias=False, seed=3)}


class ProbSparse(WholeDocumentMixer):
    """proj_q, proj_k, proj_v, the choice of queries, attention of the chosen, out_proj."""

    exact = True

    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        return Abilities(causal=False, non_causal=True, streaming=False, randomness="per_call")

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        N, scale = q.shape[2], self.head_width**-0.5
        count = self.count(N)
        if count == N:
            return (scale * q @ k.mT).softmax(-1) @ v
        chosen = self.choose(q, k)[..., None].expand(-1, -1, -1, self.head_width)
        attended = (scale * q.gather(2, chosen) @ k.mT).softmax(-1) @ v
        return v.mean(2, keepdim=True).expand_as(v).scatter(2, chosen, attended)

    def count(self, N: int) -> int:
        """Sampled keys of a query, and chosen queries; a single token attends to itself."""
        return max(1, min(N, self.config.factor * math.ceil(math.log(max(N, 1)))))

    @torch.no_grad()
    def choose(self, q_BHNK: torch.Tensor, k_BHNK: torch.Tensor) -> torch.Tensor:
        """(B, H, count): numbers of the queries that attend; scores before any scale."""
        N = q_BHNK.shape[2]
        index_UN = self.sampled(N).T.to(k_BHNK.device)
        # one sample at a time: all at once would hold N U K numbers a head
        score_BHNU = torch.stack([(q_BHNK * k_BHNK[:, :, index_N]).sum(-1) for index_N in index_UN], -1)
        return (score_BHNU.amax(-1) - score_BHNU.sum(-1) / N).topk(self.count(N)).indices

    def sampled(self, N: int) -> torch.Tensor:
        """(N, count) int64: the keys on which each query of a document of N tokens is measured; repeats occur."""
        generator = seeded("prob_sparse", self.config.seed, self.layer, N)
        return torch.randint(N, (N, self.count(N)), generator=generator, device="cpu")

    def flops(self, length: int) -> int:
        D, count = self.width, self.count(length)
        measured = 0 if count == length else 2 * count * D
        return length * (8 * D * D + measured + 4 * count * D)
