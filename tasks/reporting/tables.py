"""A table that prints the same numbers on a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table as RichTable


@dataclass
class Table:
    """Cells are strings, formatted once."""

    name: str                     # file name of the CSV
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        """GitHub Markdown, numbers as they stand."""
        lines = [f"### {self.title}", ""]
        lines.append("| " + " | ".join(name.replace("|", "\\|") for name in self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join(lines + (["", self.note] if self.note else [])) + "\n"

    def csv(self, folder: Path) -> None:
        """Writes `<name>.csv`."""
        with open(folder / f"{self.name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows(self.rows)

    def rich(self) -> RichTable:
        """For the terminal."""
        table = RichTable(title=self.title, title_justify="left", title_style="bold", caption=self.note or None,
                          caption_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


def share(value: float | None) -> str:
    """A share to three digits, or a dash."""
    return "–" if value is None else f"{value:.3f}"


def interval(value: float | None, low: float | None, high: float | None, signed: bool = False) -> str:
    """`0.712 [0.66, 0.76]`; a dash where nothing could be resampled."""
    if value is None:
        return "–"
    text = f"{value:+.3f}" if signed else f"{value:.3f}"
    if low is None or high is None:
        return f"{text} [–]"
    return f"{text} [{low:+.2f}, {high:+.2f}]" if signed else f"{text} [{low:.2f}, {high:.2f}]"


def count(value: float) -> str:
    """Whole numbers with thin grouping: 3,900,000."""
    return f"{value:,.0f}"


def size(octets: float) -> str:
    """Bytes in the unit a person would say."""
    for unit in ("B", "kB", "MB", "GB"):
        if octets < 1000 or unit == "GB":
            return f"{octets:,.0f} {unit}" if unit == "B" else f"{octets:,.1f} {unit}"
        octets /= 1000
    return ""
