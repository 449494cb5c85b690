"""Gradients of the chunk loop, from the last chunk to the first, in the same groups and with the same features as forward.py.

R is to the gradients what the sums are to the outputs: the sum over later queries of psi_q(q) g. Derivation: README.md.
Whatever has a group's size is allocated once: fresh temporaries of this size cost more in page faults than in sums.

Shape letters: pairs.py, forward.py.
"""

from __future__ import annotations

import torch

from kernels.taylor.features import accumulator_dtype, expanded_width
from kernels.taylor.forward import HELD, groups
from kernels.taylor.pairs import Augmented, gradient_from_public, gradient_to_public


class Side:
    """Buffers of a group for a stretch of queries or keys: x1, features, their gradient, and that of x1."""

    def __init__(self, B: int, H: int, K: int, S: int, dtype: torch.dtype, device: torch.device) -> None:
        self.x = Augmented(B, H, K, S, dtype, device)
        self.t_GFS = torch.empty_like(self.x.psi_GFS)
        self.d1_GK1S = torch.empty(B * H, K + 1, S, dtype=dtype, device=device)

    def pull_back(self, first: int, stop: int, spare_GFS: torch.Tensor, *, query: bool) -> None:
        """Add what the features of positions first..stop owe, once their gradient stands in t."""
        if first < stop:
            self.x.pull_back(self.t_GFS, spare_GFS, self.d1_GK1S, first, stop, query=query)


def write_vectors(d1_GK1S: torch.Tensor, factor: float, out_BSHK: torch.Tensor) -> None:
    """Half the gradient of [1, factor x], positions innermost, to the gradient of x."""
    B, n, H, _ = out_BSHK.shape
    rows = d1_GK1S[:, 1:, :n].unflatten(0, (B, H)).permute(0, 3, 1, 2)
    if out_BSHK.dtype == rows.dtype:
        torch.mul(rows, 2 * factor, out=out_BSHK)
    else:
        out_BSHK.copy_(rows * (2 * factor))


def scan_backward(q, k, v, keep, y, divisor, saved, dy, d_sums, *, factor, chunk, had_initial):
    """(dq, dk, dv, gradient of the initial sums or None). `saved`, `divisor`: what `scan_forward` wrote."""
    B, L, H, K = q.shape
    V, dtype, device = v.shape[-1], accumulator_dtype(q.dtype), q.device
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=device) for x in (q, k, v))
    shape = (B, H, expanded_width(K), V + 1)
    initial = torch.empty(shape, dtype=dtype, device=device) if had_initial else None
    for rows, heads in groups(B, H, K, chunk, dtype):
        at = (rows, slice(None), heads)
        _group(
            q[at], k[at], v[at], None if keep is None else keep[rows], y[at], divisor.view(B, H, L)[rows, heads],
            [part[:, rows, heads] for part in saved], dy[at],
            None if d_sums is None else d_sums.view(shape)[rows, heads].flatten(0, 1), dq[at], dk[at], dv[at],
            None if initial is None else initial[rows, heads], factor, chunk)
    return dq, dk, dv, None if initial is None else initial.flatten(0, 1)


def _group(q, k, v, keep, y, divisor, saved, dy, d_sums, dq, dk, dv, initial, factor, chunk) -> None:
    """One group's gradients, written into dq, dk, dv and initial (views of the whole tensors)."""
    B, L, H, K = q.shape
    V, dtype, device = v.shape[-1], accumulator_dtype(q.dtype), q.device
    held = max(HELD // chunk, 1) * chunk
    size = min(held, L)
    queries, keys = (Side(B, H, K, size, dtype, device) for _ in range(2))
    values, g = (torch.empty(B * H, size, V, dtype=dtype, device=device) for _ in range(2))
    spare, one = torch.empty_like(queries.t_GFS), torch.ones((), dtype=dtype, device=device)
    reverse = reverse_z = None
    if d_sums is not None:
        reverse, reverse_z = gradient_from_public(d_sums.to(dtype), K)
    for begin in range((L - 1) // held * held, -1, -held):
        span = slice(begin, min(begin + held, L))
        n = span.stop - begin
        q1 = queries.x.fill(q[:, span], factor)
        k1 = keys.x.fill(k[:, span], factor, None if keep is None else keep[:, span])
        values.unflatten(0, (B, H))[:, :, :n] = v[:, span].transpose(1, 2)
        # gradient of [numerator, divisor]
        g_BHnV = g.unflatten(0, (B, H))[:, :, :n]
        torch.div(dy[:, span].transpose(1, 2), divisor[..., span].unsqueeze(-1), out=g_BHnV)
        gz = (g_BHnV * y[:, span].transpose(1, 2)).sum(-1).neg_().flatten(0, 1)
        reading = 0 if begin or initial is not None else min(chunk, n)  # queries from here on read sums
        read_later = n if reverse is not None else (n - 1) // chunk * chunk  # keys before here are read behind their chunk
        psi_q = queries.x.queries(n) if reading < n else None
        psi_k = keys.x.keys(n) if read_later else None
        for start in range((n - 1) // chunk * chunk, -1, -chunk):
            part = slice(start, min(start + chunk, n))
            g_, v_ = g[:, part], values[:, part]
            u = torch.bmm(q1[..., part].transpose(1, 2), k1[..., part])
            du = torch.bmm(g_, v_.transpose(1, 2)).add_(gz[:, part].unsqueeze(-1)).mul_(u).tril_()
            queries.d1_GK1S[..., part] = torch.bmm(k1[..., part], du.transpose(1, 2))
            keys.d1_GK1S[..., part] = torch.bmm(q1[..., part], du)
            dv_ = torch.bmm(torch.addcmul(one, u, u, out=u).tril_().transpose(1, 2), g_)
            if reverse is not None:
                torch.add(torch.bmm(reverse, v_.transpose(1, 2)), reverse_z.unsqueeze(-1), out=keys.t_GFS[..., part])
                dv_.baddbmm_(psi_k[..., part].transpose(1, 2), reverse)
            dv[:, begin + start : begin + part.stop] = dv_.unflatten(0, (B, H)).transpose(1, 2)
            if start >= reading:
                sums, z = (kept[(begin + start) // chunk].flatten(0, 1) for kept in saved)
                t = torch.bmm(sums, g_.transpose(1, 2))
                torch.addcmul(t, z.unsqueeze(-1), gz[:, None, part], out=queries.t_GFS[..., part])
                read = psi_q[..., part]
                read_z = torch.bmm(gz[:, None, part], read.transpose(1, 2)).squeeze(1)
                if reverse is None:
                    reverse, reverse_z = torch.bmm(read, g_), read_z
                else:
                    reverse.baddbmm_(read, g_)
                    reverse_z += read_z
        queries.pull_back(reading, n, spare, query=True)
        keys.pull_back(0, read_later, spare, query=False)
        write_vectors(queries.d1_GK1S, factor, dq[:, span])
        write_vectors(keys.d1_GK1S, factor, dk[:, span])
    if initial is not None:
        initial.copy_(gradient_to_public(reverse, reverse_z, K).view(initial.shape))


def key_sum_backward(k, v, keep, d_sums, *, factor):
    """(dk, dv) of `key_sum`."""
    B, M, H, K = k.shape
    dtype, device = accumulator_dtype(k.dtype), k.device
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=device) for x in (k, v))
    shape = (B, H, expanded_width(K), v.shape[-1] + 1)
    for rows, heads in groups(B, H, K, HELD, dtype):
        k_, v_, dk_, dv_ = (x[rows, :, heads] for x in (k, v, dk, dv))
        keys = Side(k_.shape[0], k_.shape[2], K, min(HELD, M), dtype, device)
        spare = torch.empty_like(keys.t_GFS)
        reverse, reverse_z = gradient_from_public(d_sums.view(shape)[rows, heads].flatten(0, 1).to(dtype), K)
        for begin in range(0, M, HELD):
            span = slice(begin, min(begin + HELD, M))
            n = span.stop - begin
            keys.x.fill(k_[:, span], factor, None if keep is None else keep[rows, span])
            keys.d1_GK1S.zero_()
            values = v_[:, span].transpose(1, 2).flatten(0, 1).to(dtype)
            torch.add(torch.bmm(reverse, values.transpose(1, 2)), reverse_z.unsqueeze(-1), out=keys.t_GFS[..., :n])
            read = torch.bmm(keys.x.keys(n).transpose(1, 2), reverse)
            keys.pull_back(0, n, spare, query=False)
            write_vectors(keys.d1_GK1S, factor, dk_[:, span])
            dv_[:, span] = read.unflatten(0, (k_.shape[0], -1)).transpose(1, 2)
    return dk, dv
