"""L19 labels: no `next` target inside the prefix or across documents, and no loss that has seen its answer."""

import numpy as np
import pytest
import torch

from kernels.errors import LayoutError
from models.objectives import answers_batch, losses, next_token_batch, prefix_lm_batch, target_losses, uniform_draws
from tests.contracts.hybrid import VOCABULARY, hybrid

N, MASK = 24, VOCABULARY - 1


def rows(B: int = 3, length: int = N + 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, VOCABULARY - 1, (B, length))


STARTS = [np.array(s) for s in ([0, 5, 6, 20], [0, 12], [3, 11, 13, 24])]


def built(ids, starts, **options):
    return prefix_lm_batch(ids, starts, mask_id=MASK, draws_BN=uniform_draws(1, 0, range(len(ids)), N), **options)


@pytest.mark.parametrize("boundary", ["released", "predict"])
@pytest.mark.parametrize("prefix", [0, 1, 8, 12, 24])
@pytest.mark.parametrize("starts", [None, STARTS], ids=["one-text", "documents"])
def test_l19_next_targets_lie_after_the_prefix(starts, prefix, boundary):
    ids = rows()
    batch = built(ids, starts, prefix=prefix, boundary=boundary)
    layout = batch.layout
    term = batch.terms["next"]
    slot_S, m_S = layout.position_BL.flatten()[term.index_S], layout.prefix_BL.flatten()[term.index_S]
    assert (slot_S >= m_S - int(boundary == "predict")).all()
    assert (slot_S >= 0).all() and bool(layout.real_BL.flatten()[term.index_S].all())
    row_S, column_S = term.index_S // N, term.index_S % N
    assert term.target_S.tolist() == ids[row_S.numpy(), column_S.numpy() + 1].tolist()
    if starts is not None:
        for row, column in zip(row_S.tolist(), column_S.tolist()):
            assert column + 1 not in starts[row], "a target across documents"
    # nothing that may be learnt is left out
    wanted = sum(
        i + 1 not in (() if starts is None else starts[b]) and i >= prefix - int(boundary == "predict")
        for b in range(len(ids)) for i in range(N)
    )
    assert len(term.index_S) == wanted
    masked = batch.terms.get("masked")
    if masked is not None and len(masked.index_S):
        assert bool(layout.in_prefix_BL.flatten()[masked.index_S].all())
        assert (batch.ids_BL.flatten()[masked.index_S] == MASK).all()
        slots_S = masked.index_S.numpy()
        assert masked.target_S.tolist() == ids[slots_S // N, slots_S % N].tolist()


@pytest.mark.parametrize("boundary", ["released", "predict"])
@pytest.mark.parametrize("starts", [None, STARTS], ids=["one-text", "documents"])
def test_l19_a_token_does_not_help_to_predict_itself(starts, boundary):
    """Change raw token j: every `next` loss on a token before j stays, bit for bit in float64 up to T64."""
    model, ids = hybrid(), rows()
    before = built(ids, starts, prefix=8, boundary=boundary)
    reference = logits(model, before)
    for j in range(1, N + 1):
        changed = ids.copy()
        changed[:, j] = 1 + (changed[:, j] + 3) % (VOCABULARY - 3)
        batch = built(changed, starts, prefix=8, boundary=boundary)
        assert torch.equal(batch.terms["next"].index_S, before.terms["next"].index_S)
        earlier = before.terms["next"].index_S % N + 1 <= j
        assert (logits(model, batch)[earlier] - reference[earlier]).abs().max().item() < 1e-9 if earlier.any() else True


@torch.no_grad()
def logits(model, batch) -> torch.Tensor:
    x_SD = model.hidden(batch.ids_BL, batch.layout).flatten(0, 1)[batch.terms["next"].index_S]
    return model.head(x_SD)


@torch.no_grad()
def test_l19_answers_are_not_in_the_prefix():
    """Recall rows: the prefix ends before the first answer, so changing an answer leaves its own logits alone."""
    model = hybrid()
    lengths, prefix = np.array([20, 13]), np.array([12, 7])
    answers = [np.array([13, 14, 17]), np.array([6, 9])]

    def batch_of(flat):
        return answers_batch(flat, lengths, prefix, answers, reads_prefix=True, mask_id=MASK, mask_share=0.0)

    flat = rows(1, 33)[0]
    batch = batch_of(flat)
    assert [m for _, _, m in batch.layout.documents] == prefix.tolist()
    assert batch.layout.lengths == (19, 12)
    L = batch.layout.shape[1]
    x_BLD = model.hidden(batch.ids_BL, batch.layout).flatten(0, 1)
    offsets = [0, 20]
    for row, slots in enumerate(answers):
        for slot in slots.tolist():
            changed = flat.copy()
            changed[offsets[row] + slot + 1] = 1 + changed[offsets[row] + slot + 1] % (VOCABULARY - 2)
            other = batch_of(changed)
            index = row * L + slot
            y_BLD = model.hidden(other.ids_BL, other.layout).flatten(0, 1)
            assert (y_BLD[index] - x_BLD[index]).abs().max() < 1e-9
            if slot + 2 < lengths[row]:
                assert (y_BLD[index + 1] - x_BLD[index + 1]).abs().max() > 1e-6, "the change reaches nobody"


def test_l19_an_answer_inside_the_prefix_is_refused():
    for slot in (3, 18, 25):
        with pytest.raises(LayoutError):
            answers_batch(rows(1, 19)[0], np.array([19]), np.array([8]), [np.array([slot])], reads_prefix=True, mask_id=MASK)


def test_l19_masks_depend_on_seed_epoch_and_row_alone():
    one, many = uniform_draws(3, 2, [7], 50), uniform_draws(3, 2, [1, 7, 4], 50)
    assert np.array_equal(one[0], many[1])
    assert np.array_equal(uniform_draws(3, 2, [7], 20)[0], one[0, :20])
    for other in (uniform_draws(4, 2, [7], 50), uniform_draws(3, 1, [7], 50), uniform_draws(3, 2, [8], 50)):
        assert not np.array_equal(other, one)
    share = (uniform_draws(0, 0, range(400), 100) < 0.15).mean()
    assert abs(share - 0.15) < 0.006


def test_l19_losses_are_means_over_their_targets():
    model, ids = hybrid(), rows()
    batch = built(ids, None, prefix=8)
    total, terms = losses(model, batch)
    parts = target_losses(model, batch)
    assert total.item() == pytest.approx((parts["next"].mean() + 0.25 * parts["masked"].mean()).item() / 1.25, rel=1e-12)
    plain = next_token_batch(ids, STARTS)
    assert plain.supervised == N * 3 - sum(((s > 0) & (s <= N)).sum() for s in STARTS)
