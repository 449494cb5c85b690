"""Another's checkpoint as a checkpoint of ours: config.json, model.safetensors, tokenizer/, summary.json.

Into a folder, or as a `checkpoint` artifact, whose identity is the bytes of the files it was made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from storage.artifacts import Store, file_sha256
from storage.errors import ConfigError, TokenizerError
from storage.identity import code_hash
from tasks.tokenizers import DESCRIPTION, MODEL, Tokenizer, load_tokenizer

VERSION = "1"
SUMMARY, TOKENIZER, NONE = "summary.json", "tokenizer", "none"


def run(source: Path, store: Store, preset: str | None = None, tokenizer: str | None = None) -> str:
    """Import into the store; the id of the `checkpoint` artifact. Options as in `write`."""
    if not source.is_dir():
        raise ConfigError(f"{source} is no folder; expected that of a checkpoint, with config.json and weights")
    spec = {"imported": {path.relative_to(source).as_posix(): file_sha256(path) for path in _read_files(source)},
            "preset": preset, "tokenizer": tokenizer}
    return store.produce("checkpoint", spec, {}, code_hash([__name__]),
                         lambda folder: write(source, folder, preset, tokenizer), VERSION)


def write(source: Path, folder: Path, preset: str | None = None, tokenizer: str | None = None) -> dict[str, Any]:
    """Import into `folder`; {architecture, seed, parameters, imported, tokenizer, notes}.

    preset     the published Based or JRT model that bare weights are of; None = config.json says
    tokenizer  its name, or "none"; None = the folder's own, or GPT-2's for the released models
    Raises ConfigError (nothing that can be imported) and TokenizerError.
    """
    from models import save_model
    from models.adapters.weights_in import import_model

    found = import_model(source, preset)
    text = _tokenizer(source, tokenizer, found.kind)
    rows = found.model.config.table_rows
    if text is not None and text.vocabulary_size > rows:
        raise ConfigError(f"tokenizer {text.name} has {text.vocabulary_size} ids, the model {rows} rows: it is another "
                          f"model's; give --tokenizer, or --tokenizer {NONE} for the weights alone")
    save_model(found.model, folder)
    if text is not None:
        text.save(folder / TOKENIZER)
    summary = {"architecture": preset or found.kind, "seed": 0, "imported": found.kind,
               "parameters": sum(parameter.numel() for parameter in found.model.parameters()),
               "tokenizer": None if text is None else text.name, "notes": list(found.notes)}
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def _tokenizer(source: Path, wanted: str | None, kind: str) -> Tokenizer | None:
    if wanted == NONE:
        return None
    if wanted is not None:
        return load_tokenizer(wanted)
    if (source / TOKENIZER / DESCRIPTION).is_file():
        return load_tokenizer(source / TOKENIZER)
    if (source / MODEL).is_file():
        try:
            return load_tokenizer(f"hf:{source.absolute()}")
        except (TokenizerError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{source / MODEL}: {error}; repair it, or --tokenizer {NONE} for the weights alone") from error
    return load_tokenizer("gpt2") if kind.startswith("released") else None


def _read_files(source: Path) -> Iterable[Path]:
    """What an import may read, in name order: config, weights, tokenizers."""
    wanted = (".json", ".safetensors", ".bin")
    return sorted(path for path in source.rglob("*")
                  if path.is_file() and path.suffix in wanted and path.parent in (source, source / TOKENIZER))
