"""Fields of a record as its format promises them; what is not there makes one record unusable, not the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tasks.datasets.records import Record, Unusable


class Unfit(Exception):
    """Raised while a record is made. `reason` is counted, `detail` says what was found."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def field(record: Any, name: str, *kinds: type) -> Any:
    """record[name], of one of these types. Raises `Unfit` (missing_field, wrong_type) with the name of the field."""
    if not isinstance(record, Mapping):
        raise Unfit("wrong_type", f"is a {type(record).__name__} where fields are expected, {name!r} among them")
    if name not in record:
        raise Unfit("missing_field", f"has no field {name!r} (it has {', '.join(map(repr, record)) or 'none'})")
    value = record[name]
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise Unfit("wrong_type", f"field {name!r} is a {type(value).__name__}, not {expected}")
    return value


def texts(record: Any, name: str) -> list[str]:
    """record[name] as a list of texts; a lone text is a list of one. Raises `Unfit`."""
    value = field(record, name, list, tuple, str)
    found = [value] if isinstance(value, str) else list(value)
    wrong = next((each for each in found if not isinstance(each, str)), None)
    if wrong is not None:
        raise Unfit("wrong_type", f"field {name!r} holds a {type(wrong).__name__}, not text")
    return found


def guarded(where: str, make: Callable[..., Iterator[Record | Unusable]], *arguments: Any) -> Iterator[Record | Unusable]:
    """What `make(*arguments)` yields, told where it is from; an `Unfit` it raises becomes one `Unusable` there."""
    try:
        for entry in make(*arguments):
            yield entry if entry.where else replace(entry, where=where)
    except Unfit as error:
        yield Unusable(where, error.reason, error.detail)
