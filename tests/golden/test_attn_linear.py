"""Linear attention against published code: flash-linear-attention, CAB, performer-pytorch, cosFormer, EVA's kernels.

Several of them divide by a maximum over all keys or by the row's length. Those constants are computed here and given to
the feature maps, so that the operation and the maps themselves stay causal.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf

from kernels.layout import Layout
from kernels.linear_scan import empty_state, features, linear_scan, linear_step
from models.linear_attention import FeatureMixer
from models.mixers import linear
from tests.golden.attn import attn, heads_second

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked"])
HEADS = 2


def golden(name, dtype):
    """Settings and tensors of a file; four-dimensional arrays of (B, H, N, d) files keep their order."""
    meta, arrays = attn(name)
    return meta, {key: torch.from_numpy(a).to(dtype) if a.dtype.kind == "f" else torch.from_numpy(a) for key, a in arrays.items()}


def close(got, expected, rtol=1e-4, atol=1e-5):
    np.testing.assert_allclose(got.detach().double().numpy(), expected.double().numpy(), rtol=rtol, atol=atol)


def ours(t):
    """(B, H, N, d) to (B, N, H, d)."""
    return torch.from_numpy(heads_second(t.numpy()))


def project(x, a, name):
    """A linear layer of the file, split into heads."""
    return nnf.linear(x, a[f"w.{name}.weight"], a[f"w.{name}.bias"]).unflatten(-1, (HEADS, -1))


def projections(a, queries="x", keys="x"):
    return project(a[queries], a, "q_proj"), project(a[keys], a, "k_proj"), project(a[keys], a, "v_proj")


@BACKENDS
@DTYPES
def test_fla(dtype, backend):
    """elu+1 features, eps 1e-10; q carries the scale."""
    _, a = golden("linear_attn_fla", dtype)
    q, k, v = a["q"] * a["q"].shape[-1] ** -0.5, a["k"], a["v"]
    y, state = linear_scan(q, k, v, eps=1e-10, backend=backend, return_state=True)
    close(y, a["out_norm"])
    close(state.kv_BHFV, a["final_S"])
    close(state.z_BHF, a["final_z"].squeeze(1))
    close(linear_scan(q, k, v, normalise=False, backend=backend), a["out_nonorm"])


@torch.no_grad()
def test_fla_step_by_step():
    _, a = golden("linear_attn_fla", torch.float32)
    state = empty_state(2, HEADS, a["q"].shape[-1], a["v"].shape[-1], torch.float32)
    outputs = []
    for q, k, v in zip(a["q"].unbind(1), a["k"].unbind(1), a["v"].unbind(1)):
        y, state = linear_step(q, k, v, state, eps=1e-10)
        outputs.append(y)
    close(torch.stack(outputs, 1), a["out_norm"])


@BACKENDS
def test_rebased(backend):
    _, a = golden("rebased_fla", torch.float32)
    q, k, v = (ours(a[name]) for name in "qkv")
    y = linear_scan(features.squares(q, scale=q.shape[-1] ** -0.5), features.squares(k, scale=1.0), v, eps=1e-6, backend=backend)
    close(ours(y), a["out"])


def favor(q, k, projection):
    """performer-pytorch's and CAB's features: the keys of a row and head share one constant, the greatest W k'."""
    directions, _ = features.projected(k, projection, None)
    return (features.favor_plus(q, projection, eps=1e-4, own_maximum=True),
            features.favor_plus(k, projection, eps=1e-4, shift=directions.amax((1, 3), keepdim=True)))


@BACKENDS
@DTYPES
def test_performer_pytorch(dtype, backend):
    """The causal form adds 1e-6 to the sum of keys, in every feature: that is what the normaliser starts from."""
    _, a = golden("performer_pytorch", dtype)
    q, k, v = (ours(a[name]) for name in "qkv")
    phi_q, phi_k = favor(q, k, a["proj"])
    close(phi_q, ours(a["phi_q"]))
    close(phi_k, ours(a["phi_k"]))
    close(ours(linear_scan(phi_q, phi_k, v, causal=False, eps=0.0, backend=backend)), a["out_ns"])
    empty = empty_state(2, HEADS, phi_k.shape[-1], v.shape[-1], dtype)
    state = empty._replace(z_BHF=empty.z_BHF + 1e-6)
    close(ours(linear_scan(phi_q, phi_k, v, state=state, eps=0.0, backend=backend)), a["out_cs"])


@BACKENDS
@DTYPES
def test_performer_cab(dtype, backend):
    """Pads take part in the keys' maximum, and leave after the map; the normaliser is held at 0.1."""
    _, a = golden("performer_cab", dtype)
    phi_in = ours(a["phi_in"])
    for got, name in zip(favor(phi_in, phi_in, a["proj"]), ("phi_query", "phi_key")):
        close(got, ours(a[name]))

    def run(queries, lengths_B=None):
        q, k, v = projections(a, queries)
        inputs = [t.transpose(1, 2).flatten(0, 1).unsqueeze(2) for t in (*favor(q, k, a["proj"]), v)]  # one head a row
        y = linear_scan(*inputs, causal=False, lengths_B=lengths_B, floor=0.1, backend=backend)
        y = y.squeeze(2).unflatten(0, (2, HEADS)).transpose(1, 2).flatten(2)
        return nnf.linear(y, a["w.out_proj.weight"], a["w.out_proj.bias"])

    close(run("x"), a["out_ns"])
    close(run("y"), a["out_nc"])
    lengths_B = (~a["key_padding_mask"]).sum(1)
    # the published code repeats the mask with heads before rows, while its keys have rows before heads
    close(run("x", lengths_B.repeat(HEADS)), a["out_ns_pad"])
    assert (run("x", lengths_B.repeat_interleave(HEADS)) - a["out_ns_pad"]).abs().max() > 0.1


@BACKENDS
@DTYPES
@pytest.mark.parametrize("name, queries, causal", [
    ("cosformer_cab", "x", False), ("cosformer_cab", "y", False), ("cosformer_official", "x", False),
    ("cosformer_official", "y", False), ("cosformer_official", "x", True)])
def test_cosformer(name, queries, causal, dtype, backend):
    """The greatest length here, counted from 1, is the longer of the two rows: causal too, so that it holds for this n only."""
    _, a = golden(name, dtype)
    q, k, v = projections(a, queries)
    longest = max(q.shape[1], k.shape[1])
    q, k = (features.cosine_weighted(features.relu(t), torch.arange(1, t.shape[1] + 1), longest) for t in (q, k))
    y = linear_scan(q, k, v, causal=causal, floor=1e-6, backend=backend)
    out = {("x", False): "out_ns", ("y", False): "out_nc", ("x", True): "out_cs"}[queries, causal]
    close(nnf.linear(y.flatten(2), a["w.out_proj.weight"], a["w.out_proj.bias"]), a[out])


def eva_inputs(a):
    q, k, v = nnf.linear(a["x"], a["w.qkv.weight"], a["w.qkv.bias"]).unflatten(-1, (3, HEADS, -1)).unbind(2)
    return q, k, v


def eva_features(name, a, q, k):
    if name == "dpfp_eva":
        return [features.dpfp(t, rolls=2) for t in (q, k)]
    if name == "relu_rf_eva":
        return [features.relu_projected(t, a["w.eval_proj"], eps=1e-3) for t in (q, k)]
    if name == "reluonly_cos_eva":
        return [features.relu(t, eps=0.1) for t in (q, k)]
    if name == "mlpfourier_eva":  # a learned layer over [cos, sin] of the plain projection, times d^-0.5
        projection, width = a["w.feature_proj.random_proj"], q.shape[-1]
        waves = [features.random_fourier(t, projection, scale=1.0, unit=False) * (projection.shape[1] / width) ** 0.5
                 for t in (q, k)]
        swapped = a["w.feature_proj.phi.0.weight"].roll(projection.shape[1], 1)
        return [torch.relu(nnf.linear(t, swapped, a["w.feature_proj.phi.0.bias"])) for t in waves]
    longest = [features.projected(t, a["w.eval_proj"], None)[1].amax(1, keepdim=True) for t in (q, k)]
    return [features.random_fourier(t, a["w.eval_proj"], unit=False, amplitude=True, shift=s) for t, s in zip((q, k), longest)]


@BACKENDS
@DTYPES
@pytest.mark.parametrize("name", ["dpfp_eva", "relu_rf_eva", "reluonly_cos_eva", "mlpfourier_eva"])
def test_eva_kernels(name, dtype, backend):
    """Normaliser held at 0.01. The cosine variant counts from 0 and takes the padded length."""
    _, a = golden(name, dtype)
    q, k, v = eva_inputs(a)
    phi_q, phi_k = eva_features(name, a, q, k)
    close(phi_q, ours(a["phi_q"]))
    close(phi_k, ours(a["phi_k"]))
    if name == "reluonly_cos_eva":
        phi_q, phi_k = (features.cosine_weighted(t, torch.arange(t.shape[1]), t.shape[1]) for t in (phi_q, phi_k))
    for lengths_B, out in ((None, "out"), ((~a["pad"]).sum(1), "out_pad")):
        y = linear_scan(phi_q, phi_k, v, causal=False, lengths_B=lengths_B, floor=0.01, backend=backend)
        close(nnf.linear(y.flatten(2), a["w.proj.weight"], a["w.proj.bias"]), a[out])


@BACKENDS
@DTYPES
def test_eva_random_fourier(dtype, backend):
    """The published clamp turns a negative sum of weights into +0.01; ours keeps the sign, and agrees elsewhere.

    Sums near 0.01 magnify the published float32, hence the wider tolerance.
    """
    _, a = golden("rfa_fourier_eva", dtype)
    q, k, v = eva_inputs(a)
    phi_q, phi_k = eva_features("rfa_fourier_eva", a, q, k)
    close(phi_q, ours(a["phi_q"]))
    close(phi_k, ours(a["phi_k"]))
    for lengths_B, out in ((None, "out"), ((~a["pad"]).sum(1), "out_pad")):
        def scan(values, lengths_B=lengths_B, **settings):
            return linear_scan(phi_q, phi_k, values, causal=False, lengths_B=lengths_B, backend=backend, **settings)

        def outer(y):
            return nnf.linear(y.flatten(2), a["w.proj.weight"], a["w.proj.bias"])

        weights = scan(torch.ones_like(v[..., :1]), normalise=False)
        close(outer(scan(v, normalise=False) / weights.clamp(min=0.01)), a[out], atol=3e-5)
        positive = (weights >= 0).all(2).squeeze(-1)
        assert 0 < positive.sum() < positive.numel()
        close(outer(scan(v, floor=0.01))[positive], a[out][positive], atol=3e-5)


class Mapped(FeatureMixer):
    """The family's mixer with a published map, `map(x, position, is_query)`, and a published floor."""

    def features(self, x, position, is_query):
        return self.map(x, position, is_query)

    @property
    def divisor(self):
        return {"floor": self.floor}


def mapped(mode, dtype, weights, floor):
    mixer = Mapped(linear.Config(heads=HEADS, mode=mode), 32, 0).to(dtype).eval()
    mixer.load_state_dict(weights)
    mixer.floor = floor
    return mixer


def eva_map(name, a):
    """One token's features; the cosine variant counts from 0 and takes the padded length."""
    def either(x, position, is_query):
        phi = eva_features(name, a, x, x)[0]
        return features.cosine_weighted(phi, position, 32) if name == "reluonly_cos_eva" else phi
    return either


@torch.no_grad()
@DTYPES
@pytest.mark.parametrize("mode", ["non_causal", "cross"])
@pytest.mark.parametrize("name", ["dpfp_eva", "relu_rf_eva", "reluonly_cos_eva", "mlpfourier_eva"])
def test_eva_layers(name, mode, dtype):
    """Whole layers with pads of any content, and as targets that read the row they are."""
    _, a = golden(name, dtype)
    weights = {f"out_proj.{part}": a[f"w.proj.{part}"] for part in ("weight", "bias")}
    for third, ours_ in enumerate(("proj_q", "proj_k", "proj_v")):
        weights |= {f"{ours_}.{part}": a[f"w.qkv.{part}"][32 * third: 32 * third + 32] for part in ("weight", "bias")}
    mixer = mapped(mode, dtype, weights, 0.01)
    mixer.map = eva_map(name, a)
    for real, out in ((torch.ones(2, 32, dtype=torch.bool), "out"), (~a["pad"], "out_pad")):
        x, layout = a["x"].masked_fill(~real[..., None], torch.nan), Layout.from_mask(real)
        assert layout.aligned
        y = mixer(x, layout) if mode == "non_causal" else mixer.read(x, layout, mixer.encode(x, layout))
        close(y[real], a[out][real])


def performer_layer(mode, dtype):
    """CAB's layer, whose keys share the greatest exponent of their row and head: found in x, pads and all, beforehand."""
    _, a = golden("performer_cab", dtype)
    names = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "out_proj": "out_proj"}
    weights = {f"{ours_}.{part}": a[f"w.{theirs}.{part}"] for ours_, theirs in names.items() for part in ("weight", "bias")}
    mixer = mapped(mode, dtype, weights, 0.1)
    directions, _ = features.projected(project(a["x"], a, "k_proj"), a["proj"], None)
    greatest = directions.amax((1, 3), keepdim=True)
    mixer.map = lambda x, position, is_query: features.favor_plus(
        x, a["proj"], eps=1e-4, **({"own_maximum": True} if is_query else {"shift": greatest}))
    return mixer, a


@torch.no_grad()
@DTYPES
def test_performer_cab_layer(dtype):
    mixer, a = performer_layer("non_causal", dtype)
    close(mixer(a["x"], Layout.dense(2, 33)), a["out_ns"])
    mixer, _ = performer_layer("cross", dtype)
    close(mixer.read(a["y"], Layout.dense(2, 21), mixer.encode(a["x"], Layout.dense(2, 33))), a["out_nc"])


@torch.no_grad()
@DTYPES
def test_performer_cab_layer_with_pads(dtype):
    """The published mask of head h is that of row h, for both rows: a context of so many tokens, heard by that head."""
    mixer, a = performer_layer("cross", dtype)
    heard = []
    mixer.out_proj.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0].unflatten(-1, (HEADS, -1))))
    lengths = (~a["key_padding_mask"]).sum(1).tolist()
    assert lengths[0] != lengths[1]
    for n in lengths:
        x = a["x"].clone()
        x[:, n:] = torch.nan
        mixer.read(a["x"], Layout.dense(2, 33), mixer.encode(x, Layout.right_padded([n, n], 33)))
    y = torch.stack([heard[head][:, :, head] for head in range(HEADS)], 2).flatten(2)
    close(nnf.linear(y, a["w.out_proj.weight"], a["w.out_proj.bias"]), a["out_ns_pad"])
