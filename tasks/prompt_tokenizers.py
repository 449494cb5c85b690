"""The tokenizer of prompts that come with no corpus: `gpt2`, `bytes` or `hf:<file, folder or hub name>`.

What stands in an artifact's id is what the tokenizer is, not where it lies: the name of ours, the checksum of another.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

from storage.errors import SpecError
from storage.manifest import file_sha256
from tasks.tokenizers import DESCRIPTION, MODEL, Tokenizer, load_tokenizer

SCHEME = "hf:"
NAMED = ("gpt2", "bytes")
OUTSIDE = "tasks.external"      # by name, so that a change to the reading of models renames no prompts


def identity(name: str | None) -> str | None:
    """What stands for the tokenizer in an artifact's id: the name of one of ours, `hf:sha256-<16 hex>` of another.

    Raises as `named`.
    """
    if name is None or name in NAMED:
        return name
    tokenizer = named(name)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        model = Path(folder) / MODEL
        return f"{SCHEME}sha256-{file_sha256(model)[:16]}" if model.is_file() else tokenizer.name


def named(name: str) -> Tokenizer:
    """The tokenizer of this name. Of a folder that holds a model, that model's.

    Raises SpecError for one that needs a corpus or reads no text, TokenizerError or ConfigError for one that is not there.
    """
    if name in NAMED:
        return load_tokenizer(name)
    if name.startswith("bpe:"):
        raise SpecError(f"tokenizer {name!r} is trained on a corpus: leave `tokenizer` out and give the shards artifact "
                        f"that holds it, or choose {', '.join(NAMED)} or {SCHEME}<name>")
    place = Path(name.removeprefix(SCHEME)).expanduser()
    if not name.startswith(SCHEME) or name == SCHEME:
        raise SpecError(f"tokenizer {name!r} is none that prompts can be written with; choose {', '.join(NAMED)} or "
                        f"{SCHEME}<file, folder or hub name>")
    if place.is_file():
        return load_tokenizer(f"{SCHEME}{place}")
    for folder in (place / "tokenizer", place):
        if (folder / DESCRIPTION).is_file():
            return load_tokenizer(folder)
        if (folder / MODEL).is_file():
            return load_tokenizer(f"{SCHEME}{folder}")
    return importlib.import_module(OUTSIDE).tokenizer_of(name)
