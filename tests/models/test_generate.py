"""Greedy text: the same for every batch size and order, equal to a loop over whole forwards, strategies as specified."""

import pytest
import torch

from kernels.errors import ConfigError, LayoutError, LengthError
from models import LanguageModel, Layout, ModelConfig, greedy
from models.initialise import seeded

pytestmark = pytest.mark.usefixtures("toy_kind")
M = 6


def model_of(**changes) -> LanguageModel:
    return LanguageModel(ModelConfig.model_validate(dict(
        width=16, vocabulary=37, mixers={"toy": {"kind": "toy_mixer"}}, plan=["toy*2"], mlp=16, init_std=0.5,
        prefix_tokens=M, seed=1) | changes)).double()


def prompts(*lengths: int) -> list[list[int]]:
    return [torch.randint(0, 37, (n,), generator=seeded("prompt", i)).tolist() for i, n in enumerate(lengths)]


def slow(model, prompt: list[int], m, maximum_new: int, stop=frozenset()) -> list[int]:
    """One whole forward per token; m(n) is the prefix length when n tokens are there."""
    tokens, start = list(prompt), len(prompt)
    while len(tokens) - start < maximum_new:
        ids = torch.tensor([tokens])
        best = model(ids, Layout.dense(1, len(tokens)).with_prefix(m(len(tokens))))[0, -1, :37].argmax().item()
        if best in stop:
            break
        tokens.append(best)
    return tokens[start:]


ROWS = prompts(1, 4, 9, 6, 5, 12, 2, 7)


@pytest.mark.parametrize("strategy", ["left_pad", "iterate"])
@pytest.mark.parametrize("keep_out", [0, 2])
def test_equals_whole_forwards_and_no_batch_changes_it(strategy, keep_out):
    model, stop = model_of(), frozenset(range(0, 37, 9))
    expected = []
    for prompt in ROWS:
        fixed = max(0, min(M, len(prompt) - keep_out))
        grows = strategy == "iterate"
        expected.append(slow(model, prompt, lambda n, fixed=fixed, grows=grows:
                             max(0, min(M, n - keep_out)) if grows else fixed, 8, stop))
    assert len({len(text) for text in expected}) > 1
    options = dict(maximum_new=8, strategy=strategy, keep_out=keep_out)
    for batch_rows in (1, 3, 8):
        assert greedy(model, ROWS, stop=stop, batch_rows=batch_rows, **options) == expected
    assert greedy(model, ROWS[::-1], stop=lambda token: token in stop, **options) == expected[::-1]


def test_iterate_and_left_pad_share_the_first_token_and_part_later():
    model = model_of(prefix_tokens=30)
    once = greedy(model, ROWS, maximum_new=8)
    again = greedy(model, ROWS, maximum_new=8, strategy="iterate")
    assert [text[0] for text in once] == [text[0] for text in again]
    assert once != again


def test_prefix_by_number_by_prompt_and_by_default():
    model = model_of(prefix_tokens=None)
    whole = greedy(model, ROWS, maximum_new=5)
    assert whole == greedy(model, ROWS, maximum_new=5, prefix=99)
    assert whole == greedy(model, ROWS, maximum_new=5, prefix=[len(prompt) for prompt in ROWS])
    mixed = greedy(model, ROWS, maximum_new=5, prefix=[0, 1, 2, 3, 4, 5, 0, 1], batch_rows=3)
    assert mixed == [slow(model, p, lambda n, m=m: m, 5) for p, m in zip(ROWS, [0, 1, 2, 3, 4, 5, 0, 1])]
    held = greedy(model, ROWS, maximum_new=5, keep_out=[0, 3, 2, 9, 0, 0, 1, 4], batch_rows=3)
    assert held == [slow(model, p, lambda n, m=max(0, len(p) - k): m, 5) for p, k in zip(ROWS, [0, 3, 2, 9, 0, 0, 1, 4])]
    for bad in ({"prefix": -1}, {"keep_out": [0] * 7 + [-2]}):
        with pytest.raises(ConfigError, match="0 or more"):
            greedy(model, ROWS, maximum_new=5, **bad)
    with pytest.raises(ConfigError, match="8 prompts"):
        greedy(model, ROWS, maximum_new=5, prefix=[1, 2])


def test_released_padding_puts_real_tokens_before_short_prompts():
    model = model_of()
    got = greedy(model, ROWS, maximum_new=6, strategy="left_pad_released", pad=3, batch_rows=3)
    # the toy mixer does not read the mute, so the padded prompt is an ordinary longer one
    assert got == [slow(model, [3] * max(0, M - len(p)) + p, lambda n: M, 6) for p in ROWS]
    assert got != greedy(model, ROWS, maximum_new=6)


def test_a_model_that_reads_no_prefix_gets_no_pads():
    model = model_of(mixers={"toy": {"kind": "attention", "heads": 2}})
    assert greedy(model, ROWS, maximum_new=6, strategy="left_pad_released", pad=3) == greedy(model, ROWS, maximum_new=6)


def test_never_names_a_token_beyond_the_vocabulary():
    model = model_of()
    with torch.no_grad():
        model.embedding.weight[37:] = 1e3 * model.norm.weight
        model.embedding.weight[:37] += 1
    assert all(token < 37 for text in greedy(model, ROWS, maximum_new=4) for token in text)


def test_dtype_runs_in_a_copy_and_edges():
    model = model_of().float()
    assert greedy(model, ROWS, maximum_new=6, dtype=torch.float64) == greedy(model.double(), ROWS, maximum_new=6)
    model.float().train()
    greedy(model, ROWS, maximum_new=2)
    greedy(model, ROWS, maximum_new=2, dtype=torch.float64)
    assert model.norm.weight.dtype == torch.float32 and model.training
    assert greedy(model, [], maximum_new=3) == [] and greedy(model, ROWS[:2], maximum_new=0) == [[], []]
    with pytest.raises(LayoutError, match="prompt 1"):
        greedy(model, [[1], []], maximum_new=1)
    with pytest.raises(LayoutError, match="another tokenizer"):
        greedy(model, [[99]], maximum_new=1)
    with pytest.raises(ConfigError, match="strategy"):
        greedy(model, [[1]], maximum_new=1, strategy="beam")
    with pytest.raises(LengthError, match="prompt 0"):
        greedy(model_of(positions="learned", max_length=8), [[1] * 7], maximum_new=3)
