"""Causal Based attention against the released layer. Its decode counts every token's kv twice (a fault that we do not
copy): the right values of decode are those of one parallel pass."""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from tests.golden.reference import fill, reference, symmetric, tensor
from tests.golden.test_jrt_prefix import DTYPES, FEATURE_DIM, close

NAMES = {"proj_q": "W_proj_q", "proj_k": "W_proj_k", "proj_v": "W_proj_v", "out_proj": "W_out_proj"}


def based_layer(golden, dtype, **options):
    config = registry.config_class("based")(heads=2, feature_dim=FEATURE_DIM, **options)
    mixer = registry.build(config, 32, seed=0).to(dtype).eval()
    fill(mixer, {f"{ours}.weight": golden[theirs] for ours, theirs in NAMES.items()})
    return mixer


@DTYPES
@torch.no_grad()
def test_forward(dtype, suffix, tolerance):
    golden = reference("based_causal_linear_attention")
    mixer, x_BLD = based_layer(golden, dtype), tensor(golden["x"], dtype)
    close(mixer(x_BLD, Layout.dense(2, 11)), golden[f"y{suffix}"], tolerance)
    whole = torch.cat([x_BLD, tensor(golden["decode_tokens"], dtype)], 1)
    close(mixer(whole, Layout.dense(2, 15)), golden[f"parallel_full_y{suffix}"], tolerance)


@DTYPES
@torch.no_grad()
def test_prefill_and_decode(dtype, suffix, tolerance):
    golden = reference("based_causal_linear_attention")
    mixer = based_layer(golden, dtype)
    y_BLD, state = mixer.prefill(tensor(golden["x"], dtype), Layout.dense(2, 11))
    close(y_BLD, golden[f"prefill_y{suffix}"], tolerance)
    kv = symmetric(golden[f"kv_state{suffix}"].squeeze(2), FEATURE_DIM).transpose(-1, -2)
    z = symmetric(golden[f"k_state{suffix}"][:, :, 0, 0], FEATURE_DIM)
    # the released layer casts its states to float32
    close(state.tensors()["kv"], kv.numpy(), 5e-5)
    close(state.tensors()["z"], z.numpy(), 5e-5)
    outputs = []
    for x_BD in tensor(golden["decode_tokens"], dtype).unbind(1):
        y_BD, state = mixer.step(x_BD, state)
        outputs.append(y_BD)
    got = torch.stack(outputs, 1)
    close(got, golden[f"parallel_full_y{suffix}"][:, 11:], tolerance)
    assert (got.double() - tensor(golden[f"OFFICIAL_BUGGY_decode_y{suffix}"])).abs().max() > 1


@torch.no_grad()
def test_published_eps():
    """The fused path of the released configs uses eps 1e-6."""
    golden = reference("based_causal_linear_attention")
    mixer = based_layer(golden, torch.float64, eps=1e-6)
    close(mixer(tensor(golden["x"]), Layout.dense(2, 11)), golden["y64_fla_impl_eps1e-6"], 1e-5)


@pytest.mark.parametrize("causal", [1])
@torch.no_grad()
def test_synthetic_layer_with_its_right_normaliser(causal):
    """The synthetic experiments' quadratic view divides by the diagonal alone; the array without that fault is compared."""
    golden = reference("zoology_synthetic_mixers")
    config = registry.config_class("based")(heads=2, feature_dim=4)
    mixer = registry.build(config, 16, seed=0).double()
    names = {"proj_q": "proj_q", "proj_k": "proj_k", "proj_v": "proj_v", "out_proj": "proj_o"}
    fill(mixer, {f"{ours}.weight": golden[f"based_causal{causal}__W_{theirs}/weight"] for ours, theirs in names.items()})
    y_BLD = mixer(tensor(golden["x"]), Layout.dense(2, 9))
    close(y_BLD, golden[f"based_causal{causal}__y64_CORRECT_normaliser_numpy"], 1e-10)
