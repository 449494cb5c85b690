"""LAVO's attention: the mean of a sliding window and of the orthogonal memory, read by the same queries.

Plain compositions of the two operations, and, for causal rows without gradients, one loop over spans in which the
window's output goes into the memory while it is in the cache.
"""

from __future__ import annotations

import torch

from kernels.backends import choose_backend
from kernels.checks import check_counts
from kernels.errors import LayoutError
from kernels.orthogonal_memory.limits import triton_refusal
from kernels.orthogonal_memory.memory import check_memory, orthogonal_memory
from kernels.orthogonal_memory.read import basis_of_rows, read_span
from kernels.orthogonal_memory.scan import counts, running_sums
from kernels.orthogonal_memory.state import MemoryState, empty_state, within
from kernels.taylor import check_inputs
from kernels.taylor.features import accumulator_dtype, first_tokens, without_autocast
from kernels.window import check_past, check_window
from kernels.window import window as attend_window
from kernels.window.band import blocks
from kernels.window.chunked import attend, hidden_keys, reach_of, shorten
from kernels.window.heads import heads_first
from kernels.window.past import with_past

DISSECTIONS = ("token", "window", "none")
SPAN = 384  # tokens a span of the loop (measured)


def lavo(
    q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, v_BLHK: torch.Tensor, basis_HRK: torch.Tensor, *, window: int,
    table: torch.Tensor | None = None, dissection: str = "token", causal: bool = True, shared: bool = False,
    past_k: torch.Tensor | None = None, past_v: torch.Tensor | None = None, past_B: torch.Tensor | None = None,
    lengths_B: torch.Tensor | None = None, state: MemoryState | None = None, scale_local: float | None = None,
    scale_global: float = 1.0, backend: str = "auto", return_state: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, MemoryState]:
    """(local + global) / 2 per head, over rows whose real tokens come first (LAVO Eq. 7-9).

    Args:
        window, table, past_*, lengths_B: of the local branch, see `kernels.window.window`; not causal: both sides.
        dissection: what the memory compresses. "token": the local branch's output; "none": v; "window": what tokens see
            of their own window, both ways, read once that window is closed.
        basis_HRK, shared, state: of the memory, see `orthogonal_memory`. With "window" the state holds closed windows,
            so that the first token of a call begins a window.
        scale_local: of q·k; default K^-1/2. scale_global: of the slot scores.
        backend: "auto" | "naive" | "chunked" | "triton".
    Returns:
        y_BLHK in v's dtype, or (y_BLHK, MemoryState) with `return_state`.
    Raises:
        LayoutError: shapes or settings that do not belong together. UnsupportedUse: a backend that cannot run.
    """
    if dissection not in DISSECTIONS:
        raise LayoutError(f"dissection: got {dissection!r}, expected one of {', '.join(DISSECTIONS)}")
    if q_BLHK.shape != v_BLHK.shape:
        raise LayoutError(f"v: got {tuple(v_BLHK.shape)}, expected q's {tuple(q_BLHK.shape)}: queries read the values' "
                          "memory along one basis")
    check_inputs(q_BLHK, k_BLHK, v_BLHK)
    check_window(window, "causal" if causal else "both", table, q_BLHK.shape[2])
    check_past("causal" if causal else "both", k_BLHK, v_BLHK, past_k, past_v, past_B)
    check_counts("lengths_B", lengths_B, len(q_BLHK), most=q_BLHK.shape[1])
    lengths_B = within(lengths_B, q_BLHK.shape[1])
    check_memory(q_BLHK, v_BLHK, basis_HRK, state, causal=causal, shared=shared,
                 closed=window if causal and dissection == "window" else None)
    form = choose_backend("orthogonal_memory", backend, q_BLHK.device,
                          fast={"triton": triton_refusal(q_BLHK, basis_HRK, shared)})
    differentiable = torch.is_grad_enabled() and any(
        x is not None and x.requires_grad for x in (q_BLHK, k_BLHK, v_BLHK, basis_HRK, table, past_k, past_v, *(state or ())))
    local = {"window": window, "table": table, "scale": scale_local}
    past = {"past_k": past_k, "past_v": past_v, "past_B": past_B}
    memory = {"shared": shared, "state": state, "scale": scale_global}
    if causal and q_BLHK.numel():
        with without_autocast(q_BLHK.device):
            if form == "triton" and dissection == "none":
                from kernels.orthogonal_memory.gpu import fused  # loads Triton

                y, after = fused(q_BLHK, k_BLHK, v_BLHK, basis_HRK, local=local, past=past, memory=memory, lengths_B=lengths_B)
                return (y, after) if return_state else y
            if form == "chunked" and dissection != "window" and not differentiable:
                return in_spans(q_BLHK, k_BLHK, v_BLHK, basis_HRK, local=local, past=past, memory=memory,
                                compress_local=dissection == "token", lengths_B=lengths_B, return_state=return_state)
    return composed(q_BLHK, k_BLHK, v_BLHK, basis_HRK, local, past, memory, dissection=dissection, causal=causal,
                    lengths_B=lengths_B, backend=backend, return_state=return_state)


def composed(q, k, v, basis, local, past, memory, *, dissection, causal, lengths_B, backend, return_state):
    """The window, then the memory."""
    near = attend_window(q, k, v, reach="causal" if causal else "both", lengths_B=lengths_B, backend=backend, **local,
                         **past)
    x, closed = near if dissection == "token" else v, None
    if dissection == "window":
        x = attend_window(q, k, v, reach="own", lengths_B=lengths_B, backend=backend, **local)
        closed = local["window"] if causal else None
    far, state = orthogonal_memory(
        q, x, basis, causal=causal, closed=closed, lengths_B=lengths_B, context_B=None if causal else lengths_B,
        backend=backend, return_state=True, **memory)
    y = ((near + far) / 2).to(v.dtype)
    return (y, state) if return_state else y


def in_spans(
    q_BLHK, k_BNHK, v_BNHK, basis_HRK, *, local, past, memory, compress_local, lengths_B, return_state,
):
    """The causal composition without gradients, span by span; nothing but y is as long as the row."""
    B, L, H, K = q_BLHK.shape
    P = 0 if past["past_k"] is None else past["past_k"].shape[1]
    k_BNHK, v_BNHK = with_past(k_BNHK, v_BNHK, **past)
    hidden = hidden_keys(L, P, past["past_B"], None)
    dtype, device = accumulator_dtype(q_BLHK.dtype), q_BLHK.device
    width, table = shorten(local["window"], local["table"], "causal", P + L)
    reach = reach_of("causal", width, table, q_BLHK)
    scale_local = K**-0.5 if local["scale"] is None else local["scale"]
    fresh, shared = memory["state"] is None, memory["shared"]
    sums, count_B = memory["state"] or empty_state(B, H, basis_HRK.shape[1], q_BLHK.dtype, device, shared=shared)
    keep_BL = first_tokens(lengths_B, L) if return_state else None
    basis_GRK, y_BLHK = basis_of_rows(basis_HRK, B, dtype), torch.empty_like(v_BNHK[:, P:])
    size = reach.C * max(1, SPAN // reach.C)
    for start, stop, low, high, _ in blocks("causal", L, P, P + L, size, width):
        part, here = slice(start, stop), P + start - low
        q = heads_first(q_BLHK[:, part], dtype)
        k, v = heads_first(k_BNHK[:, low:high], dtype), heads_first(v_BNHK[:, low:high], dtype)
        near_GSK = torch.empty_like(q)
        near_BHSK = near_GSK.unflatten(0, (B, H))
        attend(q * scale_local, k, v, near_BHSK.transpose(1, 2), reach, here,
               None if hidden is None else hidden.at(low, high), False)
        running = running_sums(near_GSK if compress_local else v[:, here:], basis_GRK, sums, shared,
                               None if keep_BL is None else keep_BL[:, part])
        sums = running[:, :, -1].clone()
        mean = running.div_(counts(None if fresh else count_B, start, stop, running))
        far_GSK = read_span(q.mul_(memory["scale"]), basis_GRK, mean)
        torch.mul(near_GSK.add_(far_GSK).unflatten(0, (B, H)).transpose(1, 2), 0.5, out=y_BLHK[:, part])
    state = MemoryState(sums, count_B + (L if lengths_B is None else lengths_B))
    return (y_BLHK, state) if return_state else y_BLHK
