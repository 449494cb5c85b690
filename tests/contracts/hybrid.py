"""A language model with one layer of every sort of mixer: what law L18 and the labels run on."""

import copy
import functools

import torch

from models.config import ModelConfig
from models.language_model import LanguageModel
from tests.contracts.cases import WIDTH, all_cases, redraw

VOCABULARY = 40
MOST_LAYERS = 8


def layers() -> dict[str, object]:
    """One causal streaming mixer for each combination of abilities and of the fields that make memories differ."""
    chosen, seen = {}, set()
    for case in all_cases():
        able = case.abilities
        sort = (able.prefix, able.growth, able.reach is None, able.randomness, hasattr(case.config, "window"),
                hasattr(case.config, "chunk"))
        if able.streaming and able.max_length is None and sort not in seen:
            seen.add(sort)
            chosen[case.kind] = case.config
    return dict(list(chosen.items())[:MOST_LAYERS])


def readers() -> dict[str, object]:
    """Every mixer that reads a prefix, and nothing that would drown what it says."""
    return {case.kind: case.config for case in all_cases() if case.abilities.prefix and case.abilities.streaming}


@functools.lru_cache(4)
def _model(positions: str, prefixed: bool = False) -> LanguageModel:
    mixers = readers() if prefixed else layers()
    fairseq = {"norm": "layer", "mlp_kind": "gelu"} if positions == "sinusoidal" else {}
    config = ModelConfig(width=WIDTH, vocabulary=VOCABULARY, mixers=mixers, plan=tuple(mixers), mlp=24, positions=positions,
                         max_length=512 if positions == "learned" else None, seed=3, tie=False, **fairseq)
    model = LanguageModel(config).double().eval()
    redraw(model, keep_init(model), seed=17)
    return model


def keep_init(model: LanguageModel) -> frozenset[str]:
    """Full names of the parameters that mixers keep from initialisation."""
    return frozenset(
        f"{prefix}.{name}" for prefix, module in model.named_modules() for name in getattr(module, "keep_init", ()) if prefix
    )


def hybrid(dtype: torch.dtype = torch.float64, positions: str = "none", prefixed: bool = False) -> LanguageModel:
    """`prefixed`: of prefix readers alone."""
    return copy.deepcopy(_model(positions, prefixed)).to(dtype)
