"""The truth of the selective scan: one token after another, any floating dtype. Slow on purpose."""

from __future__ import annotations

import torch

from kernels.selective_scan.step import advance


def selective_scan_naive(x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, skip_D, state, dtype, chunk=None):
    """Reads the row token by token; returns (y_BLD, last state). Pads have delta 0; `chunk` plays no part."""
    B, L, D = x_BLD.shape
    h = torch.zeros(B, D, A_DN.shape[1], dtype=dtype, device=x_BLD.device) if state is None else state
    outputs = []
    for t in range(L):
        y, h = advance(x_BLD[:, t], delta_BLD[:, t], A_DN, input_BLN[:, t], output_BLN[:, t], skip_D, h)
        outputs.append(y)
    return torch.stack(outputs, 1).to(x_BLD.dtype), h
