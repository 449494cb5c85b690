"""Tables as MLflow's pages show them: JSON with `columns` and `data`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any


def table_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """The JSON of rows; a column that a row lacks is null there."""
    rows = list(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return json.dumps({"columns": columns, "data": [[_cell(row.get(column)) for column in columns] for row in rows]},
                      ensure_ascii=False, allow_nan=False, default=str)


def _cell(value: Any) -> Any:
    """A value as JSON knows it: numpy scalars as numbers, NaN and infinity as null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
