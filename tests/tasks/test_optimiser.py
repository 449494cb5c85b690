"""One optimiser object: groups by what a parameter is, torch's own arithmetic, rates by step, state that round-trips."""

import copy
import time

import pytest
import torch
from torch import nn

from storage.errors import SpecError
from tasks.specs import OptimiserSpec
from tasks.training import optimiser as optimisers
from tasks.training.schedule import rate_share, set_rates


class Toy(nn.Module):
    """One parameter of every kind: tied embedding, matrices (tall, wide, square), bias, norm, convolution, no_decay."""

    def __init__(self, width=8):
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width, bias=False)
        self.square = nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, width, 3, groups=width)
        self.gate = nn.Module()
        self.gate.decay = nn.Parameter(torch.randn(width, 2))
        self.scales = {"gate.decay": 0.5}

    def matrices(self):
        return {"inner.weight", "outer.weight", "square.weight"}

    def no_decay(self):
        return {name for name, p in self.named_parameters() if p.ndim < 2} | {"embedding.weight", "gate.decay"}

    def lr_scale(self):
        return self.scales

    def forward(self, ids_BL):
        x_BLD = self.norm(self.embedding(ids_BL))
        x_BLD = x_BLD + self.outer(torch.relu(self.inner(x_BLD))) + self.square(x_BLD) * self.gate.decay[:, 0]
        x_BLD = x_BLD + self.conv(nn.functional.pad(x_BLD.mT, (2, 0))).mT
        return x_BLD @ self.embedding.weight.T


def toy(seed=0):
    torch.manual_seed(seed)
    return Toy()


def train(model, optimiser, steps, first=0):
    for step in range(first, first + steps):
        ids_BL = torch.randint(0, 16, (4, 9), generator=torch.Generator().manual_seed(step))
        logits_BLE = model(ids_BL[:, :-1])
        nn.functional.cross_entropy(logits_BLE.flatten(0, 1), ids_BL[:, 1:].flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()


def names(model, parameters):
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    return [by_id[id(parameter)] for parameter in parameters]


def test_groups():
    matrices, decayed, spared = optimisers.group_parameters(toy())
    assert list(matrices) == ["inner.weight", "outer.weight", "square.weight"]
    assert list(decayed) == ["conv.weight"]
    assert list(spared) == ["embedding.weight", "inner.bias", "norm.weight", "norm.bias", "conv.bias", "gate.decay"]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_is_in_exactly_one_group_and_decay_spares_the_right_ones(kind):
    model = toy()
    optimiser = optimisers.build(model, OptimiserSpec(kind=kind, weight_decay=0.1))
    placed = [id(parameter) for group in optimiser.param_groups for parameter in group["params"]]
    assert sorted(placed) == sorted(id(parameter) for parameter in model.parameters())
    decay = {name: group["weight_decay"] for group in optimiser.param_groups for name in names(model, group["params"])}
    assert [name for name, share in decay.items() if share] == (
        ["inner.weight", "outer.weight", "square.weight", "conv.weight"] if kind == "adamw" else ["conv.weight"])
    assert isinstance(optimiser, torch.optim.Optimizer)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_module_may_scale_the_rate_of_its_parameters(kind):
    model = toy()
    optimiser = optimisers.build(model, OptimiserSpec(kind=kind, learning_rate=1e-2, matrix_learning_rate=2e-2))
    set_rates(optimiser, 0.1)
    rate = {name: group["lr"] for group in optimiser.param_groups for name in names(model, group["params"])}
    assert rate["gate.decay"] == pytest.approx(0.5e-3) and rate["embedding.weight"] == pytest.approx(1e-3)
    assert rate["square.weight"] == pytest.approx(2e-3 if kind == "muon" else 1e-3)


def test_adamw_is_torchs():
    ours, theirs = toy(), toy()
    ours.scales = {}
    spec = OptimiserSpec(learning_rate=1e-2, weight_decay=0.0)
    train(ours, optimisers.build(ours, spec), 5)
    train(theirs, torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0), 5)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
        assert torch.allclose(a, b, atol=2e-6), name


def test_batched_muon_agrees_with_torchs_muon():
    """Up to torch's bfloat16 iteration. Two matrices of one shape, a tall and a wide one."""
    torch.manual_seed(0)
    shapes = [(8, 8), (8, 8), (24, 8), (8, 24)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    before = [p.detach().clone() for p in ours]
    options = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1}
    pair = optimisers.BatchedMuon(ours, **options), torch.optim.Muon(theirs, **options)
    for _ in range(3):
        for a, b in zip(ours, theirs):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for optimiser in pair:
            optimiser.step()
    for a, b, start in zip(ours, theirs, before):
        assert (a - b).norm() < 0.02 * (b - start).norm()


@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 12, 5), (2, 5, 12)])
def test_orthogonalised_matrices_have_singular_values_near_one_and_keep_the_singular_vectors(shape):
    g_NRC = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, v = torch.linalg.svd(g_NRC, full_matrices=False)
    o_NRC = optimisers.orthogonalise(g_NRC)
    diagonal = u.mT @ o_NRC @ v.mT
    sizes = diagonal.diagonal(dim1=-2, dim2=-1)
    assert (sizes > 0.3).all() and (sizes < 1.3).all()
    assert torch.allclose(diagonal, torch.diag_embed(sizes), atol=1e-8)
    assert (optimisers.orthogonalise(torch.zeros(shape)) == 0).all()


def test_muon_moves_matrices_by_muon_and_the_rest_by_adamw():
    spec = OptimiserSpec(kind="muon", learning_rate=1e-2, matrix_learning_rate=0.02, weight_decay=0.0)
    together, muon, adam = toy(), toy(), toy()
    together.scales = {}
    train(together, optimisers.build(together, spec), 1)
    matrices = optimisers.group_parameters(muon)[0]
    train(muon, optimisers.BatchedMuon(matrices.values(), lr=0.02, momentum=0.95, weight_decay=0.0), 1)
    _, decayed, spared = optimisers.group_parameters(adam)
    train(adam, optimisers.adamw([{"params": [*decayed.values(), *spared.values()], "weight_decay": 0.0}], spec), 1)
    start = dict(toy().named_parameters())
    for name, parameter in together.named_parameters():
        alone = muon if name in matrices else adam
        assert torch.equal(parameter, alone.get_parameter(name)), name
        assert not torch.equal(parameter, start[name]), name


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_round_trips_bit_for_bit(kind, tmp_path):
    """6 steps = 3 steps, save, new objects, load, 3 steps; rates set after loading reach the loaded groups."""
    spec = OptimiserSpec(kind=kind)
    straight = toy()
    optimiser = optimisers.build(straight, spec)
    train(straight, optimiser, 3)
    set_rates(optimiser, 0.25)
    train(straight, optimiser, 3, first=3)
    first = toy()
    optimiser = optimisers.build(first, spec)
    train(first, optimiser, 3)
    torch.save({"model": first.state_dict(), "optimiser": optimiser.state_dict()}, tmp_path / "state.pt")
    second = toy(seed=1)
    optimiser = optimisers.build(second, spec)
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    second.load_state_dict(loaded["model"])
    optimiser.load_state_dict(copy.deepcopy(loaded["optimiser"]))
    set_rates(optimiser, 0.25)
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.25 * (0.02 if kind == "muon" else 8e-4))
    train(second, optimiser, 3, first=3)
    for (name, a), b in zip(straight.named_parameters(), second.parameters()):
        assert torch.equal(a, b), name


def test_muon_needs_matrices():
    model = toy()
    model.matrices = set
    with pytest.raises(SpecError, match="no weight matrix.*adamw"):
        optimisers.build(model, OptimiserSpec(kind="muon"))


def test_batching_equal_shapes_is_why_there_is_a_subclass():
    """Kept as a test so that the day torch's own step is quick enough, this file says so."""
    shapes = [(128, 128)] * 12

    def seconds(make):
        parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimiser = make(parameters, lr=0.02, weight_decay=0.0)
        optimiser.step()
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            optimiser.step()
            took.append(time.perf_counter() - begin)
        return min(took)

    assert seconds(optimisers.BatchedMuon) < seconds(torch.optim.Muon)


# ---------------------------------------------------------------------------------------------------------- schedule
def shares(steps, **options):
    spec = OptimiserSpec(**options)
    return [rate_share(step, steps, spec) for step in range(steps)]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedule_ends(schedule):
    values = shares(100, schedule=schedule, warmup_steps=10, final_share=0.1)
    assert values[:11] == pytest.approx([(i + 1) / 11 for i in range(11)])
    assert values[-1] == pytest.approx(0.1) and max(values) == values[10] == 1
    assert all(a > b for a, b in zip(values[10:], values[11:]))
    middle = 10 + (99 - 10) / 2
    assert rate_share(int(middle), 100, OptimiserSpec(schedule=schedule, warmup_steps=10)) == pytest.approx(
        0.55, abs=0.02)
    quarter = rate_share(10 + 89 // 4, 100, OptimiserSpec(schedule=schedule, warmup_steps=10))
    assert quarter == pytest.approx({"linear": 0.777, "cosine": 0.871}[schedule], abs=0.005)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_short_runs_never_get_a_rate_of_zero_or_above_the_peak(steps):
    values = shares(steps, warmup_steps=600)
    assert all(0 < value <= 1 for value in values) and values[-1] >= 0.1
