"""JRT's training objective, labels and both normalisations, against what the released code computed (golden/jrt)."""

import numpy as np
import pytest
import torch

from models.objectives import losses, prefix_lm_batch
from tests.golden.reference import reference


class Given:
    """A scorer whose logits are those of the reference run."""

    def __init__(self, logits_BLE: torch.Tensor):
        self.logits_BLE = logits_BLE

    def hidden(self, ids_BL, layout):
        assert ids_BL.shape == self.logits_BLE.shape[:2] == layout.shape
        return self.logits_BLE

    def head(self, x_SD):
        return x_SD


@pytest.fixture(scope="module")
def golden():
    return reference("training_objective")


def batch_of(golden, **options):
    """The reference drew its masks from an unseeded generator: they are read off its labels."""
    M, labels = int(golden["enc_length"]), golden["labels"]
    draws = np.ones(labels.shape)
    draws[:, :M][labels[:, :M] != -100] = 0.0
    return prefix_lm_batch(golden["raw_tokens"], None, prefix=M, mask_id=int(golden["mask_token_id"]), draws_BN=draws,
                           mask_share=0.5, mask_weight=float(golden["mlm_weight"]), **options)


def test_inputs_and_labels_are_the_released_ones(golden):
    batch = batch_of(golden)
    assert np.array_equal(batch.ids_BL.numpy(), golden["inputs"])
    labels = np.full(golden["labels"].size, -100)
    for term in batch.terms.values():
        assert (labels[term.index_S] == -100).all()
        labels[term.index_S] = term.target_S
    assert np.array_equal(labels.reshape(golden["labels"].shape), golden["labels"])


def test_released_loss(golden):
    """No division by 1.25, and token id 0 is never a masked target (the released code selects labels > 0)."""
    scorer = Given(torch.from_numpy(golden["logits"]).double())
    total, terms = losses(scorer, batch_of(golden, normalisation="released", target_zero=False))
    assert terms["next"].item() == pytest.approx(float(golden["official_ntp_loss64"]), abs=1e-12)
    assert terms["masked"].item() * 0.25 == pytest.approx(float(golden["official_weighted_mlm_loss64"]), abs=1e-12)
    assert total.item() == pytest.approx(float(golden["official_total_loss64"]), abs=1e-12)
    total32, _ = losses(Given(torch.from_numpy(golden["logits"]).float()),
                        batch_of(golden, normalisation="released", target_zero=False))
    assert total32.item() == pytest.approx(float(golden["official_total_loss32"]), abs=2e-5)


def test_paper_loss(golden):
    """Eq. 5 divides by the sum of the weights; id 0 is a token like any other."""
    scorer = Given(torch.from_numpy(golden["logits"]).double())
    total, terms = losses(scorer, batch_of(golden, normalisation="paper"))
    assert terms["masked"].item() == pytest.approx(float(golden["numpy_mlm_unweighted_including_label0"]), abs=1e-12)
    assert total.item() == pytest.approx(float(golden["paper_formula_total"]), abs=1e-12)


def test_the_boundary_slot(golden):
    """Released: token M is predicted by nobody. "predict": slot M-1 predicts it."""
    M, L = int(golden["enc_length"]), golden["inputs"].shape[1]
    slots = {name: set((batch_of(golden, boundary=name).terms["next"].index_S % L).tolist()) for name in ("released", "predict")}
    assert slots["released"] == set(range(M, L))
    assert slots["predict"] - slots["released"] == {M - 1}
