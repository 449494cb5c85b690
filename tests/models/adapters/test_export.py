"""Weights out: what a fresh process with transformers alone reads from an exported folder is our model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kernels.layout import Layout
from models import ModelConfig, greedy, registry
from models.adapters.export import export_model
from models.language_model import LanguageModel
from tasks.hub_tokenizer import hub_form
from tasks.tokenizers import load_tokenizer
from tests.conftest import ROOT

NEW, VOCABULARY = 8, 61
TEXTS = ["of the two", "a = 1\n", "the memory of a model"]
HYBRIDS = {
    "hybrid": {"plan": ["conv", "attention", "window"], "mlp": 24, "tie": False},
    "jrt": {"plan": ["conv", "prefix", "window", "conv"], "mlp": 24},
    "jrt_limited": {"plan": ["prefix", "conv", "prefix"], "prefix_tokens": 5, "positions": "sinusoidal"},
    "learned": {"plan": ["attention", "based"], "positions": "learned", "max_length": 64},
}
PIECES = {"conv": {"kind": "base_conv"}, "window": {"kind": "sliding_window", "heads": 2, "window": 4},
          "attention": {"kind": "attention", "heads": 2}, "based": {"kind": "based", "heads": 2, "feature_dim": 2},
          "prefix": {"kind": "prefix", "heads": 2, "feature_dim": 2}}


def configs() -> dict[str, ModelConfig]:
    """Every causal kind in two cases of its own, and hybrids with a prefix, an untied head, learned positions."""
    common = {"width": 16, "vocabulary": VOCABULARY, "init_std": 0.5, "seed": 3}
    found = {name: ModelConfig.model_validate({**common, "mixers": {each: PIECES[each] for each in one["plan"]}, **one})
             for name, one in HYBRIDS.items()}
    for kind in registry.kinds():
        causal = [(case, config) for case, config in registry.config_class(kind).cases().items()
                  if registry.abilities(config).causal and registry.abilities(config).streaming]
        for case, config in causal[:2]:
            found[f"{kind}-{case}"] = ModelConfig.model_validate(
                {**common, "mixers": {"it": config}, "plan": ["it", "it"], "mlp": 16})
    return found


CONFIGS = configs()


def build(config: ModelConfig) -> LanguageModel:
    """A model whose rows beyond the vocabulary would win every choice if they could be chosen."""
    model = LanguageModel(config).eval()
    head = model.embedding.weight if model.head_proj is None else model.head_proj.weight
    with torch.no_grad():
        head[VOCABULARY:] = 4 * head[: config.table_rows - VOCABULARY]
    return model


def documents() -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, VOCABULARY, (length,), generator=draw).tolist() for length in (9, 4, 1)]


def padded(rows: list[list[int]], side: str) -> tuple[list[list[int]], list[list[int]]]:
    """Rows of one length, filled up with id 7, and their mask."""
    longest = max(map(len, rows))
    fill = [[7] * (longest - len(row)) for row in rows]
    masks = [[0] * len(pads) for pads in fill]
    ones = [[1] * len(row) for row in rows]
    if side == "left":
        return [a + b for a, b in zip(fill, rows)], [a + b for a, b in zip(masks, ones)]
    return [a + b for a, b in zip(rows, fill)], [a + b for a, b in zip(ones, masks)]


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory):
    """(ours, its Hugging Face form)."""
    folder = tmp_path_factory.mktemp("bytes")
    load_tokenizer("bytes").save(folder)
    return hub_form(folder)


@pytest.fixture(scope="module")
def speaker() -> LanguageModel:
    """A prefix model over bytes."""
    return LanguageModel(ModelConfig.model_validate({
        "width": 16, "vocabulary": 259, "mixers": PIECES, "plan": ["conv", "prefix", "window"], "init_std": 0.5})).eval()


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, byte_tokenizer, speaker) -> dict[str, dict[str, torch.Tensor]]:
    """What a fresh process finds in the exported folders: name -> what -> tensor."""
    root = tmp_path_factory.mktemp("exported")
    rows = documents()
    asked = {}
    for name, config in {**CONFIGS, "speaker": None}.items():
        model = speaker if config is None else build(config)
        export_model(model, root / name, byte_tokenizer[1] if config is None else None, "0")
        asked[name] = {"folder": str(root / name), "ids": [rows[0]], "new": NEW, "text": TEXTS if config is None else None}
        for side in ("left", "right"):
            asked[name][side], asked[name][f"{side}_mask"] = padded(rows, side)
    (root / "asked.json").write_text(json.dumps(asked))
    run(root, str(Path(__file__).parent / "exported.py"), str(root / "asked.json"), str(root / "out.safetensors"))
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(root / "out.safetensors").items():
        name, _, what = key.rpartition("/")
        found.setdefault(name, {})[what] = tensor
    return found


def run(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """A fresh Python, in `folder`, with a cache of code files of its own."""
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("HF_MODULES_CACHE", None)
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=500)
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_fresh_process_gives_the_same_logits(name, fresh):
    model, rows = build(CONFIGS[name]), documents()
    ids_BL = torch.tensor([rows[0]])
    torch.testing.assert_close(fresh[name]["dense"], model(ids_BL, Layout.dense(1, len(rows[0]))), rtol=0, atol=1e-6)
    for side in ("left", "right"):
        ids, mask = padded(rows, side)
        real_BL = torch.tensor(mask).bool()
        wanted = model(torch.tensor(ids), Layout.from_mask(real_BL))
        torch.testing.assert_close(fresh[name][side], wanted, rtol=0, atol=1e-6)
        for row, document in enumerate(rows):
            alone = model(torch.tensor([document]), Layout.dense(1, len(document)))[0]
            torch.testing.assert_close(fresh[name][side][row][real_BL[row]], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_fresh_process_writes_the_same_text(name, fresh):
    wanted = greedy(build(CONFIGS[name]), documents(), maximum_new=NEW)
    assert fresh[name]["cached"].tolist() == wanted
    assert fresh[name]["anew"].tolist() == wanted


def test_the_texts_compared_say_something(fresh):
    """Not one token again and again, which a model that reads nothing would match too."""
    texts = [row for name in CONFIGS for row in fresh[name]["cached"].tolist()]
    assert sum(len(set(row)) > 2 for row in texts) > len(texts) // 2
    assert not any(token >= VOCABULARY for row in texts for token in row)


def test_text_in_text_out(fresh, byte_tokenizer, speaker):
    ours, _ = byte_tokenizer
    wanted = greedy(speaker, [ours.encode(text) for text in TEXTS], maximum_new=NEW, stop={ours.end_of_text})
    assert bytes(fresh["speaker"]["text"].tolist()).decode() == "\n".join(map(ours.decode, wanted))


def test_without_our_packages_it_says_what_to_install(tmp_path):
    export_model(build(CONFIGS["hybrid"]), tmp_path / "model", None, "0")
    program = ("import sys; sys.modules['models'] = None\nfrom transformers import AutoModelForCausalLM as A\n"
               "A.from_pretrained('model', trust_remote_code=True)")
    done = run(tmp_path, "-c", program, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and last.startswith("ImportError") and "Install reread" in last and "models" in last


def test_exporting_is_lazy(tmp_path):
    """The module is imported without transformers."""
    done = run(tmp_path, "-c", "import sys, models.adapters.export, models.adapters.card, models.adapters.folders; "
                               "print('transformers' in sys.modules)")
    assert done.stdout.strip() == "False"
