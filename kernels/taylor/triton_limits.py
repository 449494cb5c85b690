"""What the Triton form takes. Apart from its kernels, so that asking needs no Triton."""

from __future__ import annotations

import torch

WIDEST_KEY, WIDEST_VALUE = 32, 128
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def why_not(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: torch.Tensor,
            decay_H: torch.Tensor | None = None, scale: float | None = None) -> str | None:
    """Why the kernels cannot take these inputs (last dimensions K, K and V), None if they can."""
    if decay_H is not None:
        return "a decaying numerator has no kernel"
    if scale == 0:
        return "its sums are kept without the scale, which a state is divided by: 0 has no inverse"
    dtypes = {x.dtype for x in (q, k, v, *others)}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"its kernels take bfloat16, float16 or float32, one for all inputs, not {names}"
    if not 1 <= q.shape[-1] <= WIDEST_KEY or not 1 <= v.shape[-1] <= WIDEST_VALUE:
        return (f"its kernels take 1 to {WIDEST_KEY} features and 1 to {WIDEST_VALUE} values a head, "
                f"not {q.shape[-1]} and {v.shape[-1]}")
    return None


def why_no_step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay_H: torch.Tensor | None) -> str | None:
    """As `why_not` for one token: its kernel overwrites the state, so that nothing can be differentiated."""
    if torch.is_grad_enabled():
        return "its step has no gradients (call it under torch.no_grad())"
    return why_not(q, k, v, decay_H=decay_H)
