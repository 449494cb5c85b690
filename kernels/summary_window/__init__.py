"""One softmax over the keys nearby and the summaries of closed chunks: what Transformer-LS and EVA share.

    y_i = sum_j a_ij v_j + sum_s a_is far_v_s,   a_i = softmax over [near scores, far scores],   j near, s closed before i

How a chunk becomes a summary is the caller's business. Letters: N keys = [P past | L new], S slots of summaries,
O offsets.
"""

from __future__ import annotations

import torch

from kernels.errors import LayoutError
from kernels.summary_window.blocks import summary_window_blocks
from kernels.summary_window.near import LOCALS, Places, Rule, reach
from kernels.summary_window.step import summary_window_step
from kernels.taylor.features import without_autocast

__all__ = ["LOCALS", "Places", "Rule", "reach", "summary_window", "summary_window_step"]


def summary_window(
    q_BLHK: torch.Tensor, k_BNHK: torch.Tensor, v_BNHV: torch.Tensor, far_k_BSHK: torch.Tensor, far_v_BSHV: torch.Tensor, *,
    rule: Rule, places: Places | None = None, past_B: torch.Tensor | None = None, scale: float | None = None,
) -> torch.Tensor:
    """y_BLHV of rows whose real tokens come first; pads hold finite values, what stands there in y means nothing.

    Args:
        k_BNHK, v_BNHV: the P = N - L tokens before slot 0, newest last, then those of the L slots.
        far_k_BSHK, far_v_BSHV: `rule.rank` summaries a chunk, in the order of the chunks from the document's first. Slot s
            is read at position p iff s // rank < p // chunk; others may hold any finite value.
        rule: which keys are near, and the chunks.
        places: what positions add to the scores.
        past_B: int64, tokens before slot 0; of the P, those beyond it are ignored. None: none, and N = L. P >= min(past,
            the rule's reach - 1).
        scale: of q·k; default K^-1/2.
    Raises:
        LayoutError: shapes that do not belong together.
    """
    check_inputs(q_BLHK, k_BNHK, v_BNHV, far_k_BSHK, far_v_BSHV, rule, past_B)
    if q_BLHK.numel() == 0:
        return v_BNHV.new_zeros(*q_BLHK.shape[:3], v_BNHV.shape[-1])
    scale = q_BLHK.shape[-1] ** -0.5 if scale is None else scale
    with without_autocast(q_BLHK.device):
        return summary_window_blocks(q_BLHK, k_BNHK, v_BNHV, far_k_BSHK, far_v_BSHV, rule=rule, places=places or Places(),
                                     past_B=past_B, scale=scale)


def check_inputs(q, k, v, far_k, far_v, rule: Rule, past_B) -> None:
    """q (B, L, H, K); k, v of B rows and H heads with N >= L tokens (N = L without past_B); slots in whole chunks."""
    B, L, H, K = q.shape
    fits = k.shape[0::2] == (B, H) and k.shape[3] == K and v.shape[:3] == k.shape[:3] and k.shape[1] >= L
    if not fits or (past_B is None and k.shape[1] != L):
        raise LayoutError(f"summary_window: expected k (B, N, H, K) and v (B, N, H, V) with N = L, or N >= L beside past_B; got "
                          f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if far_k.shape[0::2] != (B, H) or far_k.shape[3] != K or far_v.shape != (*far_k.shape[:3], v.shape[3]) or (
            far_k.shape[1] % rule.rank):
        raise LayoutError(f"summary_window: expected summaries (B, S, H, K) and (B, S, H, V) with S a multiple of rank "
                          f"{rule.rank}; got {tuple(far_k.shape)}, {tuple(far_v.shape)}")
