"""The selective scan in chunks of tokens: memory linear in length, temporaries of one chunk, a hand-written backward.

Design: a chunk's decays exp(delta A) and writes are formed at once, the recurrence runs through them in place, and one
small product a token reads them out. Only exponentials of non-positive numbers are taken. The backward keeps the state
before each chunk and forms the rest again. Derivation: README.md.

Shape letters: C tokens of a chunk; inside a chunk time comes first and channels last, (C, B, N, D), so that each token is
one contiguous block and every product runs along D.
"""

from __future__ import annotations

import torch

from kernels.gradients import once_differentiable
from kernels.selective_scan.recurrence import accumulate
from kernels.taylor.chunked import differentiable
from kernels.taylor.features import autocast_off

BLOCK = {"cpu": 2**19}  # numbers in one temporary: this stays in a CPU's cache (measured, README.md)
LARGE_BLOCK = 2**24


def default_chunk(B: int, D: int, N: int, device: torch.device) -> int:
    """Tokens whose (C, B, N, D) temporaries hold a block of numbers."""
    small, large = (8, 64) if device.type in BLOCK else (16, 512)
    return min(max(BLOCK.get(device.type, LARGE_BLOCK) // max(B * D * N, 1), small), large)


def selective_scan_chunked(x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, skip_D, state, dtype, chunk=None):
    """See `kernels.selective_scan.selective_scan`; pads have delta 0. Returns (y_BLD, last state)."""
    B, _, D = x_BLD.shape
    chunk = chunk or default_chunk(B, D, A_DN.shape[1], x_BLD.device)
    needs = differentiable(x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, skip_D, state)
    return SelectiveScan.apply(x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, skip_D, state, dtype, chunk, needs)


class Chunk:
    """One chunk's inputs, time first, in the accumulator dtype; and the buffers that all chunks of a row share."""

    def __init__(self, x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, dtype, chunk):
        B, L, D = x_BLD.shape
        self.A_ND = A_DN.T.to(dtype).contiguous()
        self.row = x_BLD, delta_BLD, input_BLN, output_BLN
        self.decay = torch.empty(min(chunk, L), B, self.A_ND.shape[0], D, dtype=dtype, device=x_BLD.device)
        self.states = torch.empty_like(self.decay)

    def load(self, part: slice) -> None:
        self.x, self.delta, self.entering, self.leaving = (
            t[:, part].transpose(0, 1).to(self.A_ND.dtype).contiguous() for t in self.row)
        self.write = self.delta * self.x
        self.size = self.x.shape[0]

    def run(self, before_BND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(decays, states after each token), both (C, B, N, D) in the shared buffers."""
        decay, states = self.decay[: self.size], self.states[: self.size]
        torch.mul(self.delta.unsqueeze(2), self.A_ND, out=decay).exp_()
        torch.mul(self.entering.unsqueeze(3), self.write.unsqueeze(2), out=states)
        states[0].addcmul_(decay[0], before_BND)
        accumulate(decay, states)
        return decay, states


def over_slots(weights_CBN: torch.Tensor, x_CBND: torch.Tensor) -> torch.Tensor:
    """Sum over N: (C, B, D)."""
    C, B, N, D = x_CBND.shape
    return torch.bmm(weights_CBN.reshape(C * B, 1, N), x_CBND.view(C * B, N, D)).view(C, B, D)


def over_channels(x_CBND: torch.Tensor, weights_CBD: torch.Tensor, spare_CBND: torch.Tensor) -> torch.Tensor:
    """Sum over D: (C, B, N); a product and a sum, since a batch of matrix-vector products is six times slower."""
    return torch.mul(x_CBND, weights_CBD.unsqueeze(2), out=spare_CBND).sum(3)


class SelectiveScan(torch.autograd.Function):
    """The scan over a row from an initial state (or None): returns (y_BLD, last state)."""

    @staticmethod
    def forward(ctx, x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, skip_D, initial, dtype, chunk, needs):
        B, L, D = x_BLD.shape
        work = Chunk(x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, dtype, chunk)
        N = work.A_ND.shape[0]
        h = torch.zeros(B, N, D, dtype=dtype, device=x_BLD.device)
        if initial is not None:
            h.copy_(initial.transpose(1, 2))
        y_BLD, before = torch.empty_like(x_BLD, memory_format=torch.contiguous_format), []
        for start in range(0, L, chunk):
            work.load(slice(start, start + chunk))
            if needs:
                before.append(h.clone())
            _, states = work.run(h)
            y = over_slots(work.leaving, states)
            if skip_D is not None:
                y.addcmul_(work.x, skip_D.to(dtype))
            y_BLD[:, start : start + chunk] = y.transpose(0, 1)
            h.copy_(states[-1])
        if needs:
            ctx.save_for_backward(x_BLD, delta_BLD, A_DN, input_BLN, output_BLN, skip_D, initial, *before)
        ctx.settings = (dtype, chunk)
        ctx.set_materialize_grads(False)
        return y_BLD, h.transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    @autocast_off
    def backward(ctx, dy_BLD, d_state):
        *given, skip_D, initial, = ctx.saved_tensors[:7]
        before, (dtype, chunk) = ctx.saved_tensors[7:], ctx.settings
        x_BLD, delta_BLD, A_DN, input_BLN, output_BLN = given
        work = Chunk(*given, dtype, chunk)
        A_ND, dA_ND = work.A_ND, torch.zeros_like(work.A_ND)
        dx, d_delta, d_input, d_output = (torch.empty_like(t, memory_format=torch.contiguous_format)
                                          for t in (x_BLD, delta_BLD, input_BLN, output_BLN))
        d_skip = None if skip_D is None else torch.zeros_like(skip_D, dtype=dtype)
        dy_BLD = torch.zeros_like(x_BLD) if dy_BLD is None else dy_BLD
        gradient, spare = torch.empty_like(work.decay), torch.empty_like(work.decay)
        # gradient of the state after the chunk
        carry = torch.zeros_like(before[0]) if d_state is None else d_state.transpose(1, 2).to(
            dtype, copy=True, memory_format=torch.contiguous_format)  # written below, and the gradient given is not ours
        for index in range(len(before) - 1, -1, -1):
            part = slice(index * chunk, (index + 1) * chunk)
            work.load(part)
            decay, states = work.run(before[index])
            g, t = gradient[: work.size], spare[: work.size]
            dy = dy_BLD[:, part].transpose(0, 1).to(dtype).contiguous()
            d_output[:, part] = over_channels(states, dy, t).transpose(0, 1)
            torch.mul(work.leaving.unsqueeze(3), dy.unsqueeze(2), out=g)
            g[-1].add_(carry)
            accumulate(decay, g, reverse=True)
            torch.mul(decay[0], g[0], out=carry)
            d_write = over_slots(work.entering, g)
            d_input[:, part] = over_channels(g, work.write, t).transpose(0, 1)
            # gradient of delta A: what the decay multiplied, times the decay
            g.mul_(decay)
            g[0].mul_(before[index])
            g[1:].mul_(states[:-1])
            dA_ND += torch.mul(g, work.delta.unsqueeze(2), out=t).sum((0, 1))
            d_delta[:, part] = (torch.mul(g, A_ND, out=t).sum(2) + d_write * work.x).transpose(0, 1)
            dx_ = d_write * work.delta
            if skip_D is not None:
                dx_.addcmul_(dy, skip_D.to(dtype))
                d_skip += (dy * work.x).sum((0, 1))
            dx[:, part] = dx_.transpose(0, 1)
        return (dx, d_delta, dA_ND.T.to(A_DN.dtype), d_input, d_output, None if d_skip is None else d_skip.to(skip_D.dtype),
                None if initial is None else carry.transpose(1, 2), None, None, None)
