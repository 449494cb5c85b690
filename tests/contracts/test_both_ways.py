"""L17, one sequence both ways: no order in time, whole documents, and nothing beyond them. L1 to L3 run elsewhere."""

import pytest
import torch

from kernels.errors import UnsupportedUse
from models import registry
from models.config import ModelConfig
from tests.contracts.batches import alone, documents
from tests.contracts.cases import both_ways, build


def moved(mixer, doc_LD: torch.Tensor) -> torch.Tensor:
    """[j, i]: how far output i moves when token j alone is redrawn."""
    expected = mixer.forward(doc_LD[None], alone(doc_LD).layout)[0]
    rows = []
    for j, token in enumerate(documents([len(doc_LD)], seed=77)[0]):
        changed = doc_LD.clone()
        changed[j] = token
        rows.append((mixer.forward(changed[None], alone(changed).layout)[0] - expected).abs().amax(-1))
    return torch.stack(rows)


@both_ways
@torch.no_grad()
def test_l17_earlier_tokens_read_later_ones(case):
    """Some output before the redrawn token moves, and some after it; with a reach, exactly the outputs within it."""
    mixer = build(case)
    size = moved(mixer, documents([11])[0])
    earlier, later = torch.triu(torch.ones_like(size), 1).bool().T, torch.triu(torch.ones_like(size), 1).bool()
    assert (size[earlier] > 1e-9).any(), "no output before a token saw it"
    assert (size[later] > 1e-9).any(), "no output after a token saw it"
    if case.abilities.reach is not None:
        distance = (torch.arange(11)[:, None] - torch.arange(11)).abs()
        assert (size[distance <= case.abilities.reach] > 1e-12).all()
        assert not size[distance > case.abilities.reach].any()


@both_ways
@torch.no_grad()
def test_l17_every_token_matters(case):
    """To some output other than its own."""
    size = moved(build(case), documents([11])[0])
    size.fill_diagonal_(0)
    assert (size.amax(1) > 1e-9).all(), size.amax(1)


@both_ways
def test_l17_no_layer_of_a_language_model(case):
    with pytest.raises(UnsupportedUse, match=f"{case.kind}.*causal.*: .*; ") as refusal:
        ModelConfig(width=16, vocabulary=8, mixers={"a": case.config}, plan=["a"])
    assert len(str(refusal.value)) > 60


@pytest.mark.parametrize("kind", [kind for kind in registry.kinds() if registry.config_class(kind).why_not_causal])
def test_l16_a_kind_that_never_is_causal_says_why(kind):
    """When the config is built: the kind, the reason, the remedy."""
    config = registry.config_class(kind)
    with pytest.raises(UnsupportedUse) as refusal:
        config(mode="causal")
    for words in (kind, config.why_not_causal, "mode='non_causal'"):
        assert words in str(refusal.value)
    assert not any(registry.abilities(case).causal for case in config.cases().values())
