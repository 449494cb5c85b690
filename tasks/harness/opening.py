"""A checkpoint by whatever names it: an artifact's id or its beginning, a model folder of ours, `hf:<folder or name>`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.artifacts import Store
from storage.errors import ArtifactError, TokenizerError
from tasks.external import is_external, load_external, tokenizer_of
from tasks.tokenizers import DESCRIPTION, MODEL, Tokenizer, load_tokenizer

FOLDER = "tokenizer"


@dataclass(frozen=True)
class Opened:
    """A model, its tokenizer, its name, and the ids that the tokenizer's own rules put before every text."""

    model: Any
    tokenizer: Tokenizer
    name: str
    leading: tuple[int, ...] = ()
    leading_text: str = ""


def opened(checkpoint: str, tokenizer: str | None = None, dtype: Any = None, device: str = "cpu") -> Opened:
    """Load both. tokenizer: a name instead of the one that lies beside the weights.

    Raises ArtifactError, ConfigError or TokenizerError saying what was looked for.
    """
    if is_external(checkpoint):
        words = load_tokenizer(tokenizer) if tokenizer else tokenizer_of(checkpoint)
        leading = leading_ids(words)
        return Opened(load_external(checkpoint, dtype, device), words, checkpoint, *leading)
    from models import load_model

    folder = found(checkpoint)
    if tokenizer is None and not (folder / FOLDER / DESCRIPTION).is_file():
        raise TokenizerError(f"{folder} has no tokenizer beside its weights; name one, for example tokenizer=bytes")
    words = load_tokenizer(tokenizer or folder / FOLDER)
    return Opened(load_model(folder, dtype, device), words, folder.name)


def found(checkpoint: str, store: Store | None = None) -> Path:
    """The folder of a checkpoint of ours, its bytes checked where it is an artifact."""
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    store = store or Store()
    identifier = whole(store, checkpoint, "checkpoint")
    store.verify(identifier)
    return store.path(identifier)


def whole(store: Store, artifact: str, kind: str) -> str:
    """The id of this kind that is, or begins with, what was given. Raises ArtifactError."""
    matches = [each.id for each in store.list(kind) if each.id.startswith(artifact)]
    if artifact in matches:
        return artifact
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ArtifactError(f"{artifact} could be {', '.join(matches[:4])}; give more of it")
    raise ArtifactError(f"there is no {kind} artifact {artifact} under {store.root}; `reread list --kind {kind}` shows "
                        "those there are")


def leading_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], str]:
    """Ids that a tokenizer of the `tokenizers` library puts before a text by itself (Llama's <s>), and their spelling.

    What it would put behind a text is never read: a prompt goes on.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        file = Path(folder) / MODEL
        if not file.is_file():
            return (), ""
        from tokenizers import Tokenizer as Model

        model = Model.from_str(file.read_text(encoding="utf-8"))
    bare, full = (model.encode("a", add_special_tokens=special).ids for special in (False, True))
    leading = tuple(full[:_place(bare, full)])
    return leading, "".join(model.id_to_token(token) for token in leading)


def _place(inner: Sequence[int], outer: Sequence[int]) -> int:
    return next((k for k in range(len(outer) - len(inner) + 1) if outer[k:k + len(inner)] == list(inner)), 0)
