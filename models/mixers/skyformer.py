"""Skyformer (Chen et al. 2021): a Gaussian kernel instead of softmax, through landmarks drawn among queries and keys.

y = K(q, c) D (D (K(c, c) + ridge) D)^-1 D K(c, k) v with K(a, b) = exp(-|a - b|^2 / 2) and D = diag of the row sums^-0.5:
rows are not normalised. The inverse is six steps of Nyströmformer's.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from models.initialise import seeded
from models.landmarks import column_sum, iterative_inverse
from models.mixer import Abilities, MixerConfig
from models.whole_document import WholeDocumentConfig, WholeDocumentMixer


class Config(WholeDocumentConfig):
    """Defaults: the released LRA settings. Landmarks are drawn anew for each length, layer and seed, and for nothing
    else; the released code draws at each call."""

    why_not_causal: ClassVar[str] = "its landmarks are drawn among the queries and keys of the whole document"
    kind: Literal["skyformer"] = "skyformer"
    landmarks: int = Field(128, ge=2, description="C, half of them queries, the rest keys; repeats occur (released: 128)")
    ridge: float = Field(0.1, gt=0, description="Added to the diagonal of K(c, c) (released: 0.1)")
    iterations: int = Field(6, ge=1, description="Of the inverse (released: 6)")
    scale_width: int | None = Field(32, ge=1, description="q and k are multiplied by this^-0.25 (released: 32, whatever "
                                                          "the heads' width); None = the heads' width")
    seed: int = Field(0, ge=0, description="Of the landmarks")

    @classmethod
    def cases(cls) -> dict[str, MixerConfig]:
        return {"released": cls(heads=2, landmarks=6),
                "own_width": cls(heads=4, landmarks=5, scale_width=None, bias=False)}


class Skyformer(WholeDocumentMixer):
    """proj_q, proj_k, proj_v, three kernels and an inverse, out_proj."""

    exact = True

    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        return Abilities(causal=False, non_causal=True, streaming=False, randomness="per_call", iterative=True)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scale = (self.config.scale_width or self.head_width) ** -0.25
        q, k = scale * q, scale * k
        from_q, from_k = (index.to(q.device) for index in self.sampled(q.shape[2]))
        c = torch.cat((q[:, :, from_q], k[:, :, from_k]), 2)
        small = gaussian(c, c) + self.config.ridge * torch.eye(c.shape[2], dtype=c.dtype, device=c.device)
        root = small.sum(-1, keepdim=True).rsqrt()
        small = root * small * root.mT
        inverse = iterative_inverse(small, self.inverse_scale(small), self.config.iterations)
        return (gaussian(q, c) * root.mT) @ inverse @ (root * (gaussian(c, k) @ v))

    def sampled(self, N: int) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 numbers of the queries and of the keys that are landmarks of a document of N tokens."""
        C, generator = self.config.landmarks, seeded("skyformer", self.config.seed, self.layer, N)
        return tuple(torch.randint(N, (size,), generator=generator, device="cpu") for size in (C // 2, C - C // 2))

    def inverse_scale(self, a_BHCC: torch.Tensor) -> torch.Tensor:
        """What the first estimate of the inverse divides by, as released but for each document and head."""
        return column_sum(a_BHCC)

    def flops(self, length: int) -> int:
        D, C, H = self.width, self.config.landmarks, self.config.heads
        small = 2 * C * C * D + 8 * self.config.iterations * C**3 * H
        return length * (8 * D * D + 8 * C * D + 2 * C * C * H) + small


def gaussian(a_BHNK: torch.Tensor, b_BHMK: torch.Tensor) -> torch.Tensor:
    """exp(-|a - b|^2 / 2), (B, H, N, M)."""
    half_a, half_b = (x.square().sum(-1) / 2 for x in (a_BHNK, b_BHMK))
    return (a_BHNK @ b_BHMK.mT - half_a[..., None] - half_b[..., None, :]).clamp(max=0).exp()
