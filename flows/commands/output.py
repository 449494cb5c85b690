"""stdout for results, stderr for everything else."""

from __future__ import annotations

import json
import sys
from typing import Any


def document(value: Any) -> None:
    """The one JSON document of `--json`."""
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def say(text: str = "") -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def console():
    """rich on stdout; wide enough for tables where there is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def table(columns: list[str], rows: list[list[Any]], right: tuple[str, ...] = (), title: str | None = None) -> None:
    """A plain table."""
    from rich.table import Table

    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if cell is None else str(cell) for cell in row))
    console().print(shown)


def interval(row: dict[str, Any], signed: bool = False) -> str:
    """`low` to `high` of a row; with signs for a difference, a dash where nothing could be resampled."""
    if row["low"] is None:
        return "–"
    return f"{row['low']:+.3f} to {row['high']:+.3f}" if signed else f"{row['low']:.3f} to {row['high']:.3f}"


def size(count: float) -> str:
    """Bytes for people: 12 kB, 3.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""
