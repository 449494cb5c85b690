"""Which rows a step reads. Both sources are functions of the global step alone: no iterator, no worker state.

`RowBatches` replays the batches that a rows artifact stores, the same for every architecture. `ShardBatches` reads
natural text in an order that depends on (seed, epoch) alone. N workers share a step's rows; whatever the split, the
union over workers is the same, and so are the masks, which depend on (seed, epoch, row number).
The cursor of a run is "rows consumed", and it follows from the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from models.objectives import Batch, answers_batch, next_token_batch, prefix_lm_batch, uniform_draws
from storage.errors import ArtifactError, SpecError
from storage.shards import RowTable, TokenShards
from tasks.specs import ObjectiveSpec, TrainSpec

ORDER_ROW = (1 << 62) + 1  # the row number whose draws give an epoch's order: no table is that long


@dataclass(frozen=True)
class Objective:
    """A resolved objective: what batches of this run ask for."""

    kind: Literal["answers", "prefix_lm", "next_token"]
    reads_prefix: bool
    mask_id: int
    seed: int
    spec: ObjectiveSpec

    @property
    def boundary(self) -> str:
        """Whether slot m−1 predicts token m. Answers always may; of what is causal there is no boundary."""
        return {"answers": "predict", "prefix_lm": self.spec.boundary, "next_token": "none"}[self.kind]


class Source(Protocol):
    """Where a training loop gets its batches."""

    def micro_batches(self, step: int) -> list[Batch]:
        """This worker's forward passes of one optimiser step."""

    def validation(self, count: int) -> list[Batch]:
        """The first `count` validation batches, on every worker, without masks: causal targets only."""

    def rows_before(self, step: int) -> int:
        """Rows that all workers together consumed before `step`: the cursor."""

    def tokens_before(self, step: int) -> int:
        """Real tokens of those rows."""

    def lengths_before(self, step: int) -> dict[int, int]:
        """Input length of a row -> number of rows before `step` that had it."""


def resolve_objective(train: TrainSpec, reads_prefix: bool, mask_id: int, seed: int) -> Objective:
    """The objective that `auto` means here. SpecError for a kind that the data or the model cannot serve."""
    kind = train.objective.kind
    if kind == "auto":
        kind = "answers" if train.data == "rows" else "prefix_lm" if reads_prefix else "next_token"
    if (kind == "answers") != (train.data == "rows"):
        fits = "answers" if train.data == "rows" else "prefix_lm or next_token"
        raise SpecError(f"objective {kind!r} does not fit data {train.data!r}; use {fits}, or auto")
    if kind == "prefix_lm" and not reads_prefix:
        raise SpecError("objective 'prefix_lm' needs a model with a prefix mixer; this one is causal: use 'next_token'")
    return Objective(kind, reads_prefix, mask_id, seed, train.objective)


class RowBatches:
    """Recall rows in stored batches; after the last batch the next epoch begins, with other masks.

    With several workers, worker r takes rows r, r + workers, … of the batch.
    """

    def __init__(self, folder: str | Path, objective: Objective, *, worker: int = 0, workers: int = 1) -> None:
        self.objective, self.worker, self.workers = objective, worker, workers
        self.train = _Rows(RowTable(Path(folder) / "train.arrow"))
        validation = Path(folder) / "validation.arrow"
        self._validation = _Rows(RowTable(validation)) if validation.is_file() else None
        fewest = int(np.diff(self.train.bounds).min())
        if fewest < workers:
            raise SpecError(f"{workers} workers cannot share these rows: a batch has only {fewest}, and every worker "
                            "needs one; use fewer workers or rows with a larger batch_tokens")
        sizes = np.add.reduceat(self.train.lengths, self.train.bounds[:-1])
        self._tokens = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def __len__(self) -> int:
        """Batches of one epoch."""
        return len(self.train.bounds) - 1

    def rows_of(self, step: int) -> np.ndarray:
        """Row numbers of the whole batch of `step`."""
        index = step % len(self)
        return np.arange(self.train.bounds[index], self.train.bounds[index + 1])

    def micro_batches(self, step: int) -> list[Batch]:
        rows = self.rows_of(step)[self.worker::self.workers]
        return [self.train.batch(rows, self.objective, epoch=step // len(self))]

    def validation(self, count: int) -> list[Batch]:
        if self._validation is None:
            return []
        rows = self._validation
        return [rows.batch(np.arange(begin, end), self.objective, epoch=None)
                for begin, end in zip(rows.bounds[:-1], rows.bounds[1:])][:count]

    def rows_before(self, step: int) -> int:
        epochs, index = divmod(step, len(self))
        return epochs * int(self.train.bounds[-1]) + int(self.train.bounds[index])

    def tokens_before(self, step: int) -> int:
        epochs, index = divmod(step, len(self))
        return int(epochs * self._tokens[-1] + self._tokens[index])

    def lengths_before(self, step: int) -> dict[int, int]:
        epochs, index = divmod(step, len(self))
        inputs = self.train.lengths - 1
        counts = epochs * np.bincount(inputs) + np.bincount(
            inputs[:self.train.bounds[index]], minlength=int(inputs.max()) + 1)
        return {int(length): int(counts[length]) for length in np.flatnonzero(counts)}


class _Rows:
    """One table of recall rows as arrays."""

    def __init__(self, table: RowTable) -> None:
        self.ids, self.offsets = table.column("ids")
        self.slots, self.slot_offsets = table.column("answers")
        self.prefix = np.asarray(table.column("prefix"), np.int64)
        self.lengths = np.diff(self.offsets).astype(np.int64)
        number = np.asarray(table.column("batch"))
        if not len(number):
            raise ArtifactError(f"{table.path} holds no rows; rebuild the rows artifact with more tokens")
        begins = np.flatnonzero(np.diff(number)) + 1
        if len(np.unique(number)) != len(begins) + 1:
            raise ArtifactError(f"{table.path}: rows of one batch are not neighbours; rebuild the rows artifact")
        self.bounds = np.concatenate([[0], begins, [len(number)]]).astype(np.int64)

    def batch(self, rows: np.ndarray, objective: Objective, epoch: int | None) -> Batch:
        """The batch of these rows. epoch None: validation, answers alone."""
        spec = objective.spec
        draws_BL = None if epoch is None else uniform_draws(objective.seed, epoch, rows, int(self.lengths[rows].max()))
        return answers_batch(
            np.concatenate([self.ids[self.offsets[row]:self.offsets[row + 1]] for row in rows]).astype(np.int64),
            self.lengths[rows], self.prefix[rows],
            [self.slots[self.slot_offsets[row]:self.slot_offsets[row + 1]] for row in rows],
            reads_prefix=objective.reads_prefix, mask_id=objective.mask_id, draws_BL=draws_BL,
            mask_share=0.0 if epoch is None else spec.mask_share, mask_weight=spec.mask_weight,
            document_share=0.0 if epoch is None else spec.document_share, document_weight=spec.document_weight,
            normalisation=spec.normalisation)


class ShardBatches:
    """Natural text in fixed rows of N+1 tokens, in an order of its own for every epoch.

    A step reads `global_rows` rows; they go to workers in micro-batches, dealt like cards. A number of workers that
    does not divide them is refused, because the rows of a step would then depend on it.
    """

    def __init__(self, folder: str | Path, objective: Objective, *, global_rows: int, micro_rows: int,
                 worker: int = 0, workers: int = 1) -> None:
        if global_rows % (micro_rows * workers):
            raise SpecError(f"global_batch_rows {global_rows} is not a multiple of micro_batch_rows x workers = "
                            f"{micro_rows} x {workers}; choose a number of workers that divides it, so that row order "
                            "does not depend on the number of workers")
        self.objective, self.worker, self.workers = objective, worker, workers
        self.global_rows, self.micro_rows = global_rows, micro_rows
        self.train = TokenShards(Path(folder) / "train")
        held = Path(folder) / "validation"
        self._validation = TokenShards(held) if any(held.glob("*.arrow")) else None
        self.slots = self.train.row_tokens - 1
        self.prefix = int(self.slots * objective.spec.prefix_share)
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def _draw_order(self, epoch: int) -> np.ndarray:
        return np.argsort(uniform_draws(self.objective.seed, epoch, [ORDER_ROW], len(self.train))[0], kind="stable")

    def rows_of(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(epoch, row number) of every row of the global batch of `step`, in order."""
        epochs, places = np.divmod(np.arange(step * self.global_rows, (step + 1) * self.global_rows), len(self.train))
        return epochs, np.array([self._order(int(epoch))[place] for epoch, place in zip(epochs, places)])

    def micro_batches(self, step: int) -> list[Batch]:
        epochs, rows = self.rows_of(step)
        hand = self.micro_rows * self.workers
        return [self._batch(self.train, epochs[begin:begin + self.micro_rows], rows[begin:begin + self.micro_rows])
                for begin in range(self.worker * self.micro_rows, self.global_rows, hand)]

    def validation(self, count: int) -> list[Batch]:
        if self._validation is None:
            return []
        last = min(len(self._validation), count * self.micro_rows)
        return [self._batch(self._validation, None, np.arange(begin, min(begin + self.micro_rows, last)))
                for begin in range(0, last, self.micro_rows)]

    def _batch(self, shards: TokenShards, epochs: np.ndarray | None, rows: np.ndarray) -> Batch:
        """The batch of these rows. epochs None: validation, the causal part alone, the same slots for every model."""
        spec = self.objective.spec
        rows_BN = np.stack([shards.row(int(row)) for row in rows]).astype(np.int64)
        starts = [shards.starts(int(row)) for row in rows] if spec.document_boundaries else None
        if self.objective.kind == "next_token":
            return next_token_batch(rows_BN, starts, first_slot=self.prefix if epochs is None else 0)
        draws_BN = np.ones((len(rows), self.slots)) if epochs is None else uniform_draws(
            self.objective.seed, epochs, rows, self.slots)
        return prefix_lm_batch(
            rows_BN, starts, prefix=self.prefix, mask_id=self.objective.mask_id, draws_BN=draws_BN,
            mask_share=0.0 if epochs is None else spec.mask_share, mask_weight=spec.mask_weight,
            boundary="released" if epochs is None else spec.boundary, normalisation=spec.normalisation,
            target_zero=spec.normalisation != "released")

    def rows_before(self, step: int) -> int:
        return step * self.global_rows

    def tokens_before(self, step: int) -> int:
        return step * self.global_rows * self.slots

    def lengths_before(self, step: int) -> dict[int, int]:
        return {self.slots: self.rows_before(step)}
