"""The model and the tokenizer behind the name of a checkpoint: an artifact's id, or `hf:<folder or hub name>`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from storage.artifacts import Store
from storage.errors import SpecError
from tasks.tokenizers import load_tokenizer

OUTSIDE = "tasks.external"


def outside(checkpoint: str) -> ModuleType | None:
    """tasks.external for a model of transformers. Imported by name, so that its code, and that of the adapter behind
    it, is part of the identity of what it evaluates and of nothing else."""
    return importlib.import_module(OUTSIDE) if checkpoint.startswith("hf:") else None


def tokenizer_of(checkpoint: str, store: Store, given: str | None = None) -> Any:
    """The checkpoint's own tokenizer. given: the name of that of a model of transformers which brings none.

    Raises SpecError where a name is given to an artifact, which always brings its own.
    """
    if elsewhere := outside(checkpoint):
        return elsewhere.tokenizer_of(checkpoint, given)
    if given:
        raise SpecError(f"tokenizer {given!r}: {checkpoint} brings its own; leave `tokenizer` empty")
    return load_tokenizer(str(store.path(checkpoint) / "tokenizer"))


def model_of(checkpoint: str, store: Store, dtype: str) -> Any:
    """The model in `dtype`, on the GPU of this process if it has one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if elsewhere := outside(checkpoint):
        return elsewhere.load_external(checkpoint, getattr(torch, dtype), device)
    from models import load_model

    return load_model(store.path(checkpoint), getattr(torch, dtype), device)
