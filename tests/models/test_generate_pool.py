"""Continuous batching: whoever shares the pool, in whatever order, the tokens stay; the batch stays full and in bounds."""

import zlib

import pytest
import torch

from models import LanguageModel, ModelConfig, greedy, preset
from models.adapters import hf_level
from models.adapters.huggingface import HuggingFaceModel
from models.initialise import seeded
from models.pool import Pool, Row, calls
from tests.models.adapters.families import FAMILIES, VOCABULARY, build

LENGTHS = (3, 30, 17, 1, 21, 8, 33, 5, 13, 2, 26, 7, 11, 40, 4, 19, 9, 6)
NEW = 12
MIXERS = {"delta": {"kind": "delta_net", "heads": 2}, "gated": {"kind": "gated_delta_net", "heads": 2},
          "attention": {"kind": "attention", "heads": 2}, "conv": {"kind": "base_conv"},
          "window": {"kind": "sliding_window", "heads": 2, "window": 5}, "based": {"kind": "based", "heads": 2,
                                                                                  "feature_dim": 4},
          "prefix": {"kind": "prefix", "heads": 2, "feature_dim": 4}, "mamba2": {"kind": "mamba2", "head_dim": 8,
                                                                                "state_size": 6},
          "lavo": {"kind": "lavo", "heads": 2, "slots": 4, "window": 4}}
PLANS = (["attention"], ["lavo"], ["delta", "attention"], ["conv", "prefix", "window"], ["gated", "mamba2"],
         ["based", "attention", "prefix"])


def model_of(plan, **changes) -> LanguageModel:
    return LanguageModel(ModelConfig.model_validate(dict(
        width=16, vocabulary=64, init_std=0.4, plan=plan, mixers={name: MIXERS[name] for name in plan}) | changes)).double()


def prompts(vocabulary: int, lengths=LENGTHS) -> list[list[int]]:
    return [torch.randint(0, vocabulary, (n,), generator=seeded("pool", k)).tolist() for k, n in enumerate(lengths)]


def shuffle(n: int, seed: int) -> list[int]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def all_ways(model, asked, stop, **options) -> list[list[list[int]]]:
    """The texts for batch 1, 3, 8 and a shuffle, each in the order of `asked`."""
    found = [greedy(model, asked, maximum_new=NEW, stop=stop, batch_rows=rows, **options) for rows in (1, 3, 8)]
    for seed in (1,):
        order = shuffle(len(asked), seed)
        texts = greedy(model, [asked[k] for k in order], maximum_new=NEW, stop=stop, batch_rows=5, **options)
        found.append([texts[order.index(k)] for k in range(len(asked))])
    return found


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
@pytest.mark.parametrize("strategy", ["left_pad", "iterate"])
def test_no_batch_and_no_order_changes_a_token(plan, strategy):
    if strategy == "iterate" and "prefix" not in plan:
        pytest.skip("reads no prefix: the same as left_pad")
    model = model_of(plan, prefix_tokens=24)
    found = all_ways(model, prompts(64), frozenset(range(0, 64, 9)), strategy=strategy, keep_out=1)
    assert all(texts == found[0] for texts in found[1:])
    assert len({len(text) for text in found[0]}) > 2 and len(set(map(tuple, found[0]))) > 8


SLOW = {"mistral", "mamba2", "recurrent_gemma"}


@pytest.mark.parametrize("family", [pytest.param(each, marks=pytest.mark.long if each in SLOW else ()) for each in FAMILIES])
def test_models_of_transformers_too(family):
    model = build(family)
    model = HuggingFaceModel(model if family == "jamba" else model.double())      # its experts know no float64
    asked = prompts(VOCABULARY, LENGTHS[:10])
    stop = frozenset(token for token in range(VOCABULARY) if zlib.crc32(bytes([token])) % 5 == 0)
    found = all_ways(model, asked, stop)
    assert all(texts == found[0] for texts in found[1:])
    assert len(set(map(tuple, found[0]))) > 3


def test_attention_models_of_transformers_step_in_one_group():
    """A state that is begun later joins the others: one call a step, and no column beyond the longest text."""
    model, groups, columns = HuggingFaceModel(build("gpt2").double()), [], []
    real = model.step

    def step(ids_B, state):
        groups.append(len(state.groups))
        columns.append(state.groups[0].cache.layers[0].keys.shape[2] - int(state.count_B.max()))
        return real(ids_B, state)

    model.step = step
    greedy(model, prompts(VOCABULARY), maximum_new=NEW, stop=frozenset(range(0, VOCABULARY, 9)), batch_rows=4)
    assert set(groups) == {1} and max(columns) <= hf_level.SLACK


def test_a_row_that_ended_leaves_before_the_last_position():
    """Positions end at 44: a prompt of 33 and 12 new tokens reach it, and those that came later step on meanwhile."""
    model, stop = model_of(["attention"], positions="learned", max_length=44), frozenset(range(0, 64, 7))
    asked = prompts(64, (33,) * 60)
    found = greedy(model, asked, maximum_new=NEW, stop=stop, batch_rows=16)
    assert found == greedy(model, asked, maximum_new=NEW, stop=stop, batch_rows=1)
    assert len({len(text) for text in found}) > 4


class Counted:
    """A model that notes how many rows each call carries."""

    def __init__(self, model):
        self._model, self.read, self.steps, self.held = model, [], [], 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def prefill(self, ids_BL, layout):
        self.read.append(list(layout.lengths))
        return self._model.prefill(ids_BL, layout)

    def step(self, ids_B, state):
        self.steps.append(len(ids_B))
        return self._model.step(ids_B, state)


def test_the_batch_stays_full_within_its_bound_and_every_prompt_is_read_once():
    model = Counted(model_of(["delta", "attention"]))
    asked = prompts(64, tuple(5 + k % 7 for k in range(60)))
    stop = frozenset(range(0, 64, 6))
    texts = greedy(model, asked, maximum_new=NEW, stop=stop, batch_rows=8)
    assert sorted(n for call in model.read for n in call) == sorted(map(len, asked))
    assert max(model.steps) == 8 and max(map(len, model.read)) <= 8
    # full batches: hardly more steps than if no place were ever empty
    needed = sum(map(len, texts)) / 8
    assert len(model.steps) < 1.35 * needed + NEW
    counted = Counted(model._model)
    for start in range(0, 60, 8):
        greedy(counted, asked[start:start + 8], maximum_new=NEW, stop=stop, batch_rows=8)
    assert len(model.steps) < 0.9 * len(counted.steps)


def test_prompts_of_similar_length_are_read_together():
    rows = [Row(k, [0] * n, None, 0) for k, n in enumerate((400, 20, 390, 12, 310, 33, 305, 5))]
    assert [[len(row.tokens) for row in call] for call in calls(rows)] == [[400, 390, 310, 305], [33, 20], [12, 5]]
    muted = [Row(k, [0] * n, None, 0, m) for k, (n, m) in enumerate(((9, 3), (9, 1), (12, 0), (10, 0)))]
    assert [[row.number for row in call] for call in calls(muted)] == [[2, 3], [0, 1]]


def test_rows_are_told_as_they_end():
    model, asked, told = model_of(["delta"]), prompts(64), {}
    stop = frozenset(range(0, 64, 9))
    texts = greedy(model, asked, maximum_new=NEW, stop=stop, batch_rows=3, done=lambda k, new: told.setdefault(k, list(new)))
    assert told == dict(enumerate(texts)) and list(told) != sorted(told)
    told.clear()
    assert greedy(model, asked, maximum_new=0, done=lambda k, new: told.setdefault(k, new)) == [[]] * len(asked)
    assert len(told) == len(asked)


def test_short_and_long_caches_share_a_pool():
    """A long prompt after short ones does not fit into their places; it is joined, and the texts stay."""
    model = model_of(["attention"])
    rows = [Row(k, list(prompt), None, 0) for k, prompt in enumerate(prompts(64, (3, 4, 40, 5, 60)))]
    pool = Pool(model, rows, 2, NEW, frozenset(range(0, 64, 5)).__contains__, False)
    pool.queue = type(pool.queue)(sorted(rows, key=lambda row: len(row.tokens)))      # shortest first
    with torch.no_grad():
        got = {row.number: row.new for row in pool.run()}
    assert [got[k] for k in range(5)] == greedy(model, prompts(64, (3, 4, 40, 5, 60)), maximum_new=NEW,
                                               stop=frozenset(range(0, 64, 5)), batch_rows=1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["jrt-tiny", "transformer-tiny"])
def test_presets_at_full_size(name):
    model = LanguageModel(preset(name, init_std=0.3)).double()
    found = all_ways(model, prompts(200), frozenset(range(0, 256, 16)))
    assert all(texts == found[0] for texts in found[1:])
