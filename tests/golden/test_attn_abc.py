"""Bounded memory control against a corrected CAB layer, flash-linear-attention's loops, and CAB's own two-sided forms.

CAB's causal form keeps the current token alone in its slots; `abc_correct_causal` holds the right answer for its weights.
"""

import numpy as np
import pytest
import torch

from kernels.bounded_memory import bounded_memory, bounded_step, empty_state
from kernels.layout import Layout
from models import registry
from models.mixers import abc
from tests.golden.attn import attn, heads_second

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def close(got, expected, rtol=1e-4, atol=1e-5):
    np.testing.assert_allclose(got.detach().double().numpy(), expected, rtol=rtol, atol=atol)


def cab(name, dtype=torch.float64, mode="causal"):
    """(mixer with the file's weights, the file's arrays)."""
    _, arrays = attn(name)
    mixer = registry.build(abc.Config(heads=2, slots=6, mode=mode), 32, seed=0)
    weights = {key[2:]: torch.from_numpy(array) for key, array in arrays.items() if key.startswith("w.")}
    for ours, theirs in (("proj_q", "q_proj"), ("proj_k", "k_proj"), ("proj_v", "v_proj")):
        for part in ("weight", "bias"):
            weights[f"{ours}.{part}"] = weights.pop(f"{theirs}.{part}")
    mixer.load_state_dict(weights)
    return mixer.to(dtype).eval(), arrays


@torch.no_grad()
@DTYPES
def test_the_causal_layer(dtype):
    mixer, arrays = cab("abc_correct_causal", dtype)
    x = torch.from_numpy(arrays["x"]).to(dtype)
    close(mixer(x, Layout.dense(2, 33)), arrays["out_cs"])
    y, state = mixer.prefill(x[:, :20], Layout.dense(2, 20))
    outputs = [y]
    for token in x[:, 20:].unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
    close(torch.cat(outputs, 1), arrays["out_cs"])


@torch.no_grad()
def test_two_sided_outputs_are_last_tokens():
    """The last token of a causal row reads what a two-sided layer reads everywhere; pads are no tokens."""
    mixer, arrays = cab("abc_cab")
    x, real = torch.from_numpy(arrays["x"]).double(), ~torch.from_numpy(arrays["key_padding_mask"])
    close(mixer(x, Layout.dense(2, 33))[:, -1], arrays["out_ns"][:, -1])
    for row in range(2):
        tokens, n = x[row, real[row]], int(real[row].sum())
        for i in (0, n // 2, n - 1):  # any query, once it is last
            moved = torch.cat((tokens[:i], tokens[i + 1:], tokens[i: i + 1]))
            expected = arrays["out_ns_pad"][row][real[row].numpy()][i]
            close(mixer(moved[None], Layout.dense(1, n))[0, -1], expected)
    y = mixer(x, Layout.from_mask(real))
    first = [int(real[row].nonzero()[-1]) for row in range(2)]
    for row in range(2):
        close(y[row, first[row]], arrays["out_ns_pad"][row, first[row]])


@torch.no_grad()
@DTYPES
def test_both_ways(dtype):
    """Slots of the whole row, and of its real tokens."""
    mixer, arrays = cab("abc_cab", dtype, "non_causal")
    x, real = torch.from_numpy(arrays["x"]).to(dtype), ~torch.from_numpy(arrays["key_padding_mask"])
    close(mixer(x, Layout.dense(2, 33)), arrays["out_ns"])
    x[~real] = torch.nan
    y = mixer(x, Layout.from_mask(real))
    assert not y[~real].any()
    close(y[real], arrays["out_ns_pad"][real.numpy()])


@torch.no_grad()
@DTYPES
def test_a_context(dtype):
    """21 targets read slots of 33 tokens."""
    mixer, arrays = cab("abc_cab", dtype, "cross")
    x, y = (torch.from_numpy(arrays[name]).to(dtype) for name in "xy")
    close(mixer.read(y, Layout.dense(2, 21), mixer.encode(x, Layout.dense(2, 33))), arrays["out_nc"])


@torch.no_grad()
def test_the_published_causal_form_forgets():
    """It equals slots that hold the current token alone, and is far from ours."""
    mixer, arrays = cab("abc_cab")
    x, published = torch.from_numpy(arrays["x"]).double(), arrays["out_cs_AS_PUBLISHED"]
    assert np.abs(mixer(x, Layout.dense(2, 33)).numpy() - published).max() > 0.5
    q, k, v, logits_k, logits_v = mixer._project(x)
    weight_k, weight_v = ((t - t.logcumsumexp(1)).exp() for t in (logits_k, logits_v))
    scores = (q * k).sum(-1, keepdim=True) * weight_k * 16**-0.5
    forgetful = (scores.softmax(-1) * weight_v).sum(-1, keepdim=True) * v
    close(mixer.out_proj(forgetful.flatten(2)), published)


@DTYPES
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_shared_slots(dtype, backend):
    """flash-linear-attention: one weight for a token's key and value."""
    _, arrays = attn("abc_fla")
    q, k, v, s = (torch.from_numpy(heads_second(arrays[name])).to(dtype) for name in "qkvs")
    y, state = bounded_memory(q, k, v, s, backend=backend, return_state=True)
    for name in ("out_recurrent", "out_cumsum"):
        close(y, heads_second(arrays[name]))
    close((state.keys_BHRK / state.total_BHSR.transpose(2, 3)).transpose(2, 3), arrays["final_hk"])
    close(state.values_BHRV / state.total_BHSR.transpose(2, 3), arrays["final_hv"])
    state, outputs = empty_state(2, 2, 6, 16, 8, dtype), []
    for token in zip(*(t.unbind(1) for t in (q, k, v, s))):
        out, state = bounded_step(*token, state)
        outputs.append(out)
    close(torch.stack(outputs, 1), heads_second(arrays["out_recurrent"]))
