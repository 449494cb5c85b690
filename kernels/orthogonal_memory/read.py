"""Reading a memory whose R slots are m_r b_r: y = sum_r a_r m_r b_r, a = softmax_r(scale m_r q·b_r).

The slots are never built: with U = q Bᵀ and the means m beside it, y = (softmax(U ⊙ m) ⊙ m) B. Tokens go in spans that
stay in the cache. Letters: G = B·H; h = H, or 1 where the heads share their means; S span; N means a row.
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.taylor.features import accumulator_dtype, autocast_off
from kernels.window.heads import heads_first


def span(device: torch.device) -> int:
    """Tokens at a time: on a CPU what stays in its cache (measured), elsewhere enough for few launches."""
    return 256 if device.type == "cpu" else 4096


def basis_of_rows(basis_HRK: torch.Tensor, B: int, dtype: torch.dtype) -> torch.Tensor:
    """(B·H, R, K), the basis beside every row's heads."""
    return basis_HRK.to(dtype).expand(B, *basis_HRK.shape).reshape(-1, *basis_HRK.shape[1:])


def weigh(q_GSK: torch.Tensor, basis_GRK: torch.Tensor, mean_BhSR: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(U, a), both (B, H, S, R), of scaled queries; a overwrites nothing, U is needed for its gradient."""
    u_BHSR = torch.bmm(q_GSK, basis_GRK.transpose(1, 2)).unflatten(0, (mean_BhSR.shape[0], -1))
    return u_BHSR, torch.softmax(u_BHSR * mean_BhSR, -1)


def read_span(q_GSK: torch.Tensor, basis_GRK: torch.Tensor, mean_BhSR: torch.Tensor) -> torch.Tensor:
    """y_GSK of scaled queries, each beside its own mean (or one for all: S may be 1 there)."""
    u_GSR = torch.bmm(q_GSK, basis_GRK.transpose(1, 2))
    u_BHSR = u_GSR.unflatten(0, (mean_BhSR.shape[0], -1)).mul_(mean_BhSR)
    torch.softmax(u_GSR, -1, out=u_GSR)
    u_BHSR.mul_(mean_BhSR)
    return torch.bmm(u_GSR, basis_GRK)


def read_span_backward(q_GSK, basis_GRK, mean_BhSR, g_GSK, dbasis_GRK) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of the scaled queries, of each query's mean), from g = dL/dy; adds the basis's to `dbasis_GRK`."""
    B, h = mean_BhSR.shape[:2]
    u, a = weigh(q_GSK, basis_GRK, mean_BhSR)
    dam = torch.bmm(g_GSK, basis_GRK.transpose(1, 2)).unflatten(0, (B, -1))
    dbasis_GRK.baddbmm_((a * mean_BhSR).flatten(0, 1).transpose(1, 2), g_GSK)
    dt = torch._softmax_backward_data(dam * mean_BhSR, a, -1, a.dtype)
    dmean = dam.mul_(a).addcmul_(dt, u)
    du_GSR = dt.mul_(mean_BhSR).flatten(0, 1)
    dbasis_GRK.baddbmm_(du_GSR.transpose(1, 2), q_GSK)
    return torch.bmm(du_GSR, basis_GRK), dmean if h != 1 else dmean.sum(1, keepdim=True)


class Read(torch.autograd.Function):
    """Queries that share means in groups: slot p reads mean p // group."""

    @staticmethod
    def forward(ctx, q_BLHK, basis_HRK, mean_BhNR, group, scale):
        ctx.save_for_backward(q_BLHK, basis_HRK, mean_BhNR)
        ctx.settings = (group, scale)
        return forward_only(q_BLHK, basis_HRK, mean_BhNR, group, scale)

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLHK):
        q_BLHK, basis_HRK, mean_BhNR = ctx.saved_tensors
        group, scale = ctx.settings
        B, L, H, _ = q_BLHK.shape
        dtype = accumulator_dtype(q_BLHK.dtype)
        basis_GRK = basis_of_rows(basis_HRK, B, dtype)
        dq, dmean, dbasis = torch.empty_like(q_BLHK), torch.zeros_like(mean_BhNR), torch.zeros_like(basis_GRK)
        size = span(q_BLHK.device)
        for start in range(0, L, size):
            part = slice(start, min(start + size, L))
            which = groups(part, group, dy_BLHK.device)
            dq_GSK, dmean_BhSR = read_span_backward(
                heads_first(q_BLHK[:, part], dtype, scale), basis_GRK, mean_BhNR[:, :, which],
                heads_first(dy_BLHK[:, part], dtype), dbasis)
            dmean.index_add_(2, which, dmean_BhSR)
            dq[:, part] = dq_GSK.mul_(scale).unflatten(0, (B, H)).transpose(1, 2)
        return dq, dbasis.unflatten(0, (B, H)).sum(0).to(basis_HRK.dtype), dmean, None, None


def forward_only(q_BLHK, basis_HRK, mean_BhNR, group, scale) -> torch.Tensor:
    B, L, H, _ = q_BLHK.shape
    dtype = accumulator_dtype(q_BLHK.dtype)
    basis_GRK, y_BLHK = basis_of_rows(basis_HRK, B, dtype), torch.empty_like(q_BLHK)
    size = span(q_BLHK.device)
    for start in range(0, L, size):
        part = slice(start, min(start + size, L))
        mean = mean_BhNR if mean_BhNR.shape[2] == 1 else mean_BhNR[:, :, groups(part, group, q_BLHK.device)]
        y_GSK = read_span(heads_first(q_BLHK[:, part], dtype, scale), basis_GRK, mean)
        y_BLHK[:, part] = y_GSK.unflatten(0, (B, H)).transpose(1, 2)
    return y_BLHK


def groups(part: slice, group: int, device: torch.device) -> torch.Tensor:
    """Which mean each slot reads."""
    return torch.arange(part.start, part.stop, device=device) // group


def read(q_BLHK, basis_HRK, mean_BhNR, group: int, scale: float) -> torch.Tensor:
    """y_BLHK in q's dtype; slot p reads mean p // group, of N = ceil(L / group)."""
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (q_BLHK, basis_HRK, mean_BhNR))
    return (Read.apply if differentiable else forward_only)(q_BLHK, basis_HRK, mean_BhNR, group, scale)
