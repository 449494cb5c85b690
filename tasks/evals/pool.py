"""The attribute names and values of a training split: what swaps and lists draw from, and what a guesser would say."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from storage.errors import CorpusError
from tasks import prompts


@dataclass(frozen=True)
class AttributePool:
    """Distinct names and values, sorted, and the commonest value of each name (ties: the first in the alphabet)."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    commonest: dict[str, str]

    @classmethod
    def of(cls, documents: Iterable[str]) -> AttributePool:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for document in documents:
            for attribute in prompts.attributes(document):
                counts[attribute.name][attribute.value] += 1
        commonest = {name: min(values, key=lambda value: (-values[value], value)) for name, values in counts.items()}
        values = {value for each in counts.values() for value in each}
        return cls(tuple(sorted(counts)), tuple(sorted(values)), commonest)

    def uncommon(self, name: str, value: str) -> bool:
        """Whether guessing the commonest value of the name would be wrong; a name never seen cannot be guessed."""
        return self.commonest.get(name) != value

    def swapped(self, document: str, draw: random.Random) -> str | None:
        """The document with each attribute's value replaced by one it does not hold, no value twice.

        None when there are too few other values. A name that occurs twice gets one value.
        """
        held = prompts.attributes(document)
        names = list(dict.fromkeys(attribute.name for attribute in held))
        taken, values = {attribute.value for attribute in held}, {}
        if len(self.values) < len(names) + len(taken):
            return None
        for name in names:
            values[name] = self._other(taken, draw)
            taken.add(values[name])
        return prompts.with_values(document, values)

    def _other(self, taken: set[str], draw: random.Random) -> str:
        while True:
            value = draw.choice(self.values)
            if value not in taken:
                return value

    def listed(self, lines: int, draw: random.Random) -> list[tuple[str, str]]:
        """`lines` pairs of a name and a value: no name twice, no value part of another.

        Raises `CorpusError` when the training split holds too few of them.
        """
        if len(self.names) < lines:
            raise CorpusError(f"a list of {lines} lines needs as many attribute names; the training split has "
                              f"{len(self.names)} (lines of the form `name : value`)")
        values: list[str] = []
        for _ in range(200 * lines):
            value = draw.choice(self.values)
            if not any(value.lower() in other.lower() or other.lower() in value.lower() for other in values):
                values.append(value)
            if len(values) == lines:
                return list(zip(draw.sample(self.names, lines), values))
        raise CorpusError(f"the training split has too few different attribute values for a list of {lines} lines")
