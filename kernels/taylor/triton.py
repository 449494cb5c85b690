"""Taylor and prefix attention on GPUs: two kernels forward (sums before each segment, then all outputs), five backward.

Design: features live in registers only; what a row leaves in memory is one state every SEGMENT tokens, made again in
the backward rather than kept. The encoder of a prefix is one more pass of the first kernel, whose result starts the row.
Derivations, bytes and the compile table: README.md.
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.taylor.features import autocast_off
from kernels.taylor.state import TaylorState
from kernels.taylor.triton_blocks import from_blocks, to_blocks
from kernels.taylor.triton_config import SEGMENT
from kernels.taylor.triton_launch import Call, Sums

LARGEST_TILE = 128  # rows: offsets within a tile are int32


def attend(
    q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK=None, v_enc_BMHV=None, prefix_B=None, *, state, lengths_B, scale, eps, chunk,
    return_state,
) -> tuple[torch.Tensor, TaylorState | None]:
    """See `kernels.taylor.taylor` and `kernels.prefix.prefix`. `chunk`: tokens between boundary sums, by 64."""
    B, _, H, K = q_BLHK.shape
    call = Call(B, H, K, v_BLHV.shape[-1], scale, eps, SEGMENT if chunk is None else max(1, -(-chunk // 64)) * 64,
                v_BLHV.dtype, v_BLHV.device)
    rows = (None if x is None else readable(x) for x in (q_BLHK, k_BLHK, v_BLHV, k_enc_BMHK, v_enc_BMHV))
    sizes = (q_BLHK.shape[1], None if k_enc_BMHK is None else k_enc_BMHK.shape[1])
    # kernels read as many tokens as they are told
    counts = (None if x is None else x.clamp(0, size).contiguous() for x, size in zip((lengths_B, prefix_B), sizes))
    y_BLHV, kv, z = Attention.apply(*rows, *(state or (None, None)), *counts, call, return_state)
    return y_BLHV, TaylorState(kv, z) if return_state else None


def readable(x: torch.Tensor) -> torch.Tensor:
    """x as the kernels can address it: neighbours in the last dimension, int32 offsets within a tile."""
    return x if x.stride(-1) == 1 and x.stride(1) * LARGEST_TILE < 2**31 else x.contiguous()


def sums_before(
    call: Call, k, v, k_enc, v_enc, kv, z, lengths, prefix, want_last: bool,
) -> tuple[Sums | None, Sums | None]:
    """What queries read of the tokens before their segment, None if nothing; with `want_last` the row's last sums."""
    first = None if kv is None else to_blocks(kv, z, call.K, call.scale)
    if k_enc is not None:
        _, first = call.scan(k_enc, v_enc, prefix, first, before=False, last=True)
    many = call.segments(k.shape[1]) > 1
    before, last = None, None
    if many or want_last:
        before, last = call.scan(k, v, lengths, first, before=many, last=want_last)
    return before if many else call.as_boundary(first), last


class Attention(torch.autograd.Function):
    """(y, last kv, last z) of rows that may start with a state and with the sum of an encoder."""

    @staticmethod
    def forward(ctx, q, k, v, k_enc, v_enc, kv, z, lengths, prefix, call: Call, want_last: bool):
        before, last = sums_before(call, k, v, k_enc, v_enc, kv, z, lengths, prefix, want_last)
        y, divisor = call.outputs(q, k, v, lengths, before)
        ctx.save_for_backward(q, k, v, k_enc, v_enc, kv, z, lengths, prefix, y, divisor)
        ctx.call = call
        ctx.set_materialize_grads(False)
        return y, *(from_blocks(*last, (call.B, call.H, call.K, call.V), call.scale) if want_last else (None, None))

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy, d_kv, d_z):
        q, k, v, k_enc, v_enc, kv, z, lengths, prefix, y, divisor = ctx.saved_tensors
        call: Call = ctx.call
        many = call.segments(q.shape[1]) > 1
        g, gz = call.output_gradient(torch.zeros_like(y) if dy is None else readable(dy), y, divisor, lengths)
        before, _ = sums_before(call, k, v, k_enc, v_enc, kv, z, lengths, prefix, False)
        dq = call.query_gradient(q, k, v, g, gz, lengths, before)
        behind = state_gradient(call, d_kv, d_z)
        after, total = call.as_boundary(behind), behind
        whole = kv is not None or k_enc is not None
        if many or whole:
            after_many, total = call.scan(q, g, lengths, behind, before=many, last=whole, weight=gz)
            after = after_many if many else after
        dk, dv = call.key_gradient(k, v, lengths, after, (q, g, gz))
        encoder, initial = (None, None), (None, None)
        if k_enc is not None:
            encoder = call.key_gradient(k_enc, v_enc, prefix, call.as_boundary(total))
        if kv is not None:
            initial = from_blocks(*total, (call.B, call.H, call.K, call.V), call.scale)
        return dq, dk, dv, *encoder, *initial, None, None, None, None


def state_gradient(call: Call, d_kv: torch.Tensor | None, d_z: torch.Tensor | None) -> Sums | None:
    """What the gradients of a last state are to the reverse sums: their start. None if there are none."""
    if d_kv is None and d_z is None:
        return None
    if d_kv is None:
        d_kv = d_z.new_zeros(*d_z.shape, call.V)
    return to_blocks(d_kv, d_kv.new_zeros(d_kv.shape[:-1]) if d_z is None else d_z, call.K, call.scale)
