"""A short run over the whole of the data: some steps of a longer run, evenly spread.

Rows come in an order that changes from first to last (lists before documents, small sets before large ones). A trial
that took only the first steps would be judged on what it has not seen, so it takes every k-th.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from models.objectives import Batch
from tasks.training.data import Objective, Source


class Spread:
    """`steps` of the `total` steps of another source, the first one included; its validation as it is."""

    def __init__(self, source: Source, total: int, steps: int) -> None:
        self.source = source
        self.places = [step * total // steps for step in range(steps)]
        self._tokens, self._rows = (
            np.cumsum([0, *(count(place + 1) - count(place) for place in self.places)], dtype=np.int64)
            for count in (source.tokens_before, source.rows_before))

    def __len__(self) -> int:
        """Steps of the short run."""
        return len(self.places)

    @property
    def objective(self) -> Objective:
        return self.source.objective

    def micro_batches(self, step: int) -> list[Batch]:
        return self.source.micro_batches(self.places[step])

    def validation(self, count: int) -> list[Batch]:
        return self.source.validation(count)

    def rows_before(self, step: int) -> int:
        return int(self._rows[step])

    def tokens_before(self, step: int) -> int:
        return int(self._tokens[step])

    def lengths_before(self, step: int) -> dict[int, int]:
        lengths: Counter[int] = Counter()
        for place in self.places[:step]:
            lengths.update(self.source.lengths_before(place + 1))
            lengths.subtract(self.source.lengths_before(place))
        return {length: count for length, count in sorted(lengths.items()) if count}
