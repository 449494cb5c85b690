"""What a rewriter is: question and answer become a statement that ends where the answer starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tasks.datasets.records import Record, Unusable


class Rewriter(Protocol):
    """Turns questions into statements without their answer.

    bill  what it took, as plain numbers by name. By rule: how many of each form. At an endpoint: requests, tokens_in,
          tokens_out, cost, cached.
    """

    bill: dict[str, Any]

    def clozes(self, records: Sequence[Record]) -> Iterator[str | Unusable]:
        """One result a record, in the records' order: the statement, or why there is none."""
        ...
