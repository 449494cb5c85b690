"""The selective scan against transformers' Mamba on its plain torch path, projections written out here."""

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf

from kernels.selective_scan import empty_state, selective_scan, selective_step
from kernels.short_conv import short_conv
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
RANK, SLOTS = 4, 8


def close(got, expected):
    np.testing.assert_allclose(got.double().numpy(), np.asarray(expected, np.float64), rtol=1e-4, atol=1e-5)


class Mamba:
    """The mixer's projections around the convolution and the scan, with the file's weights."""

    def __init__(self, arrays, prefix, dtype):
        self.w = {key.removeprefix(prefix): torch.from_numpy(a).to(dtype) for key, a in arrays.items() if key.startswith(prefix)}
        self.A_DN, self.taps = -self.w["A_log"].exp(), self.w["conv1d.weight"].squeeze(1)

    def enter(self, hidden):
        """What goes through the convolution, and the gate."""
        return nnf.linear(hidden, self.w["in_proj.weight"]).chunk(2, -1)

    def convolve(self, x, past=None):
        return nnf.silu(short_conv(x, self.taps, bias_D=self.w["conv1d.bias"], past_BPD=past))

    def scan_inputs(self, x):
        rank, entering, leaving = nnf.linear(x, self.w["x_proj.weight"]).split((RANK, SLOTS, SLOTS), -1)
        delta = nnf.softplus(nnf.linear(rank, self.w["dt_proj.weight"], self.w["dt_proj.bias"]))
        return x, delta, self.A_DN, entering, leaving

    def leave(self, y, gate):
        return nnf.linear(y * nnf.silu(gate), self.w["out_proj.weight"])


@DTYPES
@pytest.mark.parametrize("backend, chunk", [("naive", None), ("chunked", None), ("chunked", 7)])
def test_mixer(backend, chunk, dtype):
    _, arrays = attn("mamba_tf")
    mamba = Mamba(arrays, "w.", dtype)
    x, gate = mamba.enter(torch.from_numpy(arrays["x"]).to(dtype))
    y = selective_scan(*mamba.scan_inputs(mamba.convolve(x)), skip_D=mamba.w["D"], backend=backend, chunk=chunk)
    close(mamba.leave(y, gate), arrays["out"])


@DTYPES
@torch.no_grad()
def test_model_in_one_pass_and_token_by_token(dtype):
    """One layer with its norms: 8 tokens at once, then 12 single steps, give the published full pass."""
    meta, arrays = attn("mamba_model_tf")
    mamba = Mamba(arrays, "w.layers.0.mixer.", dtype)
    embedding, norm, last = (torch.from_numpy(arrays[f"w.{name}.weight"]).to(dtype) for name in ("embeddings", "layers.0.norm", "norm_f"))
    residual = embedding[torch.from_numpy(arrays["ids"])]

    def normed(x, weight):
        return nnf.rms_norm(x, (16,), weight, eps=1e-5)

    x, gate = mamba.enter(normed(residual, norm))
    split, D = meta["prefill"], mamba.A_DN.shape[0]

    def finish(y):
        return normed(residual + mamba.leave(y, gate), last)

    whole = selective_scan(*mamba.scan_inputs(mamba.convolve(x)), skip_D=mamba.w["D"])
    close(finish(whole), arrays["out"])
    state = empty_state(2, D, SLOTS, dtype)
    y, state = selective_scan(
        *mamba.scan_inputs(mamba.convolve(x[:, :split])), skip_D=mamba.w["D"], state=state, return_state=True)
    outputs = [y]
    for t in range(split, x.shape[1]):
        token = mamba.convolve(x[:, t : t + 1], past=x[:, t - 3 : t])
        now, delta, A_DN, entering, leaving = mamba.scan_inputs(token)
        y, state = selective_step(now[:, 0], delta[:, 0], A_DN, entering[:, 0], leaving[:, 0], state, skip_D=mamba.w["D"])
        outputs.append(y.unsqueeze(1))
    close(finish(torch.cat(outputs, 1)), arrays["out"])
