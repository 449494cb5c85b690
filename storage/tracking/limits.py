"""What MLflow accepts: sizes of one call, characters of names, lengths of values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

BATCH = 1000            # metrics of one log_batch call
PARAMETERS = 100        # parameters or tags of one call
VALUE = 6000            # characters of a parameter value
TAG = 8000              # characters of a run's tag
VERSION_TAG = 100_000   # of a model version's
DESCRIPTION = 5000      # characters of a version's description
DIGEST = 36             # characters of a data set's digest


def valid_name(key: str) -> str:
    """A key as MLflow accepts it: other characters than letters, digits and `_-./ :` become `_`, and it leads to no other
    place when it is read as a path."""
    parts = re.sub(r"[^\w\-./ :]", "_", key).strip("/")[:250].split("/")
    return "/".join("_" * len(part) if part in (".", "..") else part for part in parts if part) or "_"


def model_name(name: str) -> str:
    """A name for a registered model: the characters that its addresses use become dashes."""
    return re.sub(r"[/:'@]", "-", name)


def cut(values: Mapping[str, Any], limit: int = TAG) -> dict[str, str]:
    """Keys and values as MLflow accepts them."""
    return {valid_name(str(key)): str(value)[:limit] for key, value in values.items()}


def cut_whole(text: str, limit: int = DESCRIPTION) -> str:
    """As many whole paragraphs as a description takes."""
    while len(text) > limit and "\n\n" in text:
        text = text.rpartition("\n\n")[0]
    return text[:limit]


def parts(values: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    """As many at a time as one call takes."""
    items = list(values.items())
    for first in range(0, len(items), PARAMETERS):
        yield items[first:first + PARAMETERS]
