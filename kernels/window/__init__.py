"""Softmax attention over a sliding window: a token and the window - 1 before it, on both sides, or its own window."""

from __future__ import annotations

from typing import Any

import torch

from kernels.backends import choose_backend
from kernels.checks import check_counts, check_shape
from kernels.errors import LayoutError
from kernels.taylor import check_inputs
from kernels.taylor.features import without_autocast
from kernels.window.chunked import window_chunked
from kernels.window.limits import triton_refusal
from kernels.window.naive import window_naive

__all__ = ["window"]

REACHES = ("causal", "both", "own")


def window(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHV: torch.Tensor, *, window: int, reach: str = "causal",
    table: torch.Tensor | None = None, past_k: torch.Tensor | None = None, past_v: torch.Tensor | None = None,
    past_B: torch.Tensor | None = None, lengths_B: torch.Tensor | None = None, scale: float | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """y_BLHV of rows whose real tokens come first; pads hold finite values, what stands there in y means nothing.

    Args:
        window: keys a causal query sees, itself included (offsets 0..window-1 back). flash-attn's left size is
            window - 1.
        reach: "causal"; "both": offsets up to window - 1 either way, 2 window - 1 keys; "own": the keys of the query's
            own window p // window, before and after it, p counting from slot 0.
        table: (1 or H, 2 window - 1) added to the scores after `scale`: the entry of key j for query i stands at
            j - i + window - 1 (LAVO's embedded position encoding). A causal query reads the first `window` entries.
        past_k, past_v: (B, P, H, .) the tokens before slot 0, newest last; past_B (int64) says how many were real,
            the rest may hold anything. P >= min(past, window - 1). Causal only.
        lengths_B: real tokens of each row: the pads behind them are no keys. A causal query meets none and needs none.
        scale: of q·k; default K^-1/2.
        backend: "auto" | "naive" | "chunked" | "triton".
    Raises:
        LayoutError: shapes that do not belong together, window < 1, an unknown reach, or a past that is not causal.
        UnsupportedUse: a backend that cannot run.
    """
    check_inputs(q_BLHK, k_BLHK, v_BLHV)
    check_window(window, reach, table, q_BLHK.shape[2])
    check_past(reach, k_BLHK, v_BLHV, past_k, past_v, past_B)
    check_counts("lengths_B", lengths_B, len(q_BLHK), most=q_BLHK.shape[1])
    backend = choose_backend("window", backend, q_BLHK.device, fast={"triton": triton_refusal(q_BLHK, v_BLHV)})
    if q_BLHK.numel() == 0:
        return torch.zeros_like(v_BLHV)
    form = {"naive": window_naive, "chunked": window_chunked, "triton": window_triton}[backend]
    with without_autocast(q_BLHK.device):
        return form(q_BLHK, k_BLHK, v_BLHV, window=window, reach=reach, table=table, past_k=past_k, past_v=past_v,
                    past_B=past_B, lengths_B=lengths_B, scale=q_BLHK.shape[-1] ** -0.5 if scale is None else scale)


def window_triton(*tensors: torch.Tensor, **settings: Any) -> torch.Tensor:
    """The GPU form, whose library is loaded when it is first asked for."""
    from kernels.window.triton import window_triton as form

    return form(*tensors, **settings)


def check_window(window: int, reach: str, table: torch.Tensor | None, H: int) -> None:
    if window < 1:
        raise LayoutError(f"window: got {window}, expected at least 1, the token itself")
    if reach not in REACHES:
        raise LayoutError(f"reach: got {reach!r}, expected one of {', '.join(REACHES)}")
    if table is not None and (table.dim() != 2 or table.shape[0] not in (1, H) or table.shape[1] != 2 * window - 1):
        raise LayoutError(f"table: got {tuple(table.shape)}, expected (1 or {H}, {2 * window - 1}), the offsets "
                          f"{1 - window}..{window - 1}")


def check_past(reach: str, k, v, past_k, past_v, past_B) -> None:
    if past_k is None:
        return
    if past_v is None or past_B is None or past_k.shape[:2] != past_v.shape[:2]:
        raise LayoutError("past_k, past_v and past_B belong together: give all three, with as many tokens in k as in v")
    check_shape("past_k", past_k, (len(k), None, *k.shape[2:]))
    check_shape("past_v", past_v, (len(v), None, *v.shape[2:]))
    check_counts("past_B", past_B, len(k))
    if reach != "causal":
        raise LayoutError(f"reach {reach!r} takes no past: its keys lie ahead too. Give the window's tokens in one call")
