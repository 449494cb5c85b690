"""Tiny models in the three forms that lm-evaluation-harness meets them in: ours, its export, and GPT-2's."""

import importlib.util

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from models import ModelConfig, build, save_model
from models.adapters.export import export_model
from tasks.hub_tokenizer import hub_form
from tests.tasks.documents import tokenizer as trained
from tests.tasks.test_evaluate import MIXERS

# lm_eval's own class of transformers models needs accelerate
ABSENT = [name for name in ("lm_eval", "accelerate") if importlib.util.find_spec(name) is None]
if ABSENT:
    pytest.skip(f"{' and '.join(ABSENT)} not installed; pip install '.[harness]'", allow_module_level=True)


def write_ours(folder, plan, words, **settings):
    """A model folder of ours with a tokenizer, and its export beside it."""
    config = ModelConfig(width=16, vocabulary=words.vocabulary_size, mixers={name: MIXERS[name] for name in plan},
                         plan=plan, seed=3, init_std=0.5, tie=False, **settings)
    model = build(config)
    save_model(model, folder / "ours")
    words.save(folder / "ours" / "tokenizer")
    (folder / "export").mkdir()
    export_model(model, folder / "export", hub_form(folder / "ours" / "tokenizer")[1], "0")
    return str(folder / "ours"), str(folder / "export")


@pytest.fixture(scope="session")
def words():
    return trained()


@pytest.fixture(scope="session")
def places(tmp_path_factory, words):
    """name -> (what `reread` is given, the folder that lm_eval's own class loads)."""
    root = tmp_path_factory.mktemp("harness")
    found = {}
    for name, plan, settings in (("mixed", ("conv", "window", "linear", "full"), {}),
                                 ("limited", ("linear", "full"), {"positions": "learned", "max_length": 48}),
                                 ("prefix", ("conv", "prefix", "full"), {})):
        (root / name).mkdir()
        found[name] = write_ours(root / name, plan, words, **settings)
    folder = root / "gpt2"
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=words.vocabulary_size, n_positions=64, n_embd=16, n_layer=2, n_head=2,
                        bos_token_id=words.end_of_text, eos_token_id=words.end_of_text, initializer_range=0.4)
    GPT2LMHeadModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast.from_pretrained(found["mixed"][1]).save_pretrained(folder)
    found["gpt2"] = (f"hf:{folder}", str(folder))
    return found


def leading_bos(folder):
    """The tokenizer in `folder` made as Llama's: end of text before every text, and read as such where it is spelled."""
    from tokenizers.processors import TemplateProcessing

    words = PreTrainedTokenizerFast.from_pretrained(folder, split_special_tokens=False)
    backend = words.backend_tokenizer
    backend.post_processor = TemplateProcessing(single=f"{words.eos_token} $A",
                                                special_tokens=[(words.eos_token, words.eos_token_id)])
    words.save_pretrained(folder)
