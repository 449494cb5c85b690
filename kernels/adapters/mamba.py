"""The CUDA kernels of mamba_ssm and causal_conv1d behind our signatures: selective_scan and short_conv on a GPU.

Both put channels before tokens, [B, D, L], and know no pads; the scan starts from zero and wants one type for all that
varies with the token. The packages are imported when a function is called, not before.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

from kernels.taylor.features import first_tokens

MOST_STATES = 256
TYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (2, 3, 4)


def selective_reason(
    x_BLD: torch.Tensor, delta_BLD: torch.Tensor, A_DN: torch.Tensor, input_BLN: torch.Tensor, output_BLN: torch.Tensor,
    state: torch.Tensor | None,
) -> str | None:
    """Why mamba_ssm cannot take these inputs of `selective_scan`, None if it can."""
    if state is not None:
        return "its scan has no initial state"
    if not 1 <= A_DN.shape[1] <= MOST_STATES:
        return f"its scan takes 1 to {MOST_STATES} states a channel, got {A_DN.shape[1]}"
    given = {"x": x_BLD, "delta": delta_BLD, "A": A_DN, "input": input_BLN, "output": output_BLN}
    other = [f"{name} is {x.dtype}" for name, x in given.items() if x.dtype not in TYPES]
    if other:
        return f"its scan takes float32, bfloat16 and float16; {', '.join(other)}"
    return None


def selective_scan(
    x_BLD: torch.Tensor, delta_BLD: torch.Tensor, A_DN: torch.Tensor, input_BLN: torch.Tensor, output_BLN: torch.Tensor,
    skip_D: torch.Tensor | None, lengths_B: torch.Tensor | None, state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.selective_scan.selective_scan`: (y_BLD in x's type, state (B, D, N) in float32).

    `state` must be None (`selective_reason`): it is here so that all forms are called alike. One type for all: the
    widest among x, delta, input and output, since rounding delta would be magnified by exp(delta A).
    """
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    if state is not None:
        raise ValueError("mamba_ssm has no initial state; ask selective_reason first")
    keep_BL = first_tokens(lengths_B, x_BLD.shape[1])
    if keep_BL is not None:
        delta_BLD = delta_BLD * keep_BL.unsqueeze(-1)
    varying = (x_BLD, delta_BLD, input_BLN, output_BLN)
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in varying))
    u, delta, entering, leaving = (x.to(dtype).transpose(1, 2) for x in varying)
    y_BDL, last_BDN = selective_scan_fn(
        u, delta, A_DN.float(), entering, leaving, D=None if skip_D is None else skip_D.float(), z=None,
        delta_bias=None, delta_softplus=False, return_last_state=True)
    return y_BDL.transpose(1, 2).to(x_BLD.dtype), last_BDN.float()


@functools.cache
def conv_installed() -> bool:
    """Whether the package causal_conv1d is there; looking for it takes longer than a short convolution."""
    return importlib.util.find_spec("causal_conv1d") is not None


def conv_reason(x_BLD: torch.Tensor, weight_DK: torch.Tensor) -> str | None:
    """Why causal_conv1d cannot take these inputs of `short_conv`, None if it can."""
    D, K = weight_DK.shape
    if not conv_installed():
        return "the package causal_conv1d is not installed"
    if x_BLD.dtype not in TYPES or weight_DK.dtype not in TYPES:
        return "its kernels take float32, bfloat16 and float16"
    if K not in WIDTHS:
        return f"its kernels are {WIDTHS[0]} to {WIDTHS[-1]} taps wide, got {K}"
    if D % 8:
        return f"channels beside each other must be a multiple of 8, got {D}"
    return None


def short_conv(
    x_BLD: torch.Tensor, weight_DK: torch.Tensor, *, bias_D: torch.Tensor | None = None,
    past_BPD: torch.Tensor | None = None, position_BL: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `kernels.short_conv.short_conv`. Documents of a packed row become its `seq_idx`: they begin at position 0."""
    from causal_conv1d import causal_conv1d_fn

    options: dict[str, torch.Tensor] = {}
    if position_BL is not None:
        options["seq_idx"] = (position_BL == 0).cumsum(1).to(torch.int32)
    if past_BPD is not None:
        options["initial_states"] = past_BPD.to(x_BLD.dtype).contiguous().transpose(1, 2)
    # transposed from contiguous rows: the channels-last layout, which seq_idx and initial_states need
    y_BDL = causal_conv1d_fn(
        x_BLD.contiguous().transpose(1, 2), weight_DK, bias=None if bias_D is None else bias_D.to(weight_DK.dtype),
        activation=None, **options)
    return y_BDL.transpose(1, 2).to(torch.promote_types(x_BLD.dtype, weight_DK.dtype))
