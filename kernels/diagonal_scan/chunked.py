"""The diagonal scan in chunks of tokens: matrices made once from the coefficients, then products over all chunks.

Design: inside a chunk the outputs are a small Toeplitz product, between chunks the state carries on; both reads are one
product. Coefficients do not depend on the token, so that all chunks of all rows share the matrices and autograd gives
the backward. Powers are taken in float64 (README.md).

Shape letters: C tokens of a chunk, S chunks of a row; channels come first, (D, B·S, ·), as batches of products.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf

from kernels.diagonal_scan.step import turned

CHUNKS = {"few": 32, "many": 16}  # tokens; by reads a channel, up to 3 and more (measured, README.md)


def diagonal_scan_chunked(x_BLD, log_decay_DN, angle_DN, real_RDN, imag_RDN, lengths_B, state, chunk, return_state):
    """See `kernels.diagonal_scan.diagonal_scan`; x is 0 at pads. Returns (y (B, L, R, D), last state or None)."""
    (B, L, D), dtype, R = x_BLD.shape, x_BLD.dtype, len(real_RDN)
    C = min(chunk or CHUNKS["few" if R < 4 else "many"], L)
    tokens = torch.arange(C + 1, device=x_BLD.device)
    power_DNC = turned(log_decay_DN[..., None], angle_DN[..., None], tokens).to(dtype.to_complex())
    x_DSC = in_chunks(x_BLD, C)
    S = x_DSC.shape[1] // B
    read_RDN = torch.complex(real_RDN.to(dtype), imag_RDN.to(dtype))
    y = torch.bmm(x_DSC, toeplitz(read_RDN, power_DNC))
    if S > 1 or state is not None:
        before_DBSN = torch.stack(states(x_DSC.view(D, B, S, C), power_DNC, state)[:-1], 2)
        y = y + torch.bmm(torch.view_as_real(before_DBSN).reshape(D, B * S, -1), reading(read_RDN, power_DNC))
    y_BLRD = y.view(D, B, S, R, C).permute(1, 2, 4, 3, 0).reshape(B, S * C, R, D)[:, :L]
    if not return_state:
        return y_BLRD, None
    return y_BLRD, last_state(x_BLD, log_decay_DN, angle_DN, power_DNC, lengths_B, state)


def in_chunks(x_BLD: torch.Tensor, C: int, *, front: bool = False) -> torch.Tensor:
    """(D, B·S, C), zeros behind the last token, or before the first."""
    (B, L, D), extra = x_BLD.shape, -x_BLD.shape[1] % C
    x_BLD = nnf.pad(x_BLD, (0, 0, extra, 0) if front else (0, 0, 0, extra)) if extra else x_BLD
    return x_BLD.permute(2, 0, 1).reshape(D, B * (L + extra) // C, C)


def toeplitz(read_RDN: torch.Tensor, power_DNC: torch.Tensor) -> torch.Tensor:
    """(D, C, R·C): what the tokens of a chunk (rows) give to its outputs (columns)."""
    D, N, C = power_DNC.shape[0], power_DNC.shape[1], power_DNC.shape[2] - 1
    read_DRN = torch.view_as_real(read_RDN.transpose(0, 1).conj().resolve_conj()).reshape(D, -1, 2 * N)
    wave_DNC = torch.view_as_real(power_DNC[..., :C]).transpose(2, 3).reshape(D, 2 * N, C)
    kernel_DRC = torch.bmm(read_DRN, wave_DNC)
    windows = nnf.pad(kernel_DRC, (C - 1, 0)).unfold(-1, C, 1)  # window j: from C - 1 - j tokens before the chunk's start
    return windows.flip(2).transpose(1, 2).reshape(D, C, -1)


def reading(read_RDN: torch.Tensor, power_DNC: torch.Tensor) -> torch.Tensor:
    """(D, 2N, R·C): what the outputs of a chunk read of the state before it."""
    later = read_RDN.permute(1, 2, 0).unsqueeze(-1) * power_DNC[:, :, None, 1:]
    return torch.stack((later.real, -later.imag), 2).reshape(len(power_DNC), 2 * later.shape[1], -1)


def states(x_DBSC: torch.Tensor, power_DNC: torch.Tensor, state: torch.Tensor | None) -> list[torch.Tensor]:
    """h (D, B, N) complex before each chunk and after the last."""
    (D, B, S, C), N = x_DBSC.shape, power_DNC.shape[1]
    writing_DCN = torch.view_as_real(power_DNC[..., :C].flip(2).transpose(1, 2).contiguous()).reshape(D, C, 2 * N)
    written = torch.view_as_complex(torch.bmm(x_DBSC.reshape(D, B * S, C), writing_DCN).view(D, B, S, N, 2))
    whole_D1N = power_DNC[:, None, :, C]
    if state is None:
        held = [torch.zeros_like(written[:, :, 0])]
    else:
        held = [torch.view_as_complex(state.transpose(0, 1).contiguous())]
    for added in written.unbind(2):
        held.append(whole_D1N * held[-1] + added)
    return held


def last_state(x_BLD, log_decay_DN, angle_DN, power_DNC, lengths_B, state) -> torch.Tensor:
    """h (B, D, N, 2) after each row's real tokens.

    Chunks end where a row ends, so that no row needs a part of one: real tokens are moved to the end, behind zeros, which
    an empty state does not notice; the given state fades by all the row's tokens at once.
    """
    (B, L, D), C = x_BLD.shape, power_DNC.shape[2] - 1
    if lengths_B is not None:
        index_BL = torch.arange(L, device=x_BLD.device) - (L - lengths_B[:, None])
        x_BLD = x_BLD.gather(1, index_BL.clamp(min=0).unsqueeze(-1).expand_as(x_BLD)) * (index_BL >= 0).unsqueeze(-1)
    h = states(in_chunks(x_BLD, C, front=True).view(D, B, -1, C), power_DNC, None)[-1].transpose(0, 1)
    if state is not None:
        tokens = L if lengths_B is None else lengths_B[:, None, None]
        h = h + turned(log_decay_DN, angle_DN, tokens).to(h.dtype) * torch.view_as_complex(state.contiguous())
    return torch.view_as_real(h.contiguous())
