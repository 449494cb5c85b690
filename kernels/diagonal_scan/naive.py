"""The truth of the diagonal scan: one token after another. Slow on purpose."""

from __future__ import annotations

import torch

from kernels.diagonal_scan.step import advance, turned


def diagonal_scan_naive(x_BLD, log_decay_DN, angle_DN, real_RDN, imag_RDN, lengths_B, state, chunk, return_state):
    """Reads the row token by token; returns (y (B, L, R, D), last state). x is 0 at pads; `chunk` plays no part."""
    (B, L, D), dtype = x_BLD.shape, x_BLD.dtype
    factor = turned(log_decay_DN, angle_DN).to(dtype.to_complex())
    if state is None:
        state = torch.zeros(B, D, factor.shape[1], 2, dtype=dtype, device=x_BLD.device)
    h, outputs = torch.view_as_complex(state.contiguous()), []
    for t in range(L):
        y, after = advance(x_BLD[:, t], factor, real_RDN.to(dtype), imag_RDN.to(dtype), h)
        h = after if lengths_B is None else torch.where((t < lengths_B)[:, None, None], after, h)
        outputs.append(y)
    return torch.stack(outputs, 1), torch.view_as_real(h)
