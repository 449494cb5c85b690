"""L4 causality, L5 dependence on the past, L6 prefix visibility."""

import pytest
import torch

from kernels.layout import Layout
from tests.contracts.batches import POISONS, T64, alone, documents, error, place, run
from tests.contracts.cases import WIDTH, build, prefix_readers, select, streaming

causal = select(causal=True)
not_readers = select(prefix=False, cross=False)


def effects(mixer, x_LD, M=0, of=-1) -> torch.Tensor:
    """How far output `of` moves when token j alone is redrawn: (L,). The forward pass itself, whatever its backward says."""
    rows_LLD = x_LD.repeat(len(x_LD), 1, 1)
    rows_LLD[range(len(x_LD)), range(len(x_LD))] = documents([len(x_LD)], seed=77)[0]
    layout = Layout.dense(len(x_LD) + 1, len(x_LD)).with_prefix(M)
    with torch.no_grad():
        y_LLD = mixer.forward(torch.cat([rows_LLD, x_LD[None]]), layout)
    return (y_LLD[:-1, of] - y_LLD[-1, of]).abs().amax(-1)


def blocks(mixer, x_LD, M=0, of=slice(-1, None)) -> torch.Tensor:
    """Jacobian of the chosen outputs: (outputs·D, L, D)."""
    x_LD = x_LD.clone().requires_grad_()
    y = mixer.forward(x_LD[None], alone(x_LD, M).layout)[0, of].flatten()
    return torch.stack([torch.autograd.grad(value, x_LD, retain_graph=True)[0] for value in y])


@pytest.mark.parametrize("n", [13, 340])
@causal
def test_l4_the_future_changes_nothing(case, n):
    """Row t of the batch has tokens >= t redrawn as 50·N(0, 1)."""
    mixer = build(case)
    (doc,) = documents([n])
    for M in [0, 3, n // 2] if case.abilities.prefix else [0]:
        cuts = [t for t in (range(1, n) if n < 20 else (1, n // 2, n // 2 + 1, n - 1)) if t >= max(1, M)]
        rows = []
        for t in cuts:
            changed = doc.clone()
            changed[t:] = documents([n - t], seed=t, scale=50.0)[0]
            rows.append(changed)
        batch = place(rows, "right", 0.0, M, spare=0)
        expected = mixer.forward(doc[None], alone(doc, M).layout)[0]
        x_BLD = batch.x_BLD.requires_grad_()
        y_BLD = mixer.forward(x_BLD, batch.layout)
        past = torch.arange(n) < torch.tensor(cuts)[:, None]
        assert error([y_BLD[past]], [expected.expand_as(y_BLD)[past]]) <= 1e-12, M
        noise = torch.randn(y_BLD.shape, generator=torch.Generator().manual_seed(1), dtype=y_BLD.dtype)
        (gradient,) = torch.autograd.grad((y_BLD * noise)[past].sum(), x_BLD)
        assert not gradient[~past].any(), M
        assert gradient[past].any()


@causal
def test_l5_the_past_counts(case):
    reach = case.abilities.reach
    share = []
    for seed in range(4):
        mixer = build(case, seed=seed)
        (doc,) = documents([8], seed=seed)
        jacobian = blocks(mixer, doc)
        size = jacobian.square().sum((0, 2))
        share.append(float(size[:-1].sum() / size.sum()))
        seen = [j for j in range(8) if reach is None or 7 - j <= reach]
        assert (size[seen] > 0).all(), f"tokens within reach that do not count: {size}"
        unseen = [j for j in range(8) if j not in seen]
        assert not size[unseen].any(), f"tokens beyond reach {reach} that count: {size}"
        moved = effects(mixer, doc)
        assert (moved[seen] > 1e-9).all() and (moved[unseen] < 1e-12).all(), moved
    # the median of four draws, the kinder middle one
    assert sorted(share)[2] >= 0.05, share


@causal
def test_l5_the_first_token_still_counts(case):
    n = 24
    size = blocks(build(case), documents([n])[0]).square().sum((0, 2))
    reach = case.abilities.reach
    if reach is None:
        assert size[0] > 0
    elif reach < n - 1:
        assert not size[: n - 1 - reach].any()
        assert size[n - 1 - reach] > 0


@prefix_readers
def test_l6_the_first_token_sees_the_whole_prefix_and_no_more(case):
    mixer = build(case)
    for n, M in ((9, 4), (9, 9), (5, 99), (13, 1)):
        (doc,) = documents([n], seed=n)
        m = min(n, M)
        jacobian = blocks(mixer, doc, M, slice(0, m)).unflatten(0, (m, WIDTH)).square().sum((1, 3))
        assert jacobian[0, m - 1] > 0
        assert (jacobian[:, :m] > 0).all()
        assert not jacobian[:, m:].any()
        moved = effects(mixer, doc, M, 0)
        assert (moved[:m] > 1e-9).all() and (moved[m:] < 1e-12).all(), moved


@prefix_readers
def test_l6_the_prefix_end_counts_real_tokens(case):
    """m = min(M, n) with n the document's length: padding must not lengthen a prefix."""
    mixer = build(case)
    docs = documents([5, 12])
    for side in ("left", "right", "interior"):
        batch = place(docs, side, POISONS["nan"], 8)
        assert [m for _, _, m in batch.layout.documents] == [5, 8]
        y = batch.collect(mixer.forward(batch.x_BLD, batch.layout))
        expected = [mixer.forward(doc[None], alone(doc, m).layout)[0] for doc, m in zip(docs, (5, 8))]
        assert error(y, expected) <= T64


@prefix_readers
def test_l6_no_prefix_is_causal(case):
    mixer = build(case)
    (doc,) = documents([9])
    plain = alone(doc)
    expected = mixer.forward(plain.x_BLD, plain.layout)
    assert torch.equal(mixer.forward(plain.x_BLD, plain.layout.with_prefix(0)), expected)
    mixed = place([doc, doc], "right", 0.0, [0, 4])
    got = mixed.collect(mixer.forward(mixed.x_BLD, mixed.layout))
    assert error([got[0]], [expected[0]]) <= T64
    assert error([got[1]], [expected[0]]) > 1e-3, "the prefix changes nothing"


@prefix_readers
def test_l6_keep_out_takes_tokens_from_the_prefix(case):
    mixer = build(case)
    (doc,) = documents([6])
    plain = alone(doc)
    kept_out = plain.layout.with_prefix(99, keep_out=1)
    assert kept_out.documents[0][2] == 5
    expected = mixer.forward(plain.x_BLD, plain.layout.with_prefix(5))
    assert torch.equal(mixer.forward(plain.x_BLD, kept_out), expected)


@not_readers
def test_l6_others_do_not_read_the_prefix(case):
    mixer = build(case)
    docs = documents([9, 5, 13])
    expected = place(docs, "left")
    g = [doc.cos() for doc in docs]
    plain = run(mixer, expected, g)
    for M in (1, 3, 99):
        got = run(mixer, place(docs, "left", 0.0, M), g)
        assert torch.equal(got.y_BLD, plain.y_BLD)
        assert torch.equal(got.dx_BLD, plain.dx_BLD)


@not_readers
@torch.no_grad()
def test_others_do_not_read_muted_slots(case):
    """Muted tokens are real to everybody but the released prefix mask."""
    mixer = build(case)
    (doc,) = documents([9])
    layout = alone(doc).layout
    muted = layout.with_muted(torch.arange(9)[None] < 3)
    assert torch.equal(mixer.forward(doc[None], muted), mixer.forward(doc[None], layout))


@streaming
def test_streaming_implies_causal(case):
    assert case.abilities.causal
