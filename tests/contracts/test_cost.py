"""L10 bytes: what a state holds is what its mixer declares."""

import pytest
import torch

from tests.contracts.batches import alone, dense, documents, place
from tests.contracts.cases import build, streaming, whatever

LENGTHS = (64, 257, 1024, 4096)


def prefill_bytes(mixer, n: int, B: int, dtype: torch.dtype = torch.float32) -> int:
    batch = dense(documents([n] * B, dtype))
    return mixer.prefill(batch.x_BLD, batch.layout)[1].nbytes


@streaming
@torch.no_grad()
def test_l10_declared_bytes_are_held(case):
    mixer = build(case, torch.float32)
    longest = case.abilities.max_length or LENGTHS[-1]
    lengths = [n for n in LENGTHS if n <= longest]
    held = {n: prefill_bytes(mixer, n, 1) for n in lengths}
    for n in lengths:
        assert held[n] == mixer.cost(n, torch.float32).state_bytes, n
    assert prefill_bytes(mixer, lengths[0], 3) == 3 * held[lengths[0]]
    assert (len(set(held.values())) == 1) == (case.abilities.growth == "constant"), held


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["f64", "bf16"])
@streaming
@torch.no_grad()
def test_l10_bytes_follow_the_dtype(case, dtype):
    mixer = build(case, dtype)
    for n in (0, 1, 64):
        assert prefill_bytes(mixer, n, 2, dtype) == 2 * mixer.cost(n, dtype).state_bytes, n


@streaming
@torch.no_grad()
def test_l10_bytes_after_steps(case):
    """A step must not keep the past alive through a view."""
    mixer = build(case, torch.float32)
    batch = alone(documents([40], torch.float32)[0])
    _, state = mixer.prefill(batch.x_BLD, batch.layout)
    for x_BD in documents([1] * 3, torch.float32):
        _, state = mixer.step(x_BD, state)
    if case.abilities.growth == "constant":
        assert state.nbytes == mixer.cost(43, torch.float32).state_bytes
    else:
        assert state.nbytes >= mixer.cost(43, torch.float32).state_bytes


@streaming
@torch.no_grad()
def test_l10_live_bytes_count_each_row(case):
    mixer = build(case, torch.float32)
    batch = place(documents([5, 0, 30], torch.float32), "left")
    _, state = mixer.prefill(batch.x_BLD, batch.layout)
    live = state.live_bytes(lambda n: mixer.cost(n, torch.float32))
    assert live == sum(mixer.cost(n, torch.float32).state_bytes for n in (5, 0, 30))


@whatever
def test_l10_parameters_are_counted(case):
    mixer = build(case)
    assert mixer.cost(64, torch.float32).parameters == sum(p.numel() for p in mixer.parameters())


@whatever
def test_costs_grow_with_length(case):
    """flops is the whole forward, step_flops the next token: projections are in both, and steps add up to a forward."""
    mixer = build(case)
    matrices = sum(p.numel() for p in mixer.parameters() if p.dim() > 1)
    assert mixer.cost(100, torch.float32).flops >= 2 * 100 * matrices
    short, long = mixer.cost(100, torch.float32), mixer.cost(101, torch.float32)
    assert 0 < short.flops < long.flops
    if case.abilities.streaming and not case.abilities.prefix:
        # short.step_flops is what the 101st token costs
        assert long.flops - short.flops == pytest.approx(short.step_flops, rel=0.5)
