"""LAVO's branches and their combination against loops over the formulas, in float64 and in float32.

The files mark real tokens by `valid`. A document is its real tokens in order, so pads before it are taken off and rows
are compared slot by slot of the document; the files' left-padded windows stand on absolute indices, which a sliding
window does not notice.
"""

import pytest
import torch

from kernels.orthogonal_memory import compress, lavo, orthogonal_memory, read_memory
from kernels.window import window
from tests.golden.attn import attn, heads_second

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


class Files:
    """One file's arrays, our axes, at a precision; and rows aligned by a mask."""

    def __init__(self, name, dtype):
        self.meta, self.arrays = attn(name)
        self.dtype = dtype

    def __getitem__(self, name):
        array = self.arrays[name]
        per_token = array.ndim == 4 and name not in ("basis",)
        return torch.from_numpy(heads_second(array) if per_token else array).to(self.dtype)

    def aligned(self, mask, *names):
        """(lengths_B, tensors with each row's real tokens first); NaN would show if a pad were read, so pads are 1e3."""
        valid = torch.from_numpy(self.arrays[mask])
        lengths_B = valid.sum(1)
        out = []
        for name in names:
            tensor = torch.full_like(self[name], 1e3)
            for b, n in enumerate(lengths_B.tolist()):
                tensor[b, :n] = self[name][b, valid[b]]
            out.append(tensor)
        return lengths_B, out

    def same(self, got, name, mask=None):
        """Against an array of the file; with a mask, aligned real tokens against the file's real slots."""
        expected = self[name]
        if mask is None:
            self.close(got, expected)
            return
        valid = torch.from_numpy(self.arrays[mask])
        for b, n in enumerate(valid.sum(1).tolist()):
            self.close(got[b, :n], expected[b, valid[b]])

    def close(self, got, expected):
        rtol, atol = (1e-10, 1e-12) if self.dtype == torch.float64 else (1e-4, 1e-5)
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


@BACKENDS
@DTYPES
def test_code_of_one_context(dtype, backend):
    f = Files("lavo_code_noncausal", dtype)
    context_B = torch.from_numpy(f.arrays["valid"]).sum(1)
    for r in (4, 8):
        basis = f[f"basis_r{r}"]
        for name, scale in (("s1", 1.0), ("sd", 8**-0.5)):
            y, state = orthogonal_memory(f["q"], f["x"], basis, causal=False, scale=scale, backend=backend,
                                         return_state=True)
            f.same(y, f"out_r{r}_{name}")
            _, (x,) = f.aligned("valid", "x")
            padded, padded_state = orthogonal_memory(f["q"], x, basis, causal=False, context_B=context_B, scale=scale,
                                                     backend=backend, return_state=True)
            f.same(padded, f"out_pad_r{r}_{name}")
        f.same(state.sum_BHR / state.count_B[:, None, None], f"H_r{r}")
        f.same(padded_state.sum_BHR / padded_state.count_B[:, None, None], f"H_pad_r{r}")


@BACKENDS
@DTYPES
def test_code_causal(dtype, backend):
    f = Files("lavo_code_causal", dtype)
    for r in (4, 8):
        for prefix, scale in (("out", 1.0), ("out_sd", 8**-0.5)):
            f.same(orthogonal_memory(f["q"], f["x"], f[f"basis_r{r}"], scale=scale, backend=backend), f"{prefix}_r{r}")
    for n in (1, 14, 29):
        _, state = orthogonal_memory(f["q"][:, :n], f["x"][:, :n], f["basis_r4"], backend=backend, return_state=True)
        f.close(state.sum_BHR / n, f["H_r4"][:, n - 1])


@BACKENDS
@DTYPES
@pytest.mark.parametrize(("mask", "name"), [("valid_left", "lpad"), ("valid_right", "rpad")])
def test_code_causal_padded(mask, name, dtype, backend):
    f = Files("lavo_code_causal", dtype)
    lengths_B, (q, x) = f.aligned(mask, "q", "x")
    y, state = orthogonal_memory(q, x, f["basis_r4"], lengths_B=lengths_B, backend=backend, return_state=True)
    f.same(y, f"out_{name}_r4", mask)
    assert torch.equal(state.count_B, lengths_B)
    last = f.arrays[f"H_{name}_r4"][:, :, -1]  # it stays as it is over the pads at the end
    f.close(state.sum_BHR / lengths_B[:, None, None], torch.from_numpy(last).to(dtype))


@BACKENDS
@DTYPES
@pytest.mark.parametrize(("reach", "name"), [("causal", "causal"), ("both", "noncausal"), ("own", "ownwindow")])
def test_local_with_positions(reach, name, dtype, backend):
    f = Files("lavo_local_epe", dtype)
    q, k, v, table = f["q"], f["k"], f["v"], f["P"][None]
    f.same(window(q, k, v, window=4, reach=reach, table=table, backend=backend), f"out_{name}")
    f.same(window(q, k, v, window=4, reach=reach, table=table.expand(2, -1), backend=backend), f"out_{name}")
    f.same(window(q, k, v, window=4, reach=reach, backend=backend), f"out_{name}_noepe")
    lengths_B, rows = f.aligned("valid_right", "q", "k", "v")
    f.same(window(*rows, window=4, reach=reach, table=table, lengths_B=lengths_B, backend=backend), f"out_{name}_rpad",
           "valid_right")
    if reach == "causal":
        lengths_B, rows = f.aligned("valid_left", "q", "k", "v")
        f.same(window(*rows, window=4, table=table, lengths_B=lengths_B, backend=backend), "out_causal_lpad", "valid_left")


@BACKENDS
@DTYPES
@pytest.mark.parametrize("dissection", ["token", "window", "none"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
def test_dissections(causal, dissection, dtype, backend):
    f = Files("lavo_dissect_causal" if causal else "lavo_dissect_noncausal", dtype)
    settings = {"window": 4, "table": f["P"][None], "dissection": dissection, "causal": causal, "backend": backend}
    f.same(lavo(f["q"], f["k"], f["v"], f["basis"], **settings), f"out_{dissection}")
    if causal and dissection == "token":
        f.same(lavo(f["q"], f["k"], f["v"], f["basis_r8"], **settings), "out_token_r8")
    # "window" is not stored left-padded: there the files' windows would not begin at the first token
    for mask, name in (("valid_right", "rpad"), ("valid_left", "lpad")):
        if f"out_{dissection}_{name}" in f.arrays:
            lengths_B, rows = f.aligned(mask, "q", "k", "v")
            f.same(lavo(*rows, f["basis"], lengths_B=lengths_B, **settings), f"out_{dissection}_{name}", mask)
    reach = "own" if dissection == "window" else "causal" if causal else "both"
    near = window(f["q"], f["k"], f["v"], window=4, reach="causal" if causal else "both", table=f["P"][None], backend=backend)
    f.same(near, "local")
    x = f["v"] if dissection == "none" else window(
        f["q"], f["k"], f["v"], window=4, reach=reach, table=f["P"][None], backend=backend)
    far, state = orthogonal_memory(f["q"], x, f["basis"], causal=causal, backend=backend, return_state=True,
                                   closed=4 if causal and dissection == "window" else None)
    f.same(far, f"global_{dissection}")
    mean = f.arrays[f"H_{dissection}"]
    mean = torch.from_numpy(mean[:, :, -1] if causal else mean).to(dtype)
    f.close(state.sum_BHR / state.count_B[:, None, None], mean)


@BACKENDS
@DTYPES
def test_cross(dtype, backend):
    f = Files("lavo_cross", dtype)
    f.same(orthogonal_memory(f["q"], f["x"], f["basis"], causal=False, backend=backend), "out")
    context_B, (x,) = f.aligned("valid", "x")
    f.same(orthogonal_memory(f["q"], x, f["basis"], causal=False, context_B=context_B, backend=backend), "out_pad")
    memory = compress(x, f["basis"], lengths_B=context_B)
    f.same(read_memory(f["q"], f["basis"], memory), "out_pad")
    f.same(memory.sum_BHR / memory.count_B[:, None, None], "H_pad")

