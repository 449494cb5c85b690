"""The gated scan against flash-linear-attention's plain loops and transformers' Mamba-2, its mixer written out here."""

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf

from kernels.gated_scan import gated_scan, gated_step
from kernels.short_conv import short_conv, short_conv_step
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
FORMS = pytest.mark.parametrize("backend, chunk", [("naive", None), ("chunked", None), ("chunked", 16), ("chunked", 5)])


def close(got, expected):
    np.testing.assert_allclose(got.double().numpy(), np.asarray(expected, np.float64), rtol=1e-4, atol=1e-5)


def tensors(arrays, names, dtype):
    return [torch.from_numpy(arrays[name]).to(dtype) for name in names]


def steps(q, k, v, log_decay, state):
    """The same row, one token at a time."""
    outputs = []
    for inputs in zip(*(x.unbind(1) for x in (q, k, v, log_decay))):
        y, state = gated_step(*inputs, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@DTYPES
@FORMS
@torch.no_grad()
def test_gated_linear_attention(backend, chunk, dtype):
    _, arrays = attn("gla_fla")
    q, k, v, log_decay, start = tensors(arrays, ("q", "k", "v", "gk", "initial_state"), dtype)
    y, state = gated_scan(q, k, v, log_decay, backend=backend, chunk=chunk, return_state=True)
    close(y, arrays["out"])
    close(state, arrays["final_state"])
    y, state = gated_scan(q, k, v, log_decay, state=start.clone(), backend=backend, chunk=chunk, return_state=True)
    close(y, arrays["out_with_initial"])
    close(state, arrays["final_with_initial"])
    y, state = steps(q, k, v, log_decay, start.clone())
    close(y, arrays["out_with_initial"])
    close(state, arrays["final_with_initial"])


@DTYPES
@FORMS
@torch.no_grad()
def test_one_decay_a_head(backend, chunk, dtype):
    _, arrays = attn("simple_gla_fla")
    q, k, v, log_decay = tensors(arrays, ("q", "k", "v", "g"), dtype)
    y, state = gated_scan(q, k, v, log_decay, backend=backend, chunk=chunk, return_state=True)
    close(y, arrays["out"])
    close(state, arrays["final_state"])
    y, state = steps(q, k, v, log_decay, torch.zeros_like(state))
    close(y, arrays["out"])
    close(state, arrays["final_state"])


class Mamba2:
    """The mixer around the scan: q is C, k is delta B, v is x, the log-decay is delta A; skip D, gate, grouped norm."""

    def __init__(self, meta, arrays, dtype):
        self.w = {key.removeprefix("w."): torch.from_numpy(a).to(dtype) for key, a in arrays.items() if key[:2] == "w."}
        self.heads, self.groups, self.states, self.inner = (meta[x] for x in ("heads", "n_groups", "d_state", "d_inner"))
        self.taps, self.eps = self.w["conv1d.weight"].squeeze(1), meta["norm_eps"]

    def enter(self, hidden):
        """(gate, what goes through the convolution, step before softplus)."""
        return nnf.linear(hidden, self.w["in_proj.weight"]).split((self.inner, self.taps.shape[0], self.heads), -1)

    def scan_inputs(self, convolved, step):
        x, entering, leaving = nnf.silu(convolved).split(
            (self.inner, self.groups * self.states, self.groups * self.states), -1)
        delta = nnf.softplus(step + self.w["dt_bias"])
        k, q = (part.unflatten(-1, (self.groups, self.states)).repeat_interleave(self.heads // self.groups, -2)
                for part in (entering, leaving))
        return q, k * delta.unsqueeze(-1), x.unflatten(-1, (self.heads, -1)), -delta * self.w["A_log"].exp()

    def leave(self, y, v, gate):
        y = (y + self.w["D"].unsqueeze(-1) * v).flatten(-2) * nnf.silu(gate)
        grouped = y.unflatten(-1, (self.groups, -1))
        grouped = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)
        return nnf.linear(grouped.flatten(-2) * self.w["norm.weight"], self.w["out_proj.weight"])


@DTYPES
@FORMS
@torch.no_grad()
def test_mamba2(backend, chunk, dtype):
    meta, arrays = attn("mamba2_tf")
    mixer = Mamba2(meta, arrays, dtype)
    gate, x, step = mixer.enter(torch.from_numpy(arrays["x"]).to(dtype))
    inputs = mixer.scan_inputs(short_conv(x, mixer.taps, bias_D=mixer.w["conv1d.bias"]), step)
    y = gated_scan(*inputs, scale=1.0, backend=backend, chunk=chunk)
    close(mixer.leave(y, inputs[2], gate), arrays["out"])


@DTYPES
@torch.no_grad()
def test_mamba2_prefill_then_steps(dtype):
    meta, arrays = attn("mamba2_tf")
    mixer = Mamba2(meta, arrays, dtype)
    gate, x, step = mixer.enter(torch.from_numpy(arrays["x"]).to(dtype))
    bias, read = mixer.w["conv1d.bias"], 17
    inputs = mixer.scan_inputs(short_conv(x[:, :read], mixer.taps, bias_D=bias), step[:, :read])
    y, state = gated_scan(*inputs, scale=1.0, return_state=True)
    outputs, past = [mixer.leave(y, inputs[2], gate[:, :read])], x[:, read - mixer.taps.shape[1] + 1 : read]
    for t in range(read, x.shape[1]):
        convolved, past = short_conv_step(x[:, t], mixer.taps, past, bias_D=bias)
        inputs = mixer.scan_inputs(convolved, step[:, t])
        y, state = gated_step(*inputs, state, scale=1.0)
        outputs.append(mixer.leave(y, inputs[2], gate[:, t]).unsqueeze(1))
    close(torch.cat(outputs, 1), arrays["out"])
