"""One place that decides what happens to a record that cannot be read."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from storage.errors import CorpusError


class BadRecords:
    """Stops at the first bad record, or counts them by reason."""

    def __init__(self, policy: Literal["error", "skip"]) -> None:
        self.policy = policy
        self.counts: Counter[str] = Counter()

    def add(self, reason: str, where: str, detail: str) -> None:
        """`reason` is a short countable name; `where` names the file and the record."""
        self.counts[reason] += 1
        if self.policy == "error":
            raise CorpusError(f"{where}: {detail}; mend it, or set on_bad_record=skip to leave such records out")
