"""The model as transformers sees it: loss, prefix, cache, beams, dtype, refusals, saving again."""

import copy

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

from kernels.errors import LayoutError, UnsupportedUse
from kernels.layout import Layout
from models.adapters.export import export_model
from models.adapters.modeling_reread import RereadConfig, RereadForCausalLM
from tests.models.adapters.test_export import CONFIGS, VOCABULARY, build, documents, padded

L = 9


def wrapped(name: str) -> RereadForCausalLM:
    config = RereadConfig(reread=CONFIGS[name].model_dump(mode="json"), pad_token_id=0)
    model = RereadForCausalLM(config).eval()
    model.model.load_state_dict(build(CONFIGS[name]).state_dict())
    return model


def ids(rows: int = 2) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, L), generator=torch.Generator().manual_seed(5))


def load(folder, **options):
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options)


# ------------------------------------------------------------------------------------------------------------- loss
@torch.no_grad()
def test_loss_is_the_mean_over_real_next_tokens():
    model, rows = wrapped("hybrid"), documents()
    left, mask = map(torch.tensor, padded(rows, "left"))
    right, right_mask = map(torch.tensor, padded(rows, "right"))
    losses = []
    for row in rows:
        logits_LE = model.model(torch.tensor([row]), Layout.dense(1, len(row)))[0]
        losses += F.cross_entropy(logits_LE[:-1], torch.tensor(row[1:], dtype=torch.int64), reduction="none").tolist()
    wanted = sum(losses) / len(losses)
    assert model(left, attention_mask=mask, labels=left).loss.item() == pytest.approx(wanted, rel=1e-5)
    assert model(right, attention_mask=right_mask, labels=right).loss.item() == pytest.approx(wanted, rel=1e-5)


def test_loss_reaches_every_parameter():
    model = wrapped("jrt").train()
    model(ids(), labels=torch.where(torch.arange(L) < 4, -100, ids()), prefix_length=4).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@torch.no_grad()
def test_labels_inside_the_prefix_are_refused():
    model, mask = wrapped("jrt"), torch.ones(2, L, dtype=torch.long)
    mask[1, :3] = 0
    with pytest.raises(LayoutError, match="row 0, slot 1.*-100"):
        model(ids(), labels=ids(), prefix_length=4)
    # row 1 begins at slot 3: its first 2 tokens are slots 3 and 4
    labels = ids().clone()
    labels[0, :2] = -100
    with pytest.raises(LayoutError, match="row 1, slot 4"):
        model(ids(), attention_mask=mask, labels=labels, prefix_length=2)
    labels[1, :5] = -100
    assert torch.isfinite(model(ids(), attention_mask=mask, labels=labels, prefix_length=2).loss)


# ----------------------------------------------------------------------------------------------------------- prefix
@torch.no_grad()
def test_forward_reads_causally_until_told_otherwise():
    model, layout = wrapped("jrt"), Layout.dense(2, L)
    causal, prefixed = model.model(ids(), layout), model.model(ids(), layout.with_prefix([3, 6]))
    assert (causal - prefixed).abs().max() > 1e-3
    assert torch.equal(model(ids()).logits, causal)
    assert torch.equal(model(ids(), prefix_length=torch.tensor([3, 6])).logits, prefixed)
    streamed = model(ids(), use_cache=True, prefix_length=torch.tensor([3, 6])).logits
    torch.testing.assert_close(streamed, prefixed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["jrt", "jrt_limited"])
@torch.no_grad()
def test_generate_takes_another_prefix(name):
    model = wrapped(name)
    first = [model.generate(ids(), max_new_tokens=1, return_dict_in_generate=True, output_logits=True, **options).logits[0]
             for options in ({}, {"prefix_length": 0}, {"prefix_length": torch.tensor([3, 3])})]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (first[one] - first[other]).abs().max() > 1e-3
    default = model.generate(ids(), max_new_tokens=6)
    limit = CONFIGS[name].prefix_tokens or L
    assert torch.equal(default, model.generate(ids(), max_new_tokens=6, prefix_length=limit))
    assert torch.equal(default, model.generate(ids(), max_new_tokens=6, prefix_length=limit, use_cache=False))
    assert model.config.prefix_tokens == CONFIGS[name].prefix_tokens


@torch.no_grad()
def test_a_prefix_is_closed_by_the_first_call():
    model = wrapped("jrt")
    cache = model(ids(), use_cache=True, prefix_length=4).cache
    with pytest.raises(LayoutError, match="closes the prefix"):
        model(ids()[:, :1], cache=cache, prefix_length=4)


# ------------------------------------------------------------------------------------------------------------ cache
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_pieces_with_a_cache_give_what_one_call_gives(name):
    model = wrapped(name)
    whole = model(ids()).logits
    out = model(ids()[:, :4], use_cache=True, logits_to_keep=1)
    assert out.logits.shape[1] == 1 and out.cache.get_seq_length() == 4
    found = [out.logits]
    for piece in (ids()[:, 4:7], ids()[:, 7:8], ids()[:, 8:]):
        out = model(piece, cache=out.cache)
        found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), whole[:, 3:], rtol=1e-3, atol=1e-3)
    assert out.cache.get_seq_length() == L and out.cache.nbytes == out.cache.state.nbytes


@torch.no_grad()
@torch.no_grad()
def test_the_cache_under_its_former_name_is_not_lost():
    model = wrapped("hybrid")
    before = model(ids()[:, :6], use_cache=True).cache
    found = model(ids()[:, 6:], past_key_values=before).logits
    torch.testing.assert_close(found, model(ids()).logits[:, 6:], rtol=0, atol=1e-5)


def test_a_further_piece_may_be_padded():
    model = wrapped("hybrid")
    mask = torch.ones(2, L, dtype=torch.long)
    mask[1, 5:7] = 0
    cache = model(ids()[:, :4], use_cache=True).cache
    found = model(ids()[:, 4:], attention_mask=mask, cache=cache).logits[1, 3:]
    bare = torch.cat([ids()[1, :5], ids()[1, 7:]])[None]
    torch.testing.assert_close(found, model(bare).logits[0, 5:], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_generation_goes_on_from_a_cache_that_is_copied_before():
    model = wrapped("jrt")
    first = model.generate(ids(), max_new_tokens=4, return_dict_in_generate=True)
    spare = copy.deepcopy(first.cache)
    longer = torch.cat([first.sequences, ids()[:, :2]], 1)
    once = model.generate(longer, cache=first.cache, max_new_tokens=5)
    assert torch.equal(once, model.generate(longer, cache=spare, max_new_tokens=5))
    anew = model.generate(longer, max_new_tokens=5, prefix_length=L)
    assert torch.equal(once, anew)


@pytest.mark.parametrize("name", ["hybrid", "jrt", "learned"])
@torch.no_grad()
def test_beams_carry_their_own_states(name):
    model, rows = wrapped(name), documents()
    left, mask = map(torch.tensor, padded(rows, "left"))
    asked = {"attention_mask": mask, "max_new_tokens": 6, "num_beams": 3, "num_return_sequences": 2}
    cached, anew = (model.generate(left, use_cache=use, **asked) for use in (True, False))
    assert torch.equal(cached, anew) and len({tuple(row) for row in cached.tolist()}) > 3


@torch.no_grad()
def test_a_state_cannot_be_cut_back():
    model = wrapped("hybrid")
    cache = model(ids(), use_cache=True).cache
    cache.crop(0)
    with pytest.raises(UnsupportedUse, match="deepcopy"):
        cache.crop(1)
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4 and torch.equal(cache.state.count_B, torch.full((4,), L))


# --------------------------------------------------------------------------------------------------------- refusals
def test_what_is_refused():
    model = wrapped("hybrid")
    mask = torch.ones(2, L, dtype=torch.long)
    mask[1, -1] = 0
    with pytest.raises(ValueError, match="padding on the left"):
        model.generate(ids(), attention_mask=mask, max_new_tokens=1)
    with pytest.raises(ValueError, match="attention_mask: got"):
        model(ids(), attention_mask=mask[:, None, None])
    with pytest.raises(ValueError, match="attention_mask: got"):
        model(ids(), attention_mask=mask[:, 1:])
    with pytest.raises(ValueError, match="a prompt has no tokens"):
        model.generate(torch.zeros(1, 0, dtype=torch.long), max_new_tokens=1)
    with pytest.raises(ValueError, match="a prompt has no tokens"):
        model.generate(ids(), attention_mask=torch.tensor([[1], [0]]).expand(2, L), max_new_tokens=1)
    with pytest.raises(ValueError, match="cache: got a DynamicCache"):
        model(ids(), cache=DynamicCache())
    with pytest.raises(ValueError, match="inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 2, 16))
    with pytest.raises(ValueError, match="hidden states"):
        model(ids(), output_hidden_states=True)
    with pytest.raises(UnsupportedUse, match="64 rows"):
        model.resize_token_embeddings(70)
    with pytest.raises(UnsupportedUse, match="embedding"):
        model.set_input_embeddings(torch.nn.Embedding(64, 16))


def test_a_config_of_another_version_says_so():
    fields = CONFIGS["hybrid"].model_dump(mode="json") | {"depth": 3}
    with pytest.raises(ValueError, match="written by reread 9.9 and does not fit the version"):
        RereadConfig(reread=fields, reread_version="9.9")
    with pytest.raises(ValueError, match="no `reread` section"):
        RereadForCausalLM(RereadConfig())


# ----------------------------------------------------------------------------------------------------------- files
@pytest.fixture
def exported(tmp_path):
    folder = tmp_path / "model"
    export_model(build(CONFIGS["hybrid"]), folder, None, "0")
    return folder


@torch.no_grad()
def test_saved_again_it_is_the_same(exported, tmp_path):
    model = load(exported)
    model.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    assert torch.equal(model(ids()).logits, again(ids()).logits)
    assert again.generation_config.suppress_tokens == list(range(VOCABULARY, 64))
    assert {path.name for path in (tmp_path / "again").iterdir()} >= {"modeling_reread.py", "config.json"}


@torch.no_grad()
def test_dtype_is_as_asked(exported):
    ours = build(CONFIGS["hybrid"]).to(torch.bfloat16)
    theirs = load(exported, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in theirs.parameters()} == {torch.bfloat16}
    assert torch.equal(theirs(ids()).logits, ours(ids(), Layout.dense(2, L)))
    assert load(exported).dtype == torch.float32


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_weights_that_do_not_fit_are_refused(exported, change):
    tensors = load_file(exported / "model.safetensors")
    assert tensors.keys() == {f"model.{name}" for name in build(CONFIGS["hybrid"]).state_dict()}
    name = "model.blocks.1.mixer.out_proj.weight"
    tensors = {key: tensor for key, tensor in tensors.items() if key != name or change == "shape"}
    if change == "shape":
        tensors[name] = tensors[name][:, :8].contiguous()
    save_file(tensors, exported / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises((ValueError, RuntimeError), match="out_proj.weight" if change == "missing" else "size mismatch|shape|mismatch"):
        load(exported)
