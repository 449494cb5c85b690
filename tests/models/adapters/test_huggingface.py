"""Models of transformers behind the calls of ours: padding, memories and pieces change no logit, in any family."""

import json

import pytest
import torch

from kernels.errors import ConfigError, LayoutError, LengthError, StateError, UnsupportedUse
from models import Layout, greedy
from models.adapters import hf_check, hf_one_token
from models.adapters.hf_state import HFState
from models.adapters.huggingface import HuggingFaceModel
from models.objectives import losses, next_token_batch
from tests.models.adapters.families import FAMILIES, LENGTH, VOCABULARY, build

CLOSE = 2e-5            # of the largest logit
LENGTHS, MORE = (7, 1, 4, 11, 4), 4
_built: dict[str, HuggingFaceModel] = {}


@pytest.fixture(params=list(FAMILIES))
def family(request) -> HuggingFaceModel:
    if request.param not in _built:
        _built[request.param] = HuggingFaceModel(build(request.param))
    return _built[request.param]


def texts_of(lengths=LENGTHS, more=MORE, vocabulary=VOCABULARY) -> list[torch.Tensor]:
    return [torch.randint(0, vocabulary, (n + more,), generator=torch.Generator().manual_seed(n + 100 * k))
            for k, n in enumerate(lengths)]


def plain(model: HuggingFaceModel, text: torch.Tensor) -> torch.Tensor:
    """What transformers says of one bare row: no mask, no cache."""
    with torch.no_grad():
        return model.model(input_ids=text[None], use_cache=False).logits[0]


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return hf_check.difference(found, expected) < CLOSE


def placed(texts: list[torch.Tensor], lengths, side: str) -> tuple[torch.Tensor, Layout]:
    """Rows in slots, the pads full of other ids."""
    L = max(lengths) + 3
    ids_BL = torch.randint(0, VOCABULARY, (len(texts), L), generator=torch.Generator().manual_seed(5))
    real_BL = torch.zeros(len(texts), L, dtype=torch.bool)
    for row, (text, n) in enumerate(zip(texts, lengths)):
        slots = {"right": range(n), "left": range(L - n, L),
                 "interior": sorted(torch.randperm(L, generator=torch.Generator().manual_seed(row))[:n].tolist())}[side]
        ids_BL[row, list(slots)] = text[:n]
        real_BL[row, list(slots)] = True
    return ids_BL, Layout.from_mask(real_BL)


SIDES = ("right", "left", "interior")


# --------------------------------------------------------------------------------------------------- whole sequences
@pytest.mark.parametrize("side", SIDES)
def test_a_row_in_a_padded_batch_is_the_row_alone(family, side):
    texts = texts_of(more=0)
    ids_BL, layout = placed(texts, LENGTHS, side)
    with torch.no_grad():
        logits_BLE = family(ids_BL, layout)
    for row, text in enumerate(texts):
        assert close(logits_BLE[row][layout.real_BL[row]], plain(family, text))
    assert not logits_BLE[~layout.real_BL].any()


def test_packed_documents_do_not_see_each_other(family):
    texts = texts_of(more=0)
    layout = Layout.packed([[7, 1], [4, 11, 4]], 21)
    ids_BL = torch.zeros(2, 21, dtype=torch.int64)
    ids_BL[0, :8], ids_BL[1, :19] = torch.cat(texts[:2]), torch.cat(texts[2:])
    logits_BLE = family(ids_BL, layout)
    found = [*logits_BLE[0, :8].split([7, 1]), *logits_BLE[1, :19].split([4, 11, 4])]
    assert all(close(each, plain(family, text)) for each, text in zip(found, texts))
    assert not logits_BLE[0, 8:].any()


def test_pads_may_hold_any_integer(family):
    ids_BL = torch.tensor([[3, 5, -7], [1, 2, 10**9]])
    logits_BLE = family(ids_BL, Layout.right_padded([2, 2], 3))
    assert close(logits_BLE[0, :2], plain(family, ids_BL[0, :2]))


def test_the_loss_is_that_of_transformers(family):
    rows = torch.stack(texts_of((9, 9), 0)).numpy()
    total, _ = losses(family, next_token_batch(rows, None))
    logits = torch.stack([plain(family, torch.tensor(row[:-1])) for row in rows])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(rows[:, 1:]).flatten())
    assert abs(total.item() - expected.item()) < 1e-4


# ------------------------------------------------------------------------------------------------------- streaming
@pytest.mark.parametrize("side", SIDES)
def test_prefill_and_steps_are_the_whole_pass(family, side):
    texts = texts_of()
    expected = [plain(family, text) for text in texts]
    logits_BE, state = family.prefill(*placed(texts, LENGTHS, side))
    for row, n in enumerate(LENGTHS):
        assert close(logits_BE[row], expected[row][n - 1])
    for k in range(MORE):
        assert state.count_B.tolist() == [n + k for n in LENGTHS]
        logits_BE, state = family.step(torch.stack([text[n + k] for text, n in zip(texts, LENGTHS)]), state)
        for row, n in enumerate(LENGTHS):
            assert close(logits_BE[row], expected[row][n + k])


def test_prefill_gives_all_logits_where_their_tokens_stand(family):
    texts = texts_of(more=0)
    for side in SIDES:
        ids_BL, layout = placed(texts, LENGTHS, side)
        logits_BLE, _ = family.prefill(ids_BL, layout, all_logits=True)
        assert not logits_BLE[~layout.real_BL].any()
        for row, text in enumerate(texts):
            assert close(logits_BLE[row][layout.real_BL[row]], plain(family, text))


def test_further_tokens_any_number_per_row(family):
    """0 to 4 tokens a row on top of a ragged prefill, then as many as are left."""
    texts = texts_of()
    expected = [plain(family, text) for text in texts]
    _, state = family.prefill(*placed(texts, LENGTHS, "left"))
    first = (2, 0, 4, 1, 3)
    for taken, counts in (([0] * 5, first), (first, [MORE - k for k in first])):
        parts = [text[n + k:n + k + c] for text, n, k, c in zip(texts, LENGTHS, taken, counts)]
        ids_BL, layout = placed(parts, counts, "interior")
        logits_BLE, state = family.extend(ids_BL, layout, state, all_logits=True)
        for row, (n, k, c) in enumerate(zip(LENGTHS, taken, counts)):
            found = logits_BLE[row][layout.real_BL[row]]
            assert len(found) == c and (not c or close(found, expected[row][n + k:n + k + c]))
        assert not logits_BLE[~layout.real_BL].any()
    assert state.count_B.tolist() == [n + MORE for n in LENGTHS]


def test_the_last_logits_of_an_extension_and_zeros_for_a_row_without(family):
    texts = texts_of()
    _, state = family.prefill(*placed(texts, LENGTHS, "left"))
    counts = (1, 0, 3, 3, 2)
    logits_BE, _ = family.extend(*placed([text[n:] for text, n in zip(texts, LENGTHS)], counts, "right"), state)
    for row, (text, n, c) in enumerate(zip(texts, LENGTHS, counts)):
        assert close(logits_BE[row], plain(family, text)[n + c - 1]) if c else not logits_BE[row].any()


def test_rows_are_dropped_repeated_joined_and_branched(family):
    texts = texts_of()
    expected = [plain(family, text) for text in texts]
    _, state = family.prefill(*placed(texts, LENGTHS, "left"))
    branch = state.clone()
    for _ in range(2):                                        # a branch that goes elsewhere leaves no trace
        _, branch = family.step(torch.zeros(len(texts), dtype=torch.int64), branch)
    rows = [3, 0, 3, 1]
    chosen = state.select(rows)
    both = HFState.cat([chosen, state.select([4])])
    rows = [*rows, 4]
    assert both.count_B.tolist() == [LENGTHS[row] for row in rows]
    for k in range(2):
        logits_BE, both = family.step(torch.stack([texts[row][LENGTHS[row] + k] for row in rows]), both)
        for found, row in zip(logits_BE, rows):
            assert close(found, expected[row][LENGTHS[row] + k])
    single = both.select([2])
    logits_BE, _ = family.step(texts[3][LENGTHS[3] + 2][None], single)
    assert close(logits_BE[0], expected[3][LENGTHS[3] + 2])


@pytest.mark.parametrize("batch_rows", [1, 3, 8])
def test_greedy_text_is_that_of_generate(family, batch_rows):
    prompts = [text.tolist() for text in texts_of(more=0)]
    found = greedy(family, prompts, maximum_new=6, batch_rows=batch_rows)
    assert not family.model.training
    for prompt, text in zip(prompts, found):
        whole = family.model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
        assert text == whole[0, len(prompt):].tolist()


def test_greedy_drops_rows_that_stop(family):
    prompts = [text.tolist() for text in texts_of(more=0)]
    whole = greedy(family, prompts, maximum_new=6)
    stop = {whole[0][2]}
    for text, full in zip(greedy(family, prompts, maximum_new=6, stop=stop), whole):
        ends = [k for k, token in enumerate(full) if token in stop]
        assert text == full[:ends[0] if ends else 6]


# ------------------------------------------------------------------------------------------------- what is measured
def test_what_transformers_can_and_cannot_do_is_found():
    """A release that mends one of these turns this red, and the list in hf_check's docstring is then out of date."""
    ways = {name: HuggingFaceModel(build(name)).ways for name in FAMILIES}
    right = {"batch", "right", "cache", "rows", "left", "pieces"}
    usable = {name: {way for way in right | {"axis", "stairs"} if getattr(each, way)} for name, each in ways.items()}
    assert usable == {
        "gpt2": right, "llama": right, "mistral": right, "mamba2": right,
        "mamba": right - {"pieces"}, "jamba": right - {"pieces"},      # a second piece begins from an empty state
        "rwkv": right - {"left"} | {"axis", "stairs"},                 # a decode step mixes rows unless it is mended
        "recurrent_gemma": {"batch", "right"},                                  # its memory is inside the module
    }
    assert ways["rwkv"].differences["rows"] > 0.1 and ways["mamba"].differences["pieces"] > 1e-4
    for name, each in ways.items():
        assert all(each.differences[way] <= each.allowed < 3e-5 for way in usable[name] - ({"rows"} if each.axis else set()))


@pytest.mark.parametrize("fault", ["nothing mended", "another axis"])
def test_the_check_decides_whether_a_mended_memory_is_used(fault, monkeypatch):
    """A release that keeps its memory in another way falls back to one row at a time."""
    if fault == "another axis":
        monkeypatch.setattr(hf_one_token._WithAxis, "__getitem__", lambda self, place: self.held_BDN[place][None])
    else:
        monkeypatch.setattr(hf_one_token, "with_axis", lambda memory: memory)
    model = HuggingFaceModel(build("rwkv"))
    assert not model.ways.rows and not model.ways.axis and not model.ways.stairs and model.ways.cache
    monkeypatch.undo()
    mended = HuggingFaceModel(build("rwkv"))
    prompts = [text.tolist() for text in texts_of(more=0)]
    assert mended.ways.rows and greedy(model, prompts, maximum_new=5) == greedy(mended, prompts, maximum_new=5)


def test_single_tokens_begin_alone_where_only_a_given_memory_can_be_mended():
    model = HuggingFaceModel(build("rwkv"))
    logits_BE, state = model.prefill(torch.tensor([[3], [8]]), Layout.dense(2, 1))
    assert all(close(logits_BE[row], plain(model, torch.tensor([token]))[0]) for row, token in enumerate((3, 8)))
    assert len(state.groups) == 1


def test_unequal_prompts_are_read_in_as_many_calls_as_there_are_lengths(monkeypatch):
    model, calls = HuggingFaceModel(build("rwkv")), []
    once = model._call
    monkeypatch.setattr(model, "_call", lambda ids_BL, *rest: calls.append(tuple(ids_BL.shape)) or once(ids_BL, *rest))
    ids_BL, layout = placed(texts_of((6, 3, 6, 9), 0), (6, 3, 6, 9), "left")
    model.prefill(ids_BL, layout)
    assert calls == [(4, 3), (3, 3), (1, 3)]


class _Wrong(torch.nn.Module):
    """A model of transformers with a fault in how it is called."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.config = model, model.config

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()


class _IgnoresMask(_Wrong):
    def forward(self, input_ids, attention_mask=None, position_ids=None, cache=None, use_cache=None, return_dict=None):
        return self.inner(input_ids, position_ids=position_ids, cache=cache, use_cache=use_cache)


class _IgnoresPositions(_Wrong):
    def forward(self, input_ids, attention_mask=None, cache=None, use_cache=None, return_dict=None):
        length = input_ids.shape[1] + (cache.get_seq_length() if cache is not None else 0)
        position_ids = torch.arange(length - input_ids.shape[1], length)[None]
        return self.inner(input_ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache,
                          use_cache=use_cache)


class _LosesCache(_Wrong):
    def forward(self, input_ids, attention_mask=None, use_cache=None, return_dict=None, **swallowed):
        return self.inner(input_ids, use_cache=use_cache)


class _CountsNeighbours(_Wrong):
    """Rows of a batch act on each other, as where experts have a capacity."""

    def forward(self, input_ids, attention_mask=None, use_cache=None, return_dict=None, position_ids=None, cache=None):
        found = self.inner(input_ids, attention_mask=attention_mask, use_cache=use_cache, cache=cache,
                           position_ids=position_ids)
        found.logits = found.logits + 0.1 * (len(input_ids) - 1) * torch.arange(found.logits.shape[-1])
        return found


@pytest.mark.parametrize("fault, lost", [(_IgnoresMask, {"left"}), (_IgnoresPositions, {"left"}),
                                         (_LosesCache, {"cache"})])
def test_a_fault_is_found_said_once_and_walked_round(fault, lost, told):
    hf_check._told.clear()
    model = HuggingFaceModel(fault(build("gpt2")))
    HuggingFaceModel(fault(build("gpt2")))
    assert {way for way in ("right", "cache", "left") if not getattr(model.ways, way)} >= lost
    assert len(told) == len({text.partition(",")[0] for text in told}) and "gpt2" in told[0] and "allowed" in told[0]
    right = HuggingFaceModel(build("gpt2"))
    prompts = [text.tolist() for text in texts_of(more=0)]
    assert greedy(model, prompts, maximum_new=5) == greedy(right, prompts, maximum_new=5)


def test_rows_that_act_on_each_other_never_meet():
    model = HuggingFaceModel(_CountsNeighbours(build("gpt2")))
    prompts = [text.tolist() for text in texts_of(more=0)]
    right = HuggingFaceModel(build("gpt2"))
    assert greedy(model, prompts, maximum_new=5) == greedy(right, prompts, maximum_new=5)
    assert not model.ways.batch and model.ways.cache
    twice = torch.stack([torch.tensor(prompts[3])] * 2)
    assert close(model(twice, Layout.dense(2, 11))[1], plain(right, twice[1]))


def test_the_check_is_made_in_float32_whatever_the_weights_are():
    model = HuggingFaceModel(build("llama").bfloat16())
    assert model.dtype == torch.bfloat16 and max(model.ways.differences.values()) < 1e-5
    logits, state = model.prefill(torch.tensor([[1, 2, 3]]), Layout.dense(1, 3))
    assert state.dtype == torch.bfloat16 and logits.isfinite().all()


# --------------------------------------------------------------------------------------------------------- accounts
def test_state_bytes_are_those_of_the_live_cache():
    def at(name, n):
        model = HuggingFaceModel(build(name))
        assert model.cost(n).state_bytes == model.prefill(torch.zeros(1, n, dtype=torch.int64), Layout.dense(1, n))[1].nbytes
        return model.cost(n).state_bytes

    assert [at("gpt2", n) for n in (8, 64)] == [2 * 2 * n * 32 * 4 + 8 for n in (8, 64)]       # layers, k and v
    assert [at("llama", n) for n in (8, 64)] == [2 * 2 * n * 16 * 4 + 8 for n in (8, 64)]      # half as many heads
    assert [at("mamba", n) for n in (8, 256)] == [2 * (64 * 4 + 64 * 4) * 4 + 8] * 2           # convolution, state
    assert [at("rwkv", n) for n in (8, 256)] == [5 * 32 * 2 * 4 + 8] * 2
    assert [at("mistral", n) for n in (16, 64)] == [2 * 2 * 3 * 16 * 4 + 8] * 2                # a window of 4 keeps 3


def test_abilities_and_costs():
    gpt2, mamba = HuggingFaceModel(build("gpt2")), HuggingFaceModel(build("mamba"))
    assert (gpt2.able.growth, gpt2.able.max_length, gpt2.able.prefix) == ("linear", LENGTH, False)
    assert (mamba.abilities().growth, mamba.abilities().max_length) == ("constant", None)
    cost = gpt2.cost(16)
    assert cost.parameters == sum(p.numel() for p in gpt2.model.parameters())
    weights = 2 * 12 * 32 * 32                                                      # two blocks of 12 D^2
    head, attention = 32 * VOCABULARY, 2 * 2 * 16 * 16 * 32                         # head at one place; q k and a v
    assert cost.flops == 2 * (16 * weights + head + attention)
    with pytest.raises(UnsupportedUse, match="float32"):
        gpt2.cost(4, torch.bfloat16)


# --------------------------------------------------------------------------------------------------------- refusals
def test_mistakes_in_a_call(family):
    ids_BL = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(LayoutError, match="packed"):
        family.prefill(ids_BL, Layout.packed([[1, 3], [4]], 4))
    with pytest.raises(LayoutError, match="row 1: got 0 tokens"):
        family.prefill(ids_BL, Layout.right_padded([2, 0], 4))
    with pytest.raises(LayoutError, match="expected the layout's"):
        family(ids_BL, Layout.dense(2, 5))
    _, state = family.prefill(ids_BL, Layout.dense(2, 4))
    with pytest.raises(LayoutError, match="prefix"):
        family.extend(ids_BL, Layout.dense(2, 4).with_prefix(2), state)
    with pytest.raises(StateError, match="2 rows"):
        family.step(ids_BL[0, :3], state)
    family.step(ids_BL[:, 0], state)
    with pytest.raises(StateError, match="already advanced"):
        family.step(ids_BL[:, 0], state)


def test_rows_and_batches_of_nothing(family):
    texts = texts_of((3,), 0)
    ids_BL = torch.stack([torch.zeros(3, dtype=torch.int64), texts[0]])
    logits_BLE = family(ids_BL, Layout.right_padded([0, 3], 3))
    assert not logits_BLE[0].any() and close(logits_BLE[1], plain(family, texts[0]))
    none = torch.zeros(0, 3, dtype=torch.int64)
    assert family(none, Layout.dense(0, 3)).shape == (0, 3, VOCABULARY)
    logits_BE, state = family.prefill(none, Layout.dense(0, 3))
    assert logits_BE.shape == (0, VOCABULARY) and state.rows == 0
    _, state = family.prefill(ids_BL, Layout.dense(2, 3))
    logits_BE, state = family.extend(ids_BL[:, :2], Layout.right_padded([0, 0], 2), state)
    assert not logits_BE.any() and state.count_B.tolist() == [3, 3] and state.select([]).rows == 0


def test_texts_beyond_the_limit():
    model = HuggingFaceModel(build("gpt2"))
    ids_BL = torch.zeros(1, LENGTH, dtype=torch.int64)
    _, state = model.prefill(ids_BL, Layout.dense(1, LENGTH))
    with pytest.raises(LengthError, match="65"):
        model.step(ids_BL[:, 0], state)
    with pytest.raises(LengthError):
        greedy(model, [[1] * 60], maximum_new=10)
    assert model.cost(LENGTH).step_flops > 0


def test_models_that_are_no_causal_language_models(tmp_path):
    from transformers import BertConfig, BertLMHeadModel, T5Config

    small = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(UnsupportedUse, match="no causal language model"):
        HuggingFaceModel(BertLMHeadModel(BertConfig(**small)))
    T5Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedUse, match="is a T5 without a causal"):
        HuggingFaceModel.load(str(tmp_path))


def test_folders_that_hold_no_whole_model(tmp_path):
    for source, words in ((tmp_path / "nothing", "no such folder"), (tmp_path, r"no config\.json")):
        with pytest.raises(ConfigError, match=words):
            HuggingFaceModel.load(str(source))
    build("gpt2").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        HuggingFaceModel.load(str(tmp_path / "config.json"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    with pytest.raises(ConfigError, match="missing.*transformer.h.2"):
        HuggingFaceModel.load(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(UnsupportedUse, match="quantised"):
        HuggingFaceModel.load(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "not_known"}))
    with pytest.raises(UnsupportedUse, match="does not know its architecture"):
        HuggingFaceModel.load(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": VOCABULARY + 1}))
    with pytest.raises(ConfigError, match=r"of another shape .*transformer\.wte\.weight"):
        HuggingFaceModel.load(str(tmp_path))
    for text, words in (("{", "config.json: is no JSON"), ("[]", "config.json: holds a list")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=words):
            HuggingFaceModel.load(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-9])
    with pytest.raises(ConfigError, match="cannot be loaded .*not fully covered"):
        HuggingFaceModel.load(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot be loaded"):
        HuggingFaceModel.load(str(tmp_path))


def test_a_name_without_a_network():
    with pytest.raises(ConfigError, match="the hub cannot be reached"):
        HuggingFaceModel.load("nobody/there-is-no-such-model")


# ---------------------------------------------------------------------------------------------- a real checkpoint
@pytest.fixture(scope="module")
def tiny_rwkv(shared):
    folder = shared / "data" / "checkpoints" / "tiny-rwkv4-660K-bytes-hf"
    if not folder.is_dir():
        pytest.skip(f"the real RWKV-4 checkpoint is not here: {folder}")
    return HuggingFaceModel.load(str(folder)), json.loads((folder / "expected_logits.json").read_text())


def test_published_logits_of_a_real_checkpoint(tiny_rwkv):
    model, published = tiny_rwkv
    prompt, expected = published["prompt_ids"], torch.tensor(published["expected_last_logits"])
    others = [list(b"Once upon a time"), list(b"the")]
    ids = [others[0], prompt, others[1]]
    L = max(map(len, ids))
    ids_BL = torch.tensor([[9] * (L - len(row)) + row for row in ids])
    logits_BE, _ = model.prefill(ids_BL, Layout.left_padded(list(map(len, ids)), L))
    assert (logits_BE[1] - expected).abs().max() < 1e-4
    assert (model(torch.tensor([prompt]), Layout.dense(1, len(prompt)))[0, -1] - expected).abs().max() < 1e-4


def test_greedy_text_of_a_real_checkpoint(tiny_rwkv):
    model, _ = tiny_rwkv
    prompts = [list(text) for text in (b"Once upon a time", b"\"in", b"He ran to the big")]
    found = greedy(model, prompts, maximum_new=24, stop={0})
    for prompt, text in zip(prompts, found):
        whole = model.model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt):].tolist()
        assert text == whole[:whole.index(0) if 0 in whole else None]
    assert len(set(map(tuple, found))) > 1
