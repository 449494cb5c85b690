"""LARA (linear randomised attention, Zheng et al. 2022): importance sampling from one Gaussian a segment of a document.

Each of C segments has a mean query and a mean key; their sum mu is the centre of a proposal, omega a draw from it (mu
itself outside training). For every omega, values are averaged under the random feature of the keys; a query then weighs
the C averages. xi(x, omega) = exp(s x·omega - s |x|^2 / 2) with s = K^-0.5.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from models.initialise import Linear
from models.landmarks import segment_means
from models.mixer import MixerConfig
from models.whole_document import WholeDocumentConfig, WholeDocumentMixer


class Config(WholeDocumentConfig):
    """Defaults: the authors' code on sequences (`adaptive-1d`, `mis-opt`). CAB: landmarks 16, maps none, mis biased_own."""

    why_not_causal: ClassVar[str] = "its landmarks are means of segments of the whole document"
    kind: Literal["lara"] = "lara"
    landmarks: int = Field(49, ge=1, description="C, segments of a document (authors 49, CAB 16)")
    maps: Literal["norm", "none"] = Field(
        "norm", description="norm: each q and k goes through a linear map of the head and a LayerNorm before the means "
                            "(authors); none (CAB)")
    mis: Literal["opt", "biased", "bh", "biased_own"] = Field(
        "opt", description="Weights of the samples. opt: balance heuristic and a correction by the query; bh: balance "
                           "heuristic; biased: exp(s mu·q) over the sum of all proposals; biased_own: over the sample's "
                           "own (CAB)")
    alpha: float = Field(1.0, ge=0, description="mis opt: weight of the query's correction (released: 1)")
    share: Literal["landmarks", "queries"] = Field(
        "landmarks", description="mis opt: what the softmax of s q_bar·q in the correction runs over: landmarks (the "
                                 "formula), or the document's queries (the authors' code)")
    noise: float = Field(0.0, ge=0, description="Standard deviation of omega about mu in training (released: 1)")

    @classmethod
    def cases(cls) -> dict[str, MixerConfig]:
        return {"opt": cls(heads=2, landmarks=4), "queries": cls(heads=4, landmarks=3, share="queries", alpha=0.5),
                "biased": cls(heads=2, landmarks=3, mis="biased", maps="none", bias=False),
                "cab": cls(heads=2, landmarks=4, mis="biased_own", maps="none"),
                "bh": cls(heads=1, landmarks=5, mis="bh")}


class LARA(WholeDocumentMixer):
    """proj_q, proj_k, proj_v, two maps before the means, importance weights, out_proj."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        if config.maps == "norm":
            K = self.head_width
            self.map_q, self.map_k = Linear(K, K), Linear(K, K)
            self.norm_q, self.norm_k = nn.LayerNorm(K), nn.LayerNorm(K)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them; norms 1 and 0."""
        super().reset_parameters(generator)
        if self.config.maps == "norm":
            self.norm_q.reset_parameters()
            self.norm_k.reset_parameters()

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q_bar, k_bar = self._bar(q, "q"), self._bar(k, "k")
        mu = q_bar + k_bar
        omega = mu
        if self.training and self.config.noise:
            omega = mu + self.config.noise * torch.randn_like(mu)
        log_k = self._log_xi(omega, k)
        values_BHCK = log_k.softmax(-1) @ v
        log_weight = self._log_ratio(q, q_bar, mu, omega) + self._log_xi(omega, q) + log_k.logsumexp(-1, keepdim=True)
        return log_weight.softmax(-2).mT @ values_BHCK

    def _log_ratio(self, q, q_bar, mu, omega) -> torch.Tensor:
        """log alpha - log of the proposal's density, (B, H, C, 1 or N)."""
        scale, mis = self.head_width**-0.5, self.config.mis
        log_mu = self._log_xi(omega, mu)
        own, every = log_mu.diagonal(dim1=-2, dim2=-1)[..., None], log_mu.logsumexp(-1, keepdim=True)
        if mis == "bh":
            return -every
        if mis != "opt":
            return scale * mu @ q.mT - (every if mis == "biased" else own)
        share = (scale * q_bar @ q.mT).softmax(-2 if self.config.share == "landmarks" else -1)
        alpha = (own - every).exp() + self.config.alpha * (share - share.mean(-2, keepdim=True))
        return alpha.clamp(min=1e-8).log() - own

    def _log_xi(self, omega_BHCK: torch.Tensor, x_BHNK: torch.Tensor) -> torch.Tensor:
        """log xi(x, omega), (B, H, C, N)."""
        return self.head_width**-0.5 * (omega_BHCK @ x_BHNK.mT - x_BHNK.square().sum(-1)[..., None, :] / 2)

    def _bar(self, x_BHNK: torch.Tensor, name: str) -> torch.Tensor:
        if self.config.maps == "norm":
            linear, norm = getattr(self, f"map_{name}"), getattr(self, f"norm_{name}")
            x_BHNK = norm(linear(x_BHNK.to(linear.weight.dtype))).to(x_BHNK.dtype)
        return segment_means(x_BHNK, self.config.landmarks)

    def flops(self, length: int) -> int:
        D, C = self.width, min(self.config.landmarks, length)
        maps = 4 * D * self.head_width if self.config.maps == "norm" else 0
        products = 8 if self.config.mis == "bh" else 10
        return length * (8 * D * D + maps + products * C * D) + 2 * C * C * D
