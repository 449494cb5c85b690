"""Labels, masks, weights and losses of the three objectives, against the released code's numbers and by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kernels.errors import LayoutError
from models.objectives import (
    answers_batch,
    losses,
    next_token_batch,
    prefix_lm_batch,
    target_losses,
    uniform_draws,
)


class Recorded:
    """A model whose logits are given: the hidden state of a slot is its number, the head looks the number up."""

    def __init__(self, logits_BLE):
        self.logits_SE = logits_BLE.flatten(0, 1)

    def hidden(self, ids_BL, layout):
        return torch.arange(ids_BL.numel(), dtype=torch.float64).view(*ids_BL.shape, 1)

    def head(self, x_SD):
        return self.logits_SE[x_SD[:, 0].long()]


def dense_labels(batch, name):
    """A term as a (B, L) table, −100 where nothing is wanted."""
    labels = torch.full((batch.ids_BL.numel(),), -100)
    labels[batch.terms[name].index_S] = batch.terms[name].target_S
    return labels.view(batch.ids_BL.shape)


@pytest.fixture
def golden(shared):
    return dict(np.load(shared / "golden" / "jrt" / "training_objective.npz"))


def released(golden, **options):
    """The recorded batch; its masks were drawn by the released code, so they are given as draws of 0 and 1."""
    raw, length = golden["raw_tokens"], int(golden["enc_length"])
    masked = golden["inputs"] == int(golden["mask_token_id"])
    masked[:, length:] = False
    return prefix_lm_batch(raw, None, prefix=length, mask_id=int(golden["mask_token_id"]), draws_BN=1.0 - masked,
                           mask_share=0.5, mask_weight=float(golden["mlm_weight"]), **options)


def test_golden_inputs_and_labels(golden):
    batch = released(golden)
    assert np.array_equal(batch.ids_BL.numpy(), golden["inputs"])
    length = int(golden["enc_length"])
    assert np.array_equal(dense_labels(batch, "masked")[:, :length].numpy(), golden["labels"][:, :length])
    assert np.array_equal(dense_labels(batch, "next")[:, length:].numpy(), golden["labels"][:, length:])
    assert (dense_labels(batch, "next")[:, :length] == -100).all()
    assert batch.layout.documents == tuple((row, 24, length) for row in range(3))


@pytest.mark.parametrize("options, total", [
    ({"normalisation": "released", "target_zero": False}, "official_total_loss64"),
    ({"normalisation": "paper"}, "paper_formula_total"),
])
def test_golden_losses(golden, options, total):
    model = Recorded(torch.from_numpy(golden["logits"].astype(np.float64)))
    loss, terms = losses(model, released(golden, **options))
    masked = "excluding" if "target_zero" in options else "including"
    assert terms["next"].item() == pytest.approx(float(golden["official_ntp_loss64"]), abs=1e-12)
    assert terms["masked"].item() == pytest.approx(float(golden[f"numpy_mlm_unweighted_{masked}_label0"]), abs=1e-12)
    assert loss.item() == pytest.approx(float(golden[total]), abs=1e-12)


def test_head_sees_only_targets_and_losses_match_a_dense_head():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(1, 30, (4, 13), generator=generator).numpy()
    batch = prefix_lm_batch(rows, None, prefix=6, mask_id=31, draws_BN=uniform_draws(0, 0, range(4), 12),
                            mask_share=0.4)
    logits = torch.randn(4, 12, 32, generator=generator, dtype=torch.float64)
    seen = []
    model = Recorded(logits)
    inner, model.head = model.head, lambda x: seen.append(len(x)) or inner(x)
    total, terms = losses(model, batch)
    assert seen == [batch.supervised] and batch.supervised < batch.tokens
    for name in terms:
        dense = F.cross_entropy(logits.flatten(0, 1), dense_labels(batch, name).flatten(), ignore_index=-100)
        assert terms[name].item() == pytest.approx(dense.item(), abs=1e-12)
    expected = (terms["next"] + 0.25 * terms["masked"]) / 1.25
    assert total.item() == pytest.approx(expected.item(), abs=1e-12)


# ------------------------------------------------------------------------------------------------------------- draws
def test_draws_depend_on_seed_epoch_and_row_alone():
    every = uniform_draws(3, 1, range(100), 64)
    some = uniform_draws(3, 1, [70, 2], 64)
    assert np.array_equal(some, every[[70, 2]])
    assert np.array_equal(uniform_draws(3, 1, [70], 10)[0], every[70, :10])
    mixed = uniform_draws(3, np.array([1, 2]), [70, 2], 64)
    assert np.array_equal(mixed[0], every[70]) and np.array_equal(mixed[1], uniform_draws(3, 2, [2], 64)[0])
    for other in (uniform_draws(4, 1, range(100), 64), uniform_draws(3, 2, range(100), 64)):
        assert abs(np.corrcoef(every.ravel(), other.ravel())[0, 1]) < 0.05


def test_draws_are_uniform_and_independent_along_a_row_and_across_rows():
    draws = uniform_draws(0, 0, range(1000), 256)
    assert draws.min() >= 0 and draws.max() < 1
    assert abs((draws < 0.15).mean() - 0.15) < 4 * (0.15 * 0.85 / draws.size) ** 0.5
    assert np.histogram(draws, 64, (0, 1))[0].std() < 4 * (draws.size / 64) ** 0.5
    for axis in (0, 1):
        assert abs(np.corrcoef(draws.ravel(), np.roll(draws, 1, axis).ravel())[0, 1]) < 0.01


def test_draws_are_frozen():
    """Masks are part of a run's identity. The same chain of SplitMix64 hashes in plain Python integers."""
    step, full = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(x):
        x &= full
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & full
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & full
        return x ^ x >> 31

    key = mix(mix(mix(7 + step) + 2 * step + step) + 5 * step + step)
    expected = [(mix(key + (i + 1) * step) >> 11) / 2**53 for i in range(3)]
    assert uniform_draws(7, 2, [5], 3)[0].tolist() == expected
    assert expected[0] == 0.7536009613355524


# ------------------------------------------------------------------------------------------------ rows of the shards
def test_supervised_share_is_the_papers():
    """JRT §5: half the slots predict the next token, 15 % of the other half are guessed: 57.5 %."""
    rows = np.random.default_rng(0).integers(1, 50, (256, 257))
    batch = prefix_lm_batch(rows, None, prefix=128, mask_id=63, draws_BN=uniform_draws(0, 0, range(256), 256))
    deviation = (0.15 * 0.85 / (256 * 128)) ** 0.5 * 0.5
    assert batch.supervised / batch.tokens == pytest.approx(0.575, abs=4 * deviation)
    assert len(batch.terms["next"].target_S) == 256 * 128


@pytest.mark.parametrize("boundary, first", [("released", 6), ("predict", 5)])
def test_boundary_slot(boundary, first):
    rows = np.arange(26).reshape(2, 13)
    batch = prefix_lm_batch(rows, None, prefix=6, mask_id=99, draws_BN=np.ones((2, 12)), boundary=boundary)
    wanted = dense_labels(batch, "next")
    assert (wanted[:, :first] == -100).all()
    assert np.array_equal(wanted[:, first:].numpy(), rows[:, first + 1:])


def test_documents_do_not_predict_each_other():
    rows = np.arange(100, 126).reshape(2, 13)
    starts = [np.array([0, 4, 12]), np.array([5])]  # row 1 begins in the middle of a document
    batch = next_token_batch(rows, starts)
    wanted = dense_labels(batch, "next")
    assert [n for _, n, _ in batch.layout.documents] == [4, 8, 5, 7]
    assert wanted[0].tolist() == [101, 102, 103, -100, 105, 106, 107, 108, 109, 110, 111, -100]
    assert wanted[1, 4] == -100 and wanted[1, 11] == rows[1, 12]
    dense = next_token_batch(rows, None)
    assert len(dense.terms["next"].target_S) == 24 and not dense.layout.packed


def test_prefix_belongs_to_the_document():
    rows = np.arange(100, 113)[None]
    starts = [np.array([0, 3, 9])]
    batch = prefix_lm_batch(rows, starts, prefix=6, mask_id=99, draws_BN=np.zeros((1, 12)), mask_share=0.15,
                            boundary="predict")
    assert [(n, m) for _, n, m in batch.layout.documents] == [(3, 3), (6, 3), (3, 0)] and batch.silent == 1
    assert (batch.ids_BL[0, :6] == 99).all() and (batch.ids_BL[0, 6:] != 99).all()
    assert dense_labels(batch, "masked")[0].tolist() == [*range(100, 106)] + [-100] * 6
    assert dense_labels(batch, "next")[0].tolist() == [-100] * 5 + [106, 107, 108, -100, 110, 111, 112]


def test_validation_asks_only_for_the_causal_half():
    rows = np.arange(13)[None]
    assert dense_labels(next_token_batch(rows, None, first_slot=6), "next")[0].tolist() == [-100] * 6 + [*range(7, 13)]


# ------------------------------------------------------------------------------------------------------- recall rows
ROWS = [np.arange(100, 110), np.arange(200, 207)]  # n = 10 and 7
PREFIX = np.array([6, 4])
ANSWERS = [np.array([6, 8]), np.array([5])]


def recall(**options):
    settings = {"reads_prefix": False, "mask_id": 99, "draws_BL": np.zeros((2, 16))} | options
    return answers_batch(np.concatenate(ROWS), np.array([10, 7]), PREFIX, ANSWERS, **settings)


def test_causal_answers_and_document_terms():
    batch = recall()
    assert batch.layout.lengths == (9, 6) and not batch.layout.prefixed
    assert batch.ids_BL[0].tolist() == [*range(100, 109)]
    assert dense_labels(batch, "answer")[0].tolist() == [-100] * 6 + [107, -100, 109]
    assert dense_labels(batch, "answer")[1].tolist() == [-100] * 5 + [206] + [-100] * 3
    assert dense_labels(batch, "document")[0].tolist() == [*range(101, 106)] + [-100] * 4
    assert dense_labels(batch, "document")[1].tolist() == [201, 202, 203] + [-100] * 6
    assert batch.tokens == 17 and batch.supervised == 3 + 5 + 3
    assert [term.weight for term in batch.terms.values()] == [0.5, 0.5]


def test_prefix_answers_and_masked_terms():
    batch = recall(reads_prefix=True, normalisation="released")
    assert [(n, m) for _, n, m in batch.layout.documents] == [(9, 6), (6, 4)]
    assert batch.ids_BL[0].tolist() == [99] * 6 + [106, 107, 108]
    assert batch.ids_BL[1, :6].tolist() == [99] * 4 + [204, 205]
    assert dense_labels(batch, "masked")[1].tolist() == [200, 201, 202, 203] + [-100] * 5
    assert {name: term.weight for name, term in batch.terms.items()} == {"answer": 1.0, "masked": 0.25}
    assert torch.equal(batch.terms["answer"].index_S, recall().terms["answer"].index_S)


def test_shares_follow_the_draws():
    draws = uniform_draws(0, 0, range(2), 16)
    batch = recall(draws_BL=draws, document_share=0.5)
    assert np.array_equal((dense_labels(batch, "document")[0, :5] != -100).numpy(), draws[0, :5] < 0.5)
    assert set(recall(document_share=0.0).terms) == {"answer"} == set(recall(reads_prefix=True, mask_share=0.0).terms)


def test_the_last_prefix_slot_may_predict_the_answer():
    """Set intersection: the whole prompt is prefix and its last slot gives the answer."""
    batch = answers_batch(np.arange(8), np.array([8]), np.array([7]), [np.array([6])], reads_prefix=True, mask_id=99,
                          mask_share=0.0)
    assert batch.layout.documents == ((0, 7, 7),)
    assert dense_labels(batch, "answer")[0].tolist() == [-100] * 6 + [7]


@pytest.mark.parametrize("slot", [4, 9])
def test_an_answer_inside_the_prefix_or_past_the_end_is_refused(slot):
    with pytest.raises(LayoutError, match=f"row 0 .* slot {slot}, .* 6 .* 10 tokens"):
        answers_batch(np.concatenate(ROWS), np.array([10, 7]), PREFIX, [np.array([slot]), ANSWERS[1]],
                      reads_prefix=False, mask_id=99)


def test_divisor_makes_parts_add_up_to_the_whole():
    """Two halves of a batch with shared divisors average to the loss of the whole batch."""
    from dataclasses import replace
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 9, 300, generator=generator, dtype=torch.float64)
    whole, _ = losses(Recorded(logits), recall())
    parts = []
    for row in range(2):
        part = answers_batch(ROWS[row], np.array([len(ROWS[row])]), PREFIX[row:row + 1], [ANSWERS[row]],
                             reads_prefix=False, mask_id=99, draws_BL=np.zeros((1, 16)))
        shared = {name: replace(term, divisor=len(recall().terms[name].target_S) / 2)
                  for name, term in part.terms.items()}
        length = part.ids_BL.shape[1]
        parts.append(losses(Recorded(logits[row:row + 1, :length]), replace(part, terms=shared))[0])
    assert sum(parts).item() / 2 == pytest.approx(whole.item(), abs=1e-12)


def test_a_term_without_targets_counts_nothing():
    batch = recall(draws_BL=np.ones((2, 16)))
    logits = torch.randn(2, 9, 300, dtype=torch.float64, requires_grad=True)
    total, terms = losses(Recorded(logits), batch)
    assert terms["document"] == 0 and total.item() == pytest.approx(0.5 * terms["answer"].item())
    total.backward()
    assert torch.isfinite(logits.grad).all()
    assert {name: len(loss) for name, loss in target_losses(Recorded(logits), batch).items()} == {
        "answer": 3, "document": 0}
