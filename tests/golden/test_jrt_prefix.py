"""Prefix linear attention against the released layer: masks, lengths around M, prefill and decode with states."""

import numpy as np
import pytest
import torch

from kernels.layout import Layout
from models import registry
from tests.golden.reference import fill, reference, symmetric, tensor

NAMES = {"proj_q": "W_proj_q", "proj_k": "W_proj_k", "proj_v": "W_proj_v", "proj_k_enc": "W_proj_k_enc",
         "proj_v_enc": "W_proj_v_enc", "out_proj": "W_out_proj"}
FEATURE_DIM = 4
DTYPES = pytest.mark.parametrize(("dtype", "suffix", "tolerance"), [(torch.float64, "64", 1e-10), (torch.float32, "32", 2e-5)],
                                 ids=["f64", "f32"])


def prefix_layer(golden, dtype):
    config = registry.config_class("prefix")(heads=2, feature_dim=FEATURE_DIM)
    mixer = registry.build(config, 32, seed=0).to(dtype).eval()
    fill(mixer, {f"{ours}.weight": golden[theirs] for ours, theirs in NAMES.items()})
    return mixer


def close(got, expected, tolerance):
    expected = tensor(expected, torch.float64)
    assert got.shape == expected.shape
    assert (got.double() - expected).abs().max().item() <= tolerance


@DTYPES
@pytest.mark.parametrize(("length", "name"), [(5, "l_lt_M_nopad"), (8, "l_eq_M"), (13, "l_gt_M")])
@torch.no_grad()
def test_forward(length, name, dtype, suffix, tolerance):
    """m = min(M, L)."""
    golden = reference("pla_forward")
    mixer, x_BLD = prefix_layer(golden, dtype), tensor(golden[f"x{length}"], dtype)
    y_BLD = mixer(x_BLD, Layout.dense(2, length).with_prefix(int(golden["M"])))
    close(y_BLD, golden[f"{name}__y{suffix}"], tolerance)


@torch.no_grad()
def test_exact_mask():
    """Left padding is as if it were not there: the bare prompts are the prefix."""
    golden = reference("pla_forward")
    mask = torch.from_numpy(golden["mask_leftpad"]).bool()
    mixer, x_BLD = prefix_layer(golden, torch.float64), tensor(golden["x8"])
    layout = Layout.from_mask(mask).with_prefix(int(golden["M"]))
    y_BLD = mixer(torch.where(mask[..., None], x_BLD, torch.nan), layout)
    expected = torch.where(mask[..., None], tensor(golden["l_eq_M_leftpad_mask__y64_IDEAL_numpy"]), 0)
    close(y_BLD, expected.numpy(), 1e-10)


@DTYPES
@torch.no_grad()
def test_released_mask(dtype, suffix, tolerance):
    """Pads are real tokens whose k is zeroed before the feature map: each keeps weight 1, twice."""
    golden = reference("pla_forward")
    mask = torch.from_numpy(golden["mask_leftpad"]).bool()
    mixer, x_BLD = prefix_layer(golden, dtype), tensor(golden["x8"], dtype)
    layout = Layout.dense(2, 8).with_prefix(8).with_muted(~mask)
    close(mixer(x_BLD, layout), golden[f"l_eq_M_leftpad_mask__y{suffix}"], tolerance)


@DTYPES
@pytest.mark.parametrize(("length", "name"), [(8, "l_eq_M_leftpad_usemask_false"), (13, "l_gt_M_mask_is_ignored")])
@torch.no_grad()
def test_no_mask(length, name, dtype, suffix, tolerance):
    """A mask longer than M has no effect in the released layer, so there is nothing to imitate beyond M."""
    golden = reference("pla_forward")
    y_BLD = prefix_layer(golden, dtype)(tensor(golden[f"x{length}"], dtype), Layout.dense(2, length).with_prefix(8))
    close(y_BLD, golden[f"{name}__y{suffix}"], tolerance)


@DTYPES
@pytest.mark.parametrize("start", ["l5", "l8", "l13", "l8_leftpad"])
@torch.no_grad()
def test_prefill_and_decode(start, dtype, suffix, tolerance):
    """Outputs of both phases and the sums after each; the released state is the sum over all pairs, ours over each once."""
    golden = reference("pla_prefill_decode")
    mixer = prefix_layer(golden, dtype)
    length = int(start.split("_")[0][1:])
    layout = Layout.dense(2, length).with_prefix(int(golden["M"]))
    if start.endswith("leftpad"):
        layout = layout.with_muted(~torch.from_numpy(golden["mask_leftpad"]).bool())
    y_BLD, state = mixer.prefill(tensor(golden[f"x{length}"], dtype), layout)
    close(y_BLD, golden[f"{start}__prefill_y{suffix}"], tolerance)
    compare_sums(state, golden, start, "prefill", suffix, tolerance)
    outputs = []
    for x_BD in tensor(golden["decode_tokens"], dtype).unbind(1):
        y_BD, state = mixer.step(x_BD, state)
        outputs.append(y_BD)
    close(torch.stack(outputs, 1), golden[f"{start}__decode_y{suffix}"], tolerance)
    compare_sums(state, golden, start, "final", suffix, tolerance)


def compare_sums(state, golden, start, moment, suffix, tolerance):
    tensors = state.tensors()
    kv = symmetric(golden[f"{start}__kv_state_{moment}{suffix}"].squeeze(2), FEATURE_DIM).transpose(-1, -2)
    z = symmetric(golden[f"{start}__k_state_{moment}{suffix}"][:, :, 0, 0], FEATURE_DIM)
    close(tensors["kv"], kv.numpy(), max(tolerance, 5e-5 if suffix == "32" else 0))
    close(tensors["z"], z.numpy(), max(tolerance, 5e-5 if suffix == "32" else 0))


@pytest.mark.parametrize("length", [8, 13])
@torch.no_grad()
def test_one_pass_over_the_longer_sequence(length):
    """From l = M on, prefill and decode equal one pass; below M they do not (there the prefix would grow)."""
    golden = reference("pla_prefill_decode")
    mixer, M = prefix_layer(golden, torch.float64), int(golden["M"])
    x_BLD = torch.cat([tensor(golden[f"x{length}"]), tensor(golden["decode_tokens"])], 1)
    y_BLD = mixer(x_BLD, Layout.dense(2, length + 4).with_prefix(M))
    close(y_BLD, golden[f"l{length}__parallel_full_y64"], 1e-10)
    close(y_BLD[:, length:], golden[f"l{length}__decode_y64"], 1e-10)


@torch.no_grad()
def test_below_M_the_prefix_of_one_pass_grows():
    golden = reference("pla_prefill_decode")
    mixer, M = prefix_layer(golden, torch.float64), int(golden["M"])
    x_BLD = torch.cat([tensor(golden["x5"]), tensor(golden["decode_tokens"])], 1)
    close(mixer(x_BLD, Layout.dense(2, 9).with_prefix(M)), golden["l5__parallel_full_y64"], 1e-10)
    kept = mixer(x_BLD, Layout.dense(2, 9).with_prefix(5))
    close(kept[:, 5:], golden["l5__decode_y64"], 1e-10)
    assert np.abs(golden["l5__parallel_full_y64"][:, 5:] - golden["l5__decode_y64"]).max() > 1
