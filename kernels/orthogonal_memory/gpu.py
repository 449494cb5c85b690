"""The memory's Triton forms as operations: forward by the kernel, backward by the torch forms over the same inputs."""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.orthogonal_memory.closed import closed_memory
from kernels.orthogonal_memory.read import read
from kernels.orthogonal_memory.scan import causal_memory
from kernels.orthogonal_memory.state import MemoryState, compress, empty_state, read_memory
from kernels.orthogonal_memory.triton import block_sums, last_sums, read_tokens, settings
from kernels.taylor.features import autocast_off, first_tokens
from kernels.window.past import with_past
from kernels.window.triton import window_triton


class Running(torch.autograd.Function):
    """(y, sums after the last real token) of a causal memory."""

    @staticmethod
    def forward(ctx, q, x, basis, sum_BHR, count_B, lengths_B, scale):
        ctx.save_for_backward(q, x, basis, sum_BHR, count_B, lengths_B)
        ctx.scale = scale
        C = settings(q, basis, False)["C"]
        before = block_sums(x, basis, sum_BHR, C)
        y = read_tokens(q, x, basis, before, count_B, running=True, scale=scale)
        return y, last_sums(x, basis, before, lengths_B, C)

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy, dsum):
        *inputs, count_B, lengths_B = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in inputs]
            keep_BL = first_tokens(lengths_B, dy.shape[1])
            outputs = causal_memory(*leaves, count_B, keep_BL, False, ctx.scale)
        return *torch.autograd.grad(outputs, leaves, (dy, dsum)), None, None, None


class Given(torch.autograd.Function):
    """y of queries that share means in groups."""

    @staticmethod
    def forward(ctx, q, basis, mean_BHNR, group, scale):
        ctx.save_for_backward(q, basis, mean_BHNR)
        ctx.settings = (group, scale)
        count_B = torch.zeros(q.shape[0], dtype=torch.int32, device=q.device)
        return read_tokens(q, q, basis, mean_BHNR, count_B, running=False, group=group, scale=scale)

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy):
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            y = read(*leaves, *ctx.settings)
        return *torch.autograd.grad(y, leaves, dy), None, None


class Fused(torch.autograd.Function):
    """(y, sums after the last real token) of window and memory of raw values together; k, v hold the past first."""

    @staticmethod
    def forward(ctx, q, k, v, basis, table, sum_BHR, count_B, past_B, lengths_B, window, scale_local, scale_global):
        ctx.save_for_backward(q, k, v, basis, table, sum_BHR, count_B, past_B, lengths_B)
        ctx.settings = (window, scale_local, scale_global)
        P, C = k.shape[1] - q.shape[1], settings(q, basis, True)["C"]
        before = block_sums(v[:, P:], basis, sum_BHR, C)
        y = read_tokens(
            q, v, basis, before, count_B, running=True, scale=scale_global, k_BNHK=k, window=window, table=table,
            missing_B=(P - past_B).clamp(min=0).int() if P else None, scale_local=scale_local)
        return y, last_sums(v[:, P:], basis, before, lengths_B, C)

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy, dsum):
        *inputs, count_B, past_B, lengths_B = ctx.saved_tensors
        window, scale_local, scale_global = ctx.settings
        with torch.enable_grad():
            leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
            q, k, v, basis, table, sum_BHR = leaves
            P = k.shape[1] - q.shape[1]
            near = window_triton(q, k[:, P:], v[:, P:], window=window, reach="causal", table=table, past_k=k[:, :P],
                                 past_v=v[:, :P], past_B=past_B, scale=scale_local)
            far, sums = causal_memory(q, v[:, P:], basis, sum_BHR, count_B, first_tokens(lengths_B, q.shape[1]), False,
                                      scale_global)
            y = (near + far) / 2
        found = [leaf for leaf in leaves if leaf is not None]
        gradients = iter(torch.autograd.grad((y, sums), found, (dy, dsum)))
        return *(None if leaf is None else next(gradients) for leaf in leaves), *(None,) * 6


def fused(q, k, v, basis, *, local, past, memory, lengths_B) -> tuple[torch.Tensor, MemoryState]:
    """LAVO with raw values in memory, causal: one kernel forward."""
    B, L, H, K = q.shape
    k, v = with_past(k, v, **past)
    state = memory["state"] or empty_state(B, H, basis.shape[1], q.dtype, q.device)
    scale_local = K**-0.5 if local["scale"] is None else local["scale"]
    y, sums = Fused.apply(q, k, v, basis, local["table"], state.sum_BHR, state.count_B, past["past_B"], lengths_B,
                          local["window"], scale_local, memory["scale"])
    return y.to(v.dtype), MemoryState(sums, state.count_B + (L if lengths_B is None else lengths_B))


def memory_triton(
    q_BLHK, x_BMHK, basis_HRK, *, causal, closed, lengths_B, context_B, state, scale,
) -> tuple[torch.Tensor, MemoryState]:
    """See `kernels.orthogonal_memory.orthogonal_memory`."""
    B, L, H, _ = q_BLHK.shape
    if not causal:
        state = compress(x_BMHK, basis_HRK, lengths_B=context_B, state=state)
        return read_memory(q_BLHK, basis_HRK, state, scale=scale, reader=Given.apply), state
    state = state or empty_state(B, H, basis_HRK.shape[1], q_BLHK.dtype, q_BLHK.device)
    if closed is not None:
        return closed_memory(q_BLHK, x_BMHK, basis_HRK, state, window=closed, shared=False, lengths_B=lengths_B,
                             scale=scale, reader=Given.apply)
    y, sums = Running.apply(q_BLHK, x_BMHK, basis_HRK, state.sum_BHR, state.count_B, lengths_B, scale)
    return y, MemoryState(sums, state.count_B + (L if lengths_B is None else lengths_B))
