"""A model of transformers where a checkpoint is asked for: `hf:<folder or hub name>`, `hf:<owner/name>@<revision>`.

Its identity is what it is, not where it lies: the checksum of a folder's config, weights and tokenizer, or the commit
of a hub repository. Its tokenizer is its own: `tokenizer.json` in the folder, or, for a model whose tokenizer is one of
ours, what `load_tokenizer(...).save(folder)` writes.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from storage.errors import ConfigError, TokenizerError
from storage.manifest import file_sha256
from tasks.tokenizers import DESCRIPTION, MODEL, Tokenizer, load_tokenizer

SCHEME = "hf:"
PARTS = ("config.json", "*.safetensors", "*.bin", MODEL, DESCRIPTION, f"tokenizer/{MODEL}", f"tokenizer/{DESCRIPTION}")
COMMIT = re.compile(r"[0-9a-f]{40}")
SECONDS = 10        # to wait for the hub when a name is resolved


def is_external(checkpoint: str) -> bool:
    """Whether this names a model of transformers rather than an artifact."""
    return checkpoint.startswith(SCHEME)


def identity(checkpoint: str) -> str:
    """What stands for the model in an artifact's id: `hf:sha256-<16 hex>` of a folder, `hf:<name>@<commit>` of the hub.

    Raises ConfigError where there is no such folder or name.
    """
    folder, name, revision = place(checkpoint)
    if folder is None:
        return f"{SCHEME}{name}@{_commit(name, revision)}"
    digest = hashlib.sha256()
    for file in sorted({file for part in PARTS for file in folder.glob(part)}):
        facts = file.stat()
        digest.update(f"{file.relative_to(folder)} {_checksum(str(file), facts.st_size, facts.st_mtime_ns)}\n".encode())
    return f"{SCHEME}sha256-{digest.hexdigest()[:16]}"


def label(checkpoint: str) -> str:
    """A short name for titles and reports: the last part of the folder or name."""
    folder, name, _ = place(checkpoint)
    return (folder.resolve().name if folder else name.rpartition("/")[2]) or "hf"


def load_external(checkpoint: str, dtype: Any = None, device: Any = "cpu") -> Any:
    """The model behind the interface of models.LanguageModel, its padding and caches checked.

    Raises ConfigError or UnsupportedUse (see models.adapters.huggingface).
    """
    from models.adapters.huggingface import HuggingFaceModel

    folder, name, revision = place(checkpoint)
    if folder is not None:
        return HuggingFaceModel.load(str(folder), dtype=dtype, device=device)
    return HuggingFaceModel.load(name, dtype=dtype, device=device, revision=_commit(name, revision))


def tokenizer_of(checkpoint: str, given: str | None = None) -> Tokenizer:
    """The model's own tokenizer, of the same commit as its weights; or the one of this name, for a model without.

    Raises TokenizerError where it has none and none is given.
    """
    folder, name, revision = place(checkpoint)
    if given:
        return load_tokenizer(given) if folder is None else fitted(load_tokenizer(given), folder)
    if folder is None:
        return _of_commit(name, _commit(name, revision))
    for inner in (folder / "tokenizer", folder):
        if (inner / DESCRIPTION).is_file():
            return fitted(load_tokenizer(inner), folder)
        if (inner / MODEL).is_file():
            return fitted(load_tokenizer(f"{SCHEME}{inner / MODEL}"), folder)
    raise TokenizerError(f"{folder} has no {MODEL}, so its text cannot be read; put its tokenizer there, or name the "
                         "one it was trained with (evaluate: --set tokenizer=bytes)")


def _of_commit(name: str, commit: str) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        text = AutoTokenizer.from_pretrained(name, revision=commit).backend_tokenizer.to_str()
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise TokenizerError(f"{SCHEME}{name}: its tokenizer at {commit[:12]} cannot be loaded ({reason}); download the "
                             "whole repository first, or give a folder as hf:<path>") from error
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MODEL).write_text(text, encoding="utf-8")
        found = copy.copy(load_tokenizer(f"{SCHEME}{folder}"))
    found.name = f"{SCHEME}{name}"
    return found


def fitted(tokenizer: Tokenizer, folder: Path) -> Tokenizer:
    """The tokenizer, with the model's own end of text where the tokenizer's lies above the model's vocabulary: a byte
    model of 256 rows has no room for ours, 258."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rows = config.get("vocab_size")
    ends = [each for each in (config.get("bos_token_id"), config.get("eos_token_id")) if isinstance(each, int)]
    if not isinstance(rows, int) or tokenizer.end_of_text < rows or not ends:
        return tokenizer
    changed = copy.copy(tokenizer)
    changed.end_of_text = ends[0]
    return changed


def place(checkpoint: str) -> tuple[Path | None, str, str | None]:
    """(folder, '', None) or (None, hub name, revision or None). Raises ConfigError for a folder without a model, or with
    an export of ours."""
    from models.adapters.hf_load import check_place
    from models.adapters.weight_files import read_config

    source = checkpoint.removeprefix(SCHEME)
    if Path(source).expanduser().exists():
        folder = check_place(source)
        if read_config(folder).get("model_type") == "reread":
            raise ConfigError(exported(folder))
        return folder, "", None
    name, _, revision = source.partition("@")
    check_place(name)
    return None, name, revision or None


def exported(folder: Path) -> str:
    """What is said of a folder that `reread export` wrote, where a checkpoint is asked for."""
    return (f"{folder} is an export of reread for transformers; take the checkpoint it was made from, or "
            f"`reread import {folder}`, which makes one of it")


@functools.lru_cache(maxsize=256)
def _checksum(file: str, size: int, changed: int) -> str:
    """Of a file that has this size and time of change: large weights are read once a process."""
    return file_sha256(Path(file))


@functools.lru_cache(maxsize=16)
def _commit(name: str, revision: str | None) -> str:
    """The commit of a hub repository: as the hub says, or where it cannot be reached, as it lies in the local cache."""
    if revision and COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi().model_info(name, revision=revision, timeout=SECONDS).sha
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        at = f" at {revision}" if revision else ""
        raise ConfigError(f"{SCHEME}{name}: the hub has no such model{at} that is open to you") from error
    except Exception as error:
        cached = try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(cached, str):
            return Path(cached).parent.name
        raise ConfigError(f"{SCHEME}{name}: not in the local cache, and the hub cannot be reached "
                          f"({type(error).__name__}); download it first, or give a folder as hf:<path>") from error
