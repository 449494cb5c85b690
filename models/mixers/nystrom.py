"""Nyströmformer (Xiong et al. 2021): softmax attention through the mean queries and keys of C segments.

softmax(s q k̃ᵀ) Z (softmax(s q̃ kᵀ) v), Z an approximate inverse of softmax(s q̃ k̃ᵀ); then a depthwise convolution of the
values is added. A document of no more than C tokens gets exact attention (all released codes).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import nn

from kernels.errors import ConfigError
from models.initialise import draw_normal
from models.landmarks import column_sum, iterative_inverse, segment_means
from models.mixer import Abilities, MixerConfig
from models.whole_document import WholeDocumentConfig, WholeDocumentMixer


class Config(WholeDocumentConfig):
    """Defaults: the paper. CAB: landmarks 16, scale each_root, no convolution. Skyformer's LRA: 128 landmarks.

    The first estimate of Z divides by the greatest column sum of each document's and head's own matrix (released: option
    "exact"); the released default divides by the greatest of the whole batch.
    """

    why_not_causal: ClassVar[str] = "its landmarks average segments of the whole document"
    kind: Literal["nystrom"] = "nystrom"
    landmarks: int = Field(64, ge=1, description="C, segments of a document (paper 64, CAB 16)")
    iterations: int = Field(6, ge=1, description="Of the inverse (released: 6)")
    convolution: int | None = Field(33, ge=1, description="Taps of the convolution of v, odd (released: 33, 35, 65); None "
                                                          "= none")
    scale: Literal["root", "each_root"] = Field(
        "root", description="Of q·k. root: K^-0.5 (paper); each_root: both q and k are multiplied by it, so K^-1 (CAB)")

    @model_validator(mode="after")
    def _odd(self) -> Config:
        if self.convolution is not None and self.convolution % 2 == 0:
            raise ConfigError(f"nystrom: convolution {self.convolution} has no middle tap; give an odd number or None")
        return self

    @classmethod
    def cases(cls) -> dict[str, MixerConfig]:
        return {"convolution": cls(heads=2, landmarks=4, convolution=5),
                "plain": cls(heads=4, landmarks=4, convolution=None),
                "cab": cls(heads=2, landmarks=5, convolution=None, scale="each_root", bias=False)}


class Nystrom(WholeDocumentMixer):
    """proj_q, proj_k, proj_v, three softmaxes and an inverse, convolution, out_proj."""

    exact = True

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        taps = config.convolution
        self.taps_HW = None if taps is None else nn.Parameter(torch.empty(config.heads, taps))

    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        return Abilities(causal=False, non_causal=True, streaming=False, iterative=True)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them; taps N(0, 1/taps)."""
        super().reset_parameters(generator)
        if self.taps_HW is not None:
            draw_normal(self.taps_HW, self.config.convolution**-0.5, generator)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        C, N = self.config.landmarks, q.shape[2]
        q = q * self.head_width ** (-0.5 if self.config.scale == "root" else -1)
        if N <= C:
            y = (q @ k.mT).softmax(-1) @ v
        else:
            few_q, few_k = segment_means(q, C), segment_means(k, C)
            small = (few_q @ few_k.mT).softmax(-1)
            inverse = iterative_inverse(small, self.inverse_scale(small), self.config.iterations)
            y = (q @ few_k.mT).softmax(-1) @ inverse @ ((few_q @ k.mT).softmax(-1) @ v)
        if self.taps_HW is not None:
            y = y + F.conv2d(v, self.taps_HW.to(v.dtype)[:, None, :, None], padding=(self.config.convolution // 2, 0),
                             groups=self.config.heads)
        return y

    def inverse_scale(self, a_BHCC: torch.Tensor) -> torch.Tensor:
        """What the first estimate divides by: row sums are 1, so the greatest column sum is enough."""
        return column_sum(a_BHCC)

    def flops(self, length: int) -> int:
        D, C, K = self.width, self.config.landmarks, self.head_width
        token = 8 * D * D + 2 * D * (self.config.convolution or 0)
        if length <= C:
            return length * (token + 4 * length * D)
        small = 2 * C * C * D + 8 * self.config.iterations * C**3 * self.config.heads
        # q k̃ᵀ, its product with Z, with the C values; q̃ kᵀ and its product with v
        return length * (token + 8 * C * D + 2 * C * C * D // K) + small
