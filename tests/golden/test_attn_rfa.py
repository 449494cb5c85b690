"""The random feature mixer against EVA's `fourier` kernel attention, which reads both sides.

The last token of a causal row reads what any token of a two-sided one does, so every query is put last once.
The published clamp lifts a negative sum of weights to +0.01 and sees the query's amplitude; it is redone here per head.
A sum near zero is a difference of the published float32 features, hence wider tolerances.
"""

import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers import rfa
from tests.golden.attn import attn


def published(form="amplitude", **settings):
    """(mixer with the file's weights, the file's arrays) in float64."""
    _, arrays = attn("rfa_fourier_eva")
    a = {name: torch.from_numpy(array).double() if array.dtype.kind == "f" else torch.from_numpy(array)
         for name, array in arrays.items()}
    mixer = registry.build(rfa.Config(heads=2, features=24, form=form, **settings), 32, seed=0).double().eval()
    weights = {"directions": a["w.eval_proj"]}
    for ours, rows in zip(("proj_q", "proj_k", "proj_v"), (slice(0, 32), slice(32, 64), slice(64, 96))):
        weights |= {f"{ours}.{part}": a[f"w.qkv.{part}"][rows] for part in ("weight", "bias")}
    mixer.load_state_dict(weights | {f"out_proj.{part}": a[f"w.proj.{part}"] for part in ("weight", "bias")})
    return mixer, a


def each_one_last(x_LD):
    """(L, L, D): row i is the document with token i moved to its end."""
    n = len(x_LD)
    return torch.stack([torch.cat((x_LD[:i], x_LD[i + 1:], x_LD[i: i + 1])) for i in range(n)])


@torch.no_grad()
@pytest.mark.parametrize("pieces", [1, 2], ids=["at once", "in pieces"])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_every_query_of_the_published_layer(row, padded, pieces):
    mixer, a = published(floor=1e-12)
    keep = ~a["pad"][row] if padded else torch.ones(32, dtype=torch.bool)
    x = each_one_last(a["x"][row][keep])
    n, heads = len(x), []
    mixer.out_proj.register_forward_pre_hook(lambda _, inputs: heads.append(inputs[0][:, -1].unflatten(-1, (2, 16))))
    state = mixer.init_state(n, x.dtype, "cpu")
    for part in x.tensor_split(pieces, 1):
        _, state = mixer.extend(part, Layout.dense(n, part.shape[1]), state)
    sums = (a["phi_q"][row][:, keep] @ a["phi_k"][row][:, keep].sum(1)[..., None]).transpose(0, 1)
    assert (sums < 0.01).any() and (sums > 0.01).any()
    y = heads[-1] * (sums / 0.01).clamp(max=1)
    expected = a["out_pad" if padded else "out"][row][keep]
    torch.testing.assert_close(torch.nn.functional.linear(y.flatten(1), mixer.out_proj.weight, mixer.out_proj.bias),
                               expected, rtol=1e-4, atol=2e-4)


@torch.no_grad()
def test_where_no_clamp_acts():
    """There the whole mixer agrees as it stands."""
    mixer, a = published()
    sums = (a["phi_q"][0] @ a["phi_k"][0].sum(1)[..., None]).squeeze(-1)
    free = (sums > 0.01).all(0)
    assert free.sum() > 5
    y = mixer(each_one_last(a["x"][0]), Layout.dense(32, 32))[:, -1]
    torch.testing.assert_close(y[free], a["out"][0][free], rtol=1e-4, atol=3e-5)


@torch.no_grad()
def test_normalised_vectors_are_another_method():
    mixer, a = published("unit", scale=16**-0.5)
    y = mixer(each_one_last(a["x"][0]), Layout.dense(32, 32))[:, -1]
    assert (y - a["out"][0]).abs().median() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("mode", ["non_causal", "cross"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_whole_rows(padded, mode):
    """All queries of both rows at once; as targets of a context that is the row itself, the same."""
    mixer, a = published(floor=1e-12, mode=mode)
    x, real = a["x"].clone(), ~a["pad"] if padded else torch.ones(2, 32, dtype=torch.bool)
    x[~real] = torch.nan
    heads = []
    mixer.out_proj.register_forward_pre_hook(lambda _, inputs: heads.append(inputs[0].unflatten(-1, (2, 16))))
    layout = Layout.from_mask(real)
    if mode == "cross":
        mixer.read(x, layout, mixer.encode(x, layout))
    else:
        mixer(x, layout)
    for row in range(2):
        keep = real[row]
        sums = (a["phi_q"][row][:, keep] @ a["phi_k"][row][:, keep].sum(1)[..., None]).transpose(0, 1)
        y = heads[0][row, : int(keep.sum())] * (sums / 0.01).clamp(max=1)  # aligned rows
        y = torch.nn.functional.linear(y.flatten(1), mixer.out_proj.weight, mixer.out_proj.bias)
        torch.testing.assert_close(y, a["out_pad" if padded else "out"][row][keep], rtol=1e-4, atol=2e-4)
