"""LAVO's mixer against loops over the formulas: q, k and v of the file arrive through the projections.

A token is [q, k, v] of the file, 3·16 wide; each projection picks its third, into the first heads of as many as it takes.
"""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers import lavo
from tests.golden.attn import attn, heads_second

HEADS, D, N = 2, 8, 29
TOLERANCE = {torch.float64: {"rtol": 1e-10, "atol": 1e-12}, torch.float32: {"rtol": 1e-4, "atol": 1e-5}}


def tensor(array):
    return torch.from_numpy(array)


def mixer_of(arrays, basis, dtype, **settings):
    """Heads 0 and 1 of six hold the file's; the others are zero. out_proj passes everything on."""
    width = 3 * HEADS * D
    config = lavo.Config(heads=3 * HEADS, slots=basis.shape[1], window=4, bias=False, **settings)
    mixer = registry.build(config, width, seed=0).to(dtype).eval()
    weights = {"out_proj.weight": torch.eye(width), "table": tensor(arrays["P"])[None]}
    for index, name in enumerate("qkv"):
        weights[f"proj_{name}.weight"] = torch.zeros(width, width)
        weights[f"proj_{name}.weight"][: HEADS * D, index * HEADS * D: (index + 1) * HEADS * D] = torch.eye(HEADS * D)
    weights["basis.weight"] = torch.cat((tensor(basis), mixer.basis.weight[HEADS:].detach().double()))
    mixer.load_state_dict(weights)
    return mixer


def tokens(arrays, dtype):
    return torch.cat([tensor(heads_second(arrays[name])).flatten(2) for name in "qkv"], -1).to(dtype)


def expected(arrays, name, dtype):
    return tensor(heads_second(arrays[name])).flatten(2).to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f64", "f32"])
@pytest.mark.parametrize("mode", ["parametrized", "fixed", "free", "qr"])
@pytest.mark.parametrize("dissection", ["token", "window", "none"])
def test_whole_rows(dissection, mode, dtype):
    _, arrays = attn("lavo_dissect_causal")
    mixer, x = mixer_of(arrays, arrays["basis"], dtype, dissection=dissection, basis_mode=mode), tokens(arrays, dtype)
    y = mixer(x, Layout.dense(2, N))
    torch.testing.assert_close(y[..., : HEADS * D], expected(arrays, f"out_{dissection}", dtype), **TOLERANCE[dtype])
    assert not y[..., HEADS * D:].any(), "heads without values"


@torch.no_grad()
def test_a_square_basis():
    _, arrays = attn("lavo_dissect_causal")
    y = mixer_of(arrays, arrays["basis_r8"], torch.float64)(tokens(arrays, torch.float64), Layout.dense(2, N))
    torch.testing.assert_close(y[..., : HEADS * D], expected(arrays, "out_token_r8", y.dtype), **TOLERANCE[y.dtype])


@torch.no_grad()
@pytest.mark.parametrize(("mask", "name"), [("valid_right", "rpad"), ("valid_left", "lpad")])
@pytest.mark.parametrize("dissection", ["token", "window", "none"])
def test_padded_rows(dissection, mask, name):
    """The file's left-padded windows do not begin at the first token, so that dissection window has none stored."""
    _, arrays = attn("lavo_dissect_causal")
    if f"out_{dissection}_{name}" not in arrays:
        assert dissection == "window"
        return
    x, real = tokens(arrays, torch.float64), tensor(arrays[mask])
    x[~real] = torch.nan
    y = mixer_of(arrays, arrays["basis"], x.dtype, dissection=dissection)(x, Layout.from_mask(real))
    torch.testing.assert_close(y[..., : HEADS * D], expected(arrays, f"out_{dissection}_{name}", x.dtype), **TOLERANCE[x.dtype])


@torch.no_grad()
@pytest.mark.parametrize("dissection", ["token", "window", "none"])
def test_pieces_steps_and_means(dissection):
    """Prefill, extend and steps give the rows, and the state's sum over its count the file's means."""
    _, arrays = attn("lavo_dissect_causal")
    mixer, x = mixer_of(arrays, arrays["basis"], torch.float64, dissection=dissection), tokens(arrays, torch.float64)
    state, outputs = mixer.init_state(2, x.dtype, "cpu"), []
    for part in x[:, :20].split((6, 1, 13), 1):
        y, state = mixer.extend(part, Layout.dense(2, part.shape[1]), state)
        outputs.append(y)
    for i in range(20, N):
        y, state = mixer.step(x[:, i], state)
        outputs.append(y[:, None])
        count = (i + 1) // 4 * 4 if dissection == "window" else i + 1
        if i + 1 < N:  # dissection window: what the next token reads
            mean = tensor(arrays[f"H_{dissection}"])[:, :, i + 1 if dissection == "window" else i]
            torch.testing.assert_close(state["sum"][:, :HEADS] / count, mean, **TOLERANCE[x.dtype])
    torch.testing.assert_close(torch.cat(outputs, 1)[..., : HEADS * D], expected(arrays, f"out_{dissection}", x.dtype),
                               **TOLERANCE[x.dtype])


@torch.no_grad()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f64", "f32"])
@pytest.mark.parametrize("dissection", ["token", "window", "none"])
def test_both_ways(dissection, dtype):
    """Windows to either side, one mean for all queries; with pads, over the real tokens alone."""
    _, arrays = attn("lavo_dissect_noncausal")
    mixer = mixer_of(arrays, arrays["basis"], dtype, dissection=dissection, mode="non_causal")
    x, real = tokens(arrays, dtype), tensor(arrays["valid_right"])
    y = mixer(x, Layout.dense(2, N))[..., : HEADS * D]
    torch.testing.assert_close(y, expected(arrays, f"out_{dissection}", dtype), **TOLERANCE[dtype])
    x[~real] = torch.nan
    y = mixer(x, Layout.from_mask(real))[..., : HEADS * D]
    torch.testing.assert_close(y, expected(arrays, f"out_{dissection}_rpad", dtype), **TOLERANCE[dtype])


def reader_of(arrays, basis, dtype, **settings):
    """Mode cross with projections that pass everything on: a target token is the file's q, a context token its x."""
    width, r = HEADS * D, basis.shape[1]
    mixer = registry.build(lavo.Config(heads=HEADS, slots=r, bias=False, mode="cross", **settings), width, seed=0).to(dtype)
    mixer.load_state_dict({"basis.weight": tensor(basis), **{
        f"{name}.weight": torch.eye(width) for name in ("proj_q", "proj_v", "out_proj")}})
    return mixer.eval()


@torch.no_grad()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["f64", "f32"])
@pytest.mark.parametrize(("name", "r", "scale", "key"), [
    ("lavo_cross", "", 1.0, ""), ("lavo_code_noncausal", "_r4", 1.0, "_r4_s1"),
    ("lavo_code_noncausal", "_r8", 1.0, "_r8_s1"), ("lavo_code_noncausal", "_r4", "inv_sqrt_d", "_r4_sd"),
    ("lavo_code_noncausal", "_r8", "inv_sqrt_d", "_r8_sd")])
def test_a_context(name, r, scale, key, dtype):
    """Queries of a context, all of it and where its pads are left out; the memory is the file's mean."""
    _, arrays = attn(name)
    mixer = reader_of(arrays, arrays[f"basis{r}"], dtype, scale_global=scale)
    targets, context = expected(arrays, "q", dtype), expected(arrays, "x", dtype)
    layout, real = Layout.dense(2, targets.shape[1]), tensor(arrays["valid"])
    memory = mixer.encode(context, Layout.dense(2, N))
    context[~real] = torch.nan
    padded = mixer.encode(context, Layout.from_mask(real))
    for held, pad in ((memory, ""), (padded, "_pad")):
        y = mixer.read(targets, layout, held)
        torch.testing.assert_close(y, expected(arrays, f"out{pad}{key}", dtype), **TOLERANCE[dtype])
        mean = held["sum"] / held.count_B[:, None, None]
        torch.testing.assert_close(mean, tensor(arrays[f"H{pad}{r}"]).to(dtype), **TOLERANCE[dtype])
