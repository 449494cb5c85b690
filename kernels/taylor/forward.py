"""The chunk loop without a backward: what runs for inference, and what the training form runs first.

Design: rows and heads go in groups whose features stay in the cache; a group reads its whole row before the next begins.
Features are made for a few chunks at a time (pairs.py), the quadratic part and the state take one chunk at a time. The
normaliser has a sum of its own: as a 65th value column it would cost a fifth of every product.

Shape letters: G = rows times heads of a group, C chunk, S positions whose features are held. Others: features.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernels.taylor.features import accumulator_dtype, expanded_width
from kernels.taylor.pairs import Augmented, from_public, to_public

HELD = 256  # positions whose features are made at once, at least one chunk (measured, README.md)
GROUP_BYTES = 3 << 20  # of query and key features that a group may hold (measured, README.md)


def scan_forward(q_BLHK, k_BLHK, v_BLHV, initial, keep_BL, *, scale, eps, chunk, want_sums, divisor_GL1=None, saved=None):
    """Outputs, and the sums after the row.

    Args:
        initial: sums before the row, (B·H, F, V+1) in public order, or None; not changed.
        keep_BL: tokens that enter the sums; None: all.
        divisor_GL1: a tensor to write the doubled divisors to, for the backward.
        saved: (kv (chunks, B, H, F, V), z (chunks, B, H, F)) to write the sums before each chunk to, in the order of
            pairs.py; what stands for a first chunk without initial sums means nothing.
    Returns:
        (y_BLHV in v's dtype, sums (B·H, F, V+1) in public order or None)
    """
    B, L, H, K = q_BLHK.shape
    V, dtype, device = v_BLHV.shape[-1], accumulator_dtype(q_BLHK.dtype), q_BLHK.device
    y_BLHV = torch.empty(B, L, H, V, dtype=v_BLHV.dtype, device=device)
    shape = (B, H, expanded_width(K), V + 1)
    final = torch.empty(shape, dtype=dtype, device=device) if want_sums else None
    if initial is not None:
        initial = initial.view(shape)
    for rows, heads in groups(B, H, K, chunk, dtype):
        at = (rows, heads)
        _group(
            q_BLHK[rows, :, heads], k_BLHK[rows, :, heads], v_BLHV[rows, :, heads],
            None if initial is None else initial[at].flatten(0, 1), None if keep_BL is None else keep_BL[rows],
            y_BLHV[rows, :, heads], None if final is None else final[at],
            None if divisor_GL1 is None else divisor_GL1.view(B, H, L)[at],
            None if saved is None else [part[:, rows, heads] for part in saved],
            scale**0.5, eps, chunk)
    return y_BLHV, None if final is None else final.flatten(0, 1)


def groups(B: int, H: int, K: int, chunk: int, dtype: torch.dtype) -> Iterator[tuple[slice, slice]]:
    """(rows, heads) of each group: all heads of some rows, or some heads of one row."""
    held = expanded_width(K) * max(HELD, chunk) * 2 * (8 if dtype == torch.float64 else 4)
    most = max(GROUP_BYTES // held, 1)
    if most >= H:
        for b in range(0, B, most // H):
            yield slice(b, min(b + most // H, B)), slice(0, H)
    else:
        for b in range(B):
            for h in range(0, H, most):
                yield slice(b, b + 1), slice(h, min(h + most, H))


def _group(q, k, v, initial, keep, y, final, divisor, saved, factor, eps, chunk) -> None:
    """One group's rows, written into y, final, divisor and saved (views of the whole tensors)."""
    B, L, H, K = q.shape
    V, dtype, device = v.shape[-1], accumulator_dtype(q.dtype), q.device
    held = max(HELD // chunk, 1) * chunk
    size = min(held, L)
    queries, keys = (Augmented(B, H, K, size, dtype, device) for _ in range(2))
    values = torch.empty(B * H, size, V, dtype=dtype, device=device)
    one = torch.ones((), dtype=dtype, device=device)
    sums = z = None
    if initial is not None:
        sums, z = from_public(initial, K)
    for begin in range(0, L, held):
        span = slice(begin, min(begin + held, L))
        n = span.stop - begin
        q1 = queries.fill(q[:, span], factor)
        k1 = keys.fill(k[:, span], factor, None if keep is None else keep[:, span])
        values.view(B, H, size, V)[:, :, :n] = v[:, span].transpose(1, 2)
        # the last chunk's keys are needed for the final sums alone
        written = n if final is not None or span.stop < L else (n - 1) // chunk * chunk
        psi_k = keys.keys(written) if written else None
        psi_q = queries.queries(n) if sums is not None or n > chunk else None
        for start in range(0, n, chunk):
            stop = min(start + chunk, n)
            part = slice(start, stop)
            w = torch.bmm(q1[..., part].transpose(1, 2), k1[..., part])
            torch.addcmul(one, w, w, out=w).tril_()
            total, total_z = torch.bmm(w, values[:, part]), w.sum(-1)
            if sums is not None:
                read = psi_q[..., part]
                total.baddbmm_(read.transpose(1, 2), sums)
                total_z += torch.bmm(z.unsqueeze(1), read).squeeze(1)
                if saved is not None:
                    for kept, now in zip(saved, (sums, z)):
                        kept[(begin + start) // chunk] = now.view(kept.shape[1:])
            total_z += 2 * eps
            at = slice(begin + start, begin + stop)
            torch.div(total.view(B, H, -1, V), total_z.view(B, H, -1, 1), out=y[:, at].transpose(1, 2))
            if divisor is not None:
                divisor[..., at] = total_z.view(B, H, -1)
            if start < written:
                write = psi_k[..., part]
                if sums is None:
                    sums, z = torch.bmm(write, values[:, part]), write.sum(-1)
                else:
                    sums.baddbmm_(write, values[:, part])
                    z += write.sum(-1)
    if final is not None:
        final.copy_(to_public(sums, z, K).view(final.shape))


def key_sum(k_BMHK, v_BMHV, initial, keep_BM, *, scale) -> torch.Tensor:
    """Sum over a row's kept tokens of phi(k) [v, 1], on top of `initial` or from zero: (B·H, F, V+1) in public order."""
    B, M, H, K = k_BMHK.shape
    V, dtype, device = v_BMHV.shape[-1], accumulator_dtype(k_BMHK.dtype), k_BMHK.device
    out = torch.empty(B, H, expanded_width(K), V + 1, dtype=dtype, device=device)
    for rows, heads in groups(B, H, K, HELD, dtype):
        k, v = k_BMHK[rows, :, heads], v_BMHV[rows, :, heads]
        b, _, h, _ = k.shape
        keys = Augmented(b, h, K, min(HELD, M), dtype, device)
        values = torch.empty(b, h, min(HELD, M), V, dtype=dtype, device=device)
        sums = torch.zeros(b * h, out.shape[2], V, dtype=dtype, device=device)
        z = torch.zeros(b * h, out.shape[2], dtype=dtype, device=device)
        for begin in range(0, M, HELD):
            span = slice(begin, min(begin + HELD, M))
            n = span.stop - begin
            keys.fill(k[:, span], scale**0.5, None if keep_BM is None else keep_BM[rows, span])
            values[:, :, :n] = v[:, span].transpose(1, 2)
            psi = keys.keys(n)
            sums.baddbmm_(psi, values.flatten(0, 1)[:, :n])
            z += psi.sum(-1)
        out[rows, heads] = to_public(sums, z, K).view(b, h, -1, V + 1)
    out = out.flatten(0, 1)
    return out if initial is None else out.add_(initial)
