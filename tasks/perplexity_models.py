"""A checkpoint that reads text: an artifact or `hf:...`, its tokenizer, and its loss at many targets.

A model is named and loaded as in an evaluation. What is taken from there beyond tasks/loading.py is imported by name,
so that a change of how answers are made or scored does not rename losses.

Letters: S targets, D width, E vocabulary rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from storage.artifacts import Store
from storage.errors import ArtifactError
from storage.identity import code_hash
from tasks.loading import OUTSIDE, model_of, outside, tokenizer_of
from tasks.tokenizers import Tokenizer

EVALUATE, PREDICTIONS = "tasks.evaluate", "tasks.predictions"
LOGITS = 1 << 25        # held at once: 128 MB in float32


@dataclass(frozen=True)
class Source:
    """A checkpoint by its name: an artifact's id, or `hf:<folder or hub name>`."""

    checkpoint: str

    @property
    def outside(self) -> ModuleType | None:
        """tasks.external for a model of transformers."""
        return outside(self.checkpoint)

    @property
    def identity(self) -> str:
        """What stands for it in an artifact's id: its own, or the checksum or commit of a model of transformers.

        Raises ConfigError where there is no such folder or name.
        """
        return self.outside.identity(self.checkpoint) if self.outside else self.checkpoint

    def code(self, stage: str, mixers: Iterable[str] | None) -> str:
        """Hash of a stage, and of the trunk and the mixers that may run (None: all), or the adapter."""
        if self.outside:
            return code_hash([stage, OUTSIDE])
        kinds = sorted(set(mixers)) if mixers is not None else importlib.import_module(EVALUATE)._kinds()
        return code_hash([stage, "models.checkpoint", *(f"models.mixers.{kind}" for kind in kinds)])

    def load(self, store: Store, dtype: str) -> tuple[Any, Tokenizer]:
        """(model, tokenizer), on the GPU if there is one. Raises ConfigError, ArtifactError, TokenizerError."""
        if not self.outside:
            store.verify(self.checkpoint)
        tokenizer = tokenizer_of(self.checkpoint, store)
        return model_of(self.checkpoint, store, dtype).eval(), tokenizer


def threads(count: int) -> Any:
    """Context: torch runs on this many CPU threads meanwhile."""
    return importlib.import_module(PREDICTIONS).threads(count)


def device_of(model: Any) -> Any:
    """Where the model's weights lie."""
    return next(model.parameters()).device


def read_with(tokenizer: Tokenizer, written: Tokenizer, where: str) -> int:
    """The id that stands for `written.end_of_text` in the model's own tokenizer, for ids made with `written`.

    Raises ArtifactError unless both mean the same bytes by every id of text.
    """
    same = written.vocabulary_size == tokenizer.vocabulary_size and all(
        written.token_bytes(i) == tokenizer.token_bytes(i) for i in range(written.vocabulary_size))
    if not same:
        raise ArtifactError(f"{where} was tokenised with {written.name}, the checkpoint reads {tokenizer.name}: its ids mean "
                            "other text; tokenise the corpus with the checkpoint's tokenizer, or give a corpus instead")
    return tokenizer.end_of_text


def check_ids(model: Any, ids: np.ndarray, where: str) -> None:
    """ArtifactError where text holds an id that the model has no row for."""
    if ids.size and int(ids.max()) >= model.config.table_rows:
        raise ArtifactError(f"{where} holds id {int(ids.max())}, the model has {model.config.table_rows} rows; it was "
                            "tokenised for another model")


def target_losses(model: Any, x_SD: Any, target_S: Any) -> Any:
    """Cross entropy of each target [nats], float32 or float64; logits of a part of the targets at a time."""
    import torch

    step = max(1, LOGITS // model.config.table_rows)
    return torch.cat([cross_entropy(model.head(x_SD[first:first + step]), target_S[first:first + step])
                      for first in range(0, len(target_S), step)] or [x_SD.new_zeros(0)])


def cross_entropy(logits_SE: Any, target_S: Any) -> Any:
    """Of each target [nats], in float32 at least."""
    import torch
    import torch.nn.functional as F

    if logits_SE.dtype in (torch.bfloat16, torch.float16):
        logits_SE = logits_SE.float()
    return F.cross_entropy(logits_SE, target_S, reduction="none")
