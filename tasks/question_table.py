"""Reading `questions.arrow`, what the questions stage writes, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from storage.errors import CorpusError
from storage.shards import RowTable
from tasks.evals.base import QuestionRow

FILE = "questions.arrow"
COLUMNS = [each.name for each in fields(QuestionRow)]


class QuestionTable(Sequence):
    """The rows of a questions artifact as `QuestionRow`; texts stay in the mapped file until they are asked for.

    Raises CorpusError for a file without one of the columns.
    """

    def __init__(self, folder: Path) -> None:
        found = RowTable(folder / FILE)
        missing = [name for name in COLUMNS if name not in found.names]
        if missing:
            raise CorpusError(f"{found.path} has no column {', '.join(missing)} (it has {', '.join(found.names)}); write "
                              "the questions again with this version")
        self._table = found.table.select(COLUMNS)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, number: int) -> QuestionRow:
        if not 0 <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        [row] = self._table.slice(number, 1).to_pylist()
        return QuestionRow(**row | {"answers": tuple(row["answers"])})
