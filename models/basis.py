"""An orthonormal basis as a parameter: the ways to keep it orthonormal while it is trained.

Letters: H heads, R rows of the basis (slots), K head width, W width of a row: K, or H·K where all heads share the rows.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from kernels.errors import ConfigError

Scope = Literal["head", "model"]
Mode = Literal["parametrized", "fixed", "free", "qr"]

ROUNDING = 1e-6  # of B Bᵀ: what float32 leaves of orthonormal rows


def orthonormal_rows(x: torch.Tensor) -> torch.Tensor:
    """Gram-Schmidt over the rows of (..., R, W), R <= W: orthonormal ones stay what they are. Differentiable."""
    q, r = torch.linalg.qr(x.transpose(-1, -2))
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1, 1).to(q.dtype)
    return (q * sign[..., None, :]).transpose(-1, -2)


class OrthogonalBasis(nn.Module):
    """The parameter `weight` (a buffer if fixed), (H, R, K) or (R, H·K), and what a mixer reads from it, (H, R, K).

    parametrized: the rows of `weight` after Gram-Schmidt, in float32 or wider, whatever the optimiser does.
    fixed: as drawn, not trained. free: as trained; `deviation` says how far from orthonormal.
    qr: as free, but `weight` itself is made orthonormal again at its first use after any change, an optimiser's step or
    other. Nobody needs to be told of the optimiser. While a graph is compiled, as parametrized.
    """

    def __init__(self, heads: int, slots: int, head_width: int, scope: Scope, mode: Mode):
        super().__init__()
        self.heads, self.mode, self.shared = heads, mode, scope == "model"
        width = heads * head_width if self.shared else head_width
        if slots > width:
            raise ConfigError(f"{slots} slots do not fit into {width} dimensions: orthonormal rows are at most as many as "
                              f"their width. Take fewer slots{'' if self.shared else ', fewer heads'} or a greater width")
        shape = (slots, width) if self.shared else (heads, slots, width)
        if mode == "fixed":
            self.register_buffer("weight", torch.empty(shape))
        else:
            self.weight = nn.Parameter(torch.empty(shape))
        self._kept: tuple[Any, ...] | None = None
        self._seen: tuple[Any, ...] | None = None

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Rows of a rotation drawn uniformly (Haar), one a head."""
        if self.weight.device.type != "meta":
            drawn = torch.randn(self.weight.shape, generator=generator, dtype=torch.float64, device="cpu")
            with torch.no_grad():
                self.weight.copy_(orthonormal_rows(drawn))

    def forward(self, dtype: torch.dtype) -> torch.Tensor:
        """(H, R, K) in `dtype`, float32 or float64."""
        compiling = torch.compiler.is_compiling()
        if self.mode == "qr" and not compiling:
            self._orthonormalise_if_changed()
        rows = self.weight.to(dtype)
        if self.mode == "parametrized" or self.mode == "qr" and compiling:
            rows = self._orthonormal(rows)
        return rows.unflatten(1, (self.heads, -1)).transpose(0, 1) if self.shared else rows

    def _orthonormal(self, rows: torch.Tensor) -> torch.Tensor:
        """Computed once for a weight that does not change, where no gradient is wanted: a decode step is small beside it."""
        if torch.is_grad_enabled() or self.weight.is_inference() or torch.compiler.is_compiling():
            return orthonormal_rows(rows)
        key = (self.weight._version, self.weight.data_ptr(), self.weight.dtype, rows.dtype)
        if self._kept is None or self._kept[0] != key:
            # the weight beside it keeps its memory from being given to another tensor
            self._kept = key, orthonormal_rows(rows), self.weight.detach()
        return self._kept[1]

    def _orthonormalise_if_changed(self) -> None:
        if self.weight.is_inference() or self.weight.is_meta or not self.weight.is_leaf:
            return  # not a weight to write into
        if self._seen != self._identity():
            self.orthonormalise()
            self._seen = self._identity()

    def _identity(self) -> tuple[Any, ...]:
        return self.weight._version, self.weight.data_ptr(), self.weight.dtype

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles compute their own."""
        return {**self.__dict__, "_kept": None, "_seen": None}

    @torch.no_grad()
    def orthonormalise(self) -> None:
        """The rows after Gram-Schmidt, in place; rows that are orthonormal but for rounding keep their bits."""
        rows = self.weight.double()
        wanted = orthonormal_rows(rows)
        near = deviation(rows) < max(8 * torch.finfo(self.weight.dtype).eps, ROUNDING)
        self.weight.copy_(torch.where(near, rows, wanted))

    @torch.no_grad()
    def deviation(self) -> float:
        """Greatest |B Bᵀ - 1| of what a mixer reads, over the whole rows; of mode qr, before a change is made good."""
        rows = self.weight.double()
        return float(deviation(orthonormal_rows(rows) if self.mode == "parametrized" else rows))


def deviation(rows: torch.Tensor) -> torch.Tensor:
    """Greatest |B Bᵀ - 1| of (..., R, W)."""
    return (rows @ rows.transpose(-1, -2) - torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)).abs().max()
