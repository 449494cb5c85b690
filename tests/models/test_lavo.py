"""LAVO's mixer: an example to follow by hand, its settings, and how its basis stays orthonormal."""

import copy

import pytest
import torch
from pydantic import ValidationError

from kernels.errors import ConfigError
from kernels.layout import Layout
from kernels.orthogonal_memory import orthogonal_memory
from kernels.window import window
from models import registry
from models.basis import OrthogonalBasis, orthonormal_rows
from models.mixers import lavo

WIDTH = 16


def build(width=WIDTH, **settings):
    return registry.build(lavo.Config(**{"heads": 2, "slots": 4, "window": 3, **settings}), width, seed=0).double().eval()


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize(("dissection", "expected"), [
    ("token", [2, 2.75, 25 / 6, 5.625, 7.1]), ("window", [1, 1.5, 4, 5, 7])])
def test_by_hand(dissection, expected):
    """w = 2, one slot, q = 0: the window is a mean of two, the memory a mean; v = 2, 4, 6, 8, 10 behind a pad."""
    mixer = build(1, heads=1, slots=1, window=2, dissection=dissection, basis_mode="fixed", bias=False)
    for name, value in (("proj_q", 0), ("proj_k", 0), ("proj_v", 1), ("out_proj", 1)):
        getattr(mixer, name).weight.fill_(value)
    mixer.basis.weight.fill_(1)
    x = torch.tensor([torch.nan, 2, 4, 6, 8, 10], dtype=torch.float64).view(1, 6, 1)
    y = mixer(x, Layout.left_padded([5], 6))
    assert y.flatten().tolist() == pytest.approx([0, *expected])
    _, state = mixer.prefill(x[:, :4], Layout.left_padded([3], 4))
    if dissection == "window":
        assert (state["sum"].item(), state["v"].item(), state.count_B.item()) == (6, 6, 3)
        _, state = mixer.step(x[:, 4], state)
        assert state["sum"].item() == 20
    else:
        _, state = mixer.step(x[:, 4], state)
    y, _ = mixer.step(x[:, 5], state)
    assert y.item() == pytest.approx(expected[-1])


@torch.no_grad()
@pytest.mark.parametrize("dissection", ["token", "window", "none"])
def test_windows_of_one(dissection):
    """The window is v itself; dissection window reads all tokens before, the others this one too."""
    mixer, x = build(window=1, dissection=dissection, epe=False), tokens(1, 7, WIDTH)
    q, v = (p(x).unflatten(-1, (2, -1)) for p in (mixer.proj_q, mixer.proj_v))
    far = orthogonal_memory(q, v, mixer.basis(torch.float64), closed=1 if dissection == "window" else None)
    expected = mixer.out_proj(((v + far) / 2).flatten(2))
    torch.testing.assert_close(mixer(x, Layout.dense(1, 7)), expected)
    state, outputs = mixer.init_state(1, x.dtype, "cpu"), []
    for part in (x[:, :3], x[:, 3:5]):
        y, state = mixer.extend(part, Layout.dense(1, part.shape[1]), state)
        outputs.append(y)
    for i in (5, 6):
        y, state = mixer.step(x[:, i], state)
        outputs.append(y[:, None])
    torch.testing.assert_close(torch.cat(outputs, 1), expected)
    assert state.nbytes == mixer.cost(7, torch.float64).state_bytes == 8 * 8 + 8


@torch.no_grad()
def test_scales_and_tables_of_heads():
    """Both scales and a table a head, put together from the two branches."""
    mixer = build(scale_local=0.7, scale_global="inv_sqrt_d", epe_per_head=True, epe_std=1.0, dissection="none")
    assert mixer.table.shape == (2, 5) and mixer.table.abs().min() > 0
    x = tokens(1, 9, WIDTH)
    q, k, v = (p(x).unflatten(-1, (2, -1)) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
    near = window(q, k, v, window=3, table=mixer.table, scale=0.7)
    far = orthogonal_memory(q, v, mixer.basis(torch.float64), scale=8**-0.5)
    torch.testing.assert_close(mixer(x, Layout.dense(1, 9)), mixer.out_proj(((near + far) / 2).flatten(2)))
    assert build(epe=False).table is None and not build().table.any()


@torch.no_grad()
@pytest.mark.parametrize("scope", ["head", "model"])
def test_a_fading_mean(scope):
    """The average of B x over tokens, each weighing keep to the power of its age; a keep near 1 is the mean."""
    settings = {"dissection": "none", "basis_scope": scope, "epe": False}
    mixer, x = build(keep=0.6, **settings), tokens(1, 9, WIDTH)
    q, k, v = (p(x[0]).unflatten(-1, (2, -1)) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
    basis, outputs = mixer.basis(torch.float64), []
    for i in range(9):
        weight = 0.6 ** torch.arange(i, -1, -1, dtype=torch.float64)
        features = torch.einsum("lhk,hrk->lhr", v[: i + 1], basis)
        features = features.sum(1, keepdim=True) if scope == "model" else features
        mean = torch.einsum("l,lhr->hr", weight / weight.sum(), features)
        a = (mean * torch.einsum("hk,hrk->hr", q[i], basis)).softmax(-1)
        outputs.append(torch.einsum("hr,hrk->hk", a * mean, basis))
    near = window(q[None], k[None], v[None], window=3)
    expected = mixer.out_proj(((near[0] + torch.stack(outputs)) / 2).flatten(1))
    torch.testing.assert_close(mixer(x, Layout.dense(1, 9))[0], expected)
    plain, slow = build(**settings), build(keep=1 - 1e-9, **settings)
    torch.testing.assert_close(slow(x, Layout.dense(1, 9)), plain(x, Layout.dense(1, 9)), rtol=1e-6, atol=1e-7)
    with pytest.raises(ValidationError, match="keep weighs tokens"):
        lavo.Config(keep=0.5, dissection="window")


def by_hand(mixer, q, x, count):
    """(H, K): what a query (H, K) reads in the mean of count tokens, of which x (n, H, K) are what is written."""
    basis = mixer.basis(torch.float64)
    mean = torch.einsum("nhk,hrk->hr", x, basis) / count
    if mixer.basis.shared:
        mean = mean.sum(0, keepdim=True)
    a = (mixer.scale_global * mean * torch.einsum("hk,hrk->hr", q, basis)).softmax(-1)
    return torch.einsum("hr,hrk->hk", a * mean, basis)


def opened(mixer, x):
    """Each token's share in the memory: sigmoid(w·x + b), head by head."""
    return x / (1 + (-(x * mixer.gate.weight).sum(-1, keepdim=True) - mixer.gate.bias[:, None]).exp())


@torch.no_grad()
@pytest.mark.parametrize("dissection", ["token", "window", "none"])
@pytest.mark.parametrize("mode", ["causal", "non_causal"])
def test_a_content_gated_write(mode, dissection):
    """The mean over all tokens of what their gates let through; the gate reads what is compressed, a head at a time."""
    mixer, x = build(gated_write=True, dissection=dissection, mode=mode, epe=False), tokens(1, 9, WIDTH)
    assert mixer.gate.bias.unique().tolist() == [2] and {"gate.weight", "gate.bias"} <= mixer.keep_init
    mixer.gate.bias.copy_(torch.tensor([0.5, -1]))
    q, k, v = (p(x).unflatten(-1, (2, -1)) for p in (mixer.proj_q, mixer.proj_k, mixer.proj_v))
    near = window(q, k, v, window=3, reach="causal" if mode == "causal" else "both")[0]
    own = window(q, k, v, window=3, reach="own")[0]
    written = opened(mixer, {"token": near, "window": own, "none": v[0]}[dissection])
    far = []
    for i in range(9):
        n = 9 if mode == "non_causal" else i // 3 * 3 if dissection == "window" else i + 1
        far.append(by_hand(mixer, q[0, i], written[:n], max(n, 1)))
    expected = mixer.out_proj(((near + torch.stack(far)) / 2).flatten(1))
    torch.testing.assert_close(mixer(x, Layout.dense(1, 9))[0], expected)
    if mode == "causal":
        open_gates = build(dissection=dissection, epe=False)
        assert mixer.cost(50).state_bytes == open_gates.cost(50).state_bytes, "no number more than without gates"
        assert mixer.parameter_count() == open_gates.parameter_count() + 2 * 8 + 2
        mixer.gate.bias.fill_(50)
        torch.testing.assert_close(mixer(x, Layout.dense(1, 9)), open_gates(x, Layout.dense(1, 9)))


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("scope", ["head", "model"])
def test_a_context_is_its_mean(scope, gated):
    """No window, no halving: r numbers a head (or a row), and queries that read them."""
    mixer = build(mode="cross", basis_scope=scope, gated_write=gated, scale_global=0.7)
    assert mixer.proj_k is None and mixer.table is None
    context, x = tokens(1, 6, WIDTH), tokens(1, 4, WIDTH, seed=1)
    memory = mixer.encode(context, Layout.dense(1, 6))
    assert memory.nbytes == mixer.cost(6, torch.float64).state_bytes == 8 * 4 * (2 if scope == "head" else 1) + 8
    v, q = (p(t)[0].unflatten(-1, (2, -1)) for p, t in ((mixer.proj_v, context), (mixer.proj_q, x)))
    written = opened(mixer, v) if gated else v
    expected = mixer.out_proj(torch.stack([by_hand(mixer, one, written, 6) for one in q]).flatten(1))
    torch.testing.assert_close(mixer.read(x, Layout.dense(1, 4), memory)[0], expected)


def test_costs_of_the_other_modes():
    """Both ways: 2w - 1 keys but at the ends, windows of the last tokens too, no state. Cross: 6 D^2 + 6 r D a token."""
    D, r, w, n = WIDTH, 4, 3, 8
    a_token = 8 * D * D + 6 * r * D
    pairs = sum(min(i, w - 1) + min(n - 1 - i, w - 1) + 1 for i in range(n))
    cost = build(mode="non_causal").cost(n)
    assert (cost.flops, cost.state_bytes) == (n * a_token + 4 * D * pairs, 0)
    assert build(mode="non_causal", dissection="window").cost(n).flops == cost.flops + 4 * D * (9 + 9 + 4)
    cross = build(mode="cross").cost(n)
    assert (cross.flops, cross.step_flops) == (n * (6 * D * D + 6 * r * D), 4 * D * D + 4 * r * D)
    assert build(gated_write=True).cost(n).flops - build().cost(n).flops == 2 * D * n


@pytest.mark.parametrize("mode", ["non_causal", "cross"])
def test_ages_are_for_causal_rows(mode):
    with pytest.raises(ValidationError, match=f"keep weighs tokens by their age, and mode {mode}"):
        lavo.Config(keep=0.5, mode=mode)


@torch.no_grad()
def test_one_basis_for_all_heads():
    """The memory has r numbers a row in all, of orthonormal rows as wide as the model."""
    mixer, x = build(slots=12, basis_scope="model", dissection="none", epe=False), tokens(1, 9, WIDTH)
    rows = mixer.basis(torch.float64).transpose(0, 1).flatten(1)
    torch.testing.assert_close(rows @ rows.T, torch.eye(12, dtype=torch.float64))
    torch.testing.assert_close(rows, mixer.basis.weight, msg="head h reads columns h·K to (h+1)·K")
    _, state = mixer.prefill(x, Layout.dense(1, 9))
    torch.testing.assert_close(state["sum"], (mixer.proj_v(x).sum(1) @ rows.T)[:, None])


def test_the_published_numbers_of_parameters():
    """LAVO's language model is its baseline's projections and one basis a layer: 64 x 768 numbers, beside the table."""
    config = lavo.Config(heads=12, slots=64, window=64)
    plain = 4 * (768 * 768 + 768)
    with torch.device("meta"):
        for scope in ("head", "model"):
            mixer = registry.build(config.model_copy(update={"basis_scope": scope}), 768)
            assert mixer.parameter_count() == plain + 64 * 768 + 127
    # section 1.6 of its numbers: the sum and two rings of 63 tokens
    assert mixer.cost(131_072, torch.float32).state_bytes == 4 * (64 + 2 * 63 * 768) + 8


def test_more_slots_than_directions_are_refused():
    with pytest.raises(ConfigError, match="9 slots do not fit into 8 dimensions"):
        build(slots=9)
    build(slots=16, basis_scope="model")
    with pytest.raises(ConfigError, match="17 slots do not fit into 16"):
        build(slots=17, basis_scope="model")


@pytest.mark.parametrize("scope", ["head", "model"])
@pytest.mark.parametrize("mode", ["parametrized", "fixed", "free", "qr"])
def test_training_the_basis(mode, scope):
    """Fifty large steps: orthonormal where the mode says so, unmoved if fixed, adrift if free."""
    mixer = build(slots=8, basis_mode=mode, basis_scope=scope).float()
    x, first = tokens(4, 12, WIDTH).float(), mixer.basis(torch.float32).detach().clone()
    assert mixer.basis.deviation() < 1e-6
    optimiser = torch.optim.Adam(mixer.parameters(), lr=0.05)
    for _ in range(50):
        optimiser.zero_grad()
        (mixer(x, Layout.dense(4, 12)) - x).square().mean().backward()
        optimiser.step()
    moved = (mixer.basis(torch.float32) - first).abs().max()
    assert (moved == 0) if mode == "fixed" else (moved > 0.05)
    rows = mixer.basis(torch.float32).detach()
    rows = rows.transpose(0, 1).flatten(1) if scope == "model" else rows
    off = (rows @ rows.transpose(-1, -2) - torch.eye(8)).abs().max()
    assert (off > 0.05) if mode == "free" else (off < 2e-6)
    assert mixer.basis.deviation() == pytest.approx(float(off), abs=2e-6)


@torch.no_grad()
def test_a_basis_of_mode_qr_is_made_good_where_it_was_changed():
    """At the first reading after a change, in place; a reading of what is orthonormal but for rounding changes no bit."""
    basis = OrthogonalBasis(2, 5, 8, "head", "qr")
    basis.reset_parameters(torch.Generator().manual_seed(0))
    drawn = basis.weight.clone()
    basis(torch.float32)
    assert torch.equal(basis.weight, drawn) and drawn.dtype == torch.float32
    for _ in range(2):  # every change is noticed, not the first alone
        basis.weight.mul_(1.1)
        assert basis.deviation() > 0.1
        rows = basis(torch.float32)
        assert torch.equal(rows, basis.weight) and basis.deviation() < 1e-6
        torch.testing.assert_close(rows, drawn)
    other = copy.deepcopy(basis)
    other.load_state_dict({"weight": 2 * drawn})
    torch.testing.assert_close(other(torch.float64), drawn.double())
    given = torch.full_like(drawn, 3.0).requires_grad_()
    with torch.enable_grad():  # a weight that is another's result is left alone
        rows = torch.func.functional_call(basis, {"weight": given * 1.0}, (torch.float32,))
    assert torch.equal(rows, given)


@torch.no_grad()
def test_gram_schmidt_leaves_orthonormal_rows_as_they_are():
    basis = OrthogonalBasis(3, 5, 8, "head", "parametrized")
    basis.reset_parameters(torch.Generator().manual_seed(0))
    torch.testing.assert_close(basis(torch.float32), basis.weight, rtol=0, atol=1e-6)
    flipped = torch.eye(4, dtype=torch.float64).flip(0) * torch.tensor([1, -1, -1, 1.0])
    torch.testing.assert_close(orthonormal_rows(flipped), flipped)


@torch.no_grad()
def test_a_kept_basis_follows_its_weight():
    """Without gradients it is computed once; a changed, loaded, converted or copied weight is noticed."""
    basis = OrthogonalBasis(2, 4, 8, "head", "parametrized")
    basis.reset_parameters(torch.Generator().manual_seed(0))
    first = basis(torch.float32)
    assert basis(torch.float32) is first
    copied = copy.deepcopy(basis)
    assert copied._kept is None and torch.equal(copied(torch.float32), first)
    basis.weight.add_(torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1)))
    second = basis(torch.float32)
    assert not torch.equal(second, first) and torch.equal(copied(torch.float32), first)
    basis.load_state_dict(copied.state_dict())
    assert torch.equal(basis(torch.float32), first)
    assert basis.double()(torch.float64).dtype == torch.float64
    basis.bfloat16()
    rows = basis(torch.float32)
    assert (rows @ rows.transpose(1, 2) - torch.eye(4)).abs().max() < 1e-6, "orthonormal beyond the parameter's precision"
