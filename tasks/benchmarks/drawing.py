"""Pieces of the benchmark's plots: conditions as a label, lines with marks, axes with numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

GREY = "#777777"
Row = dict[str, Any]


def conditions(rows: Iterable[Row], batch: bool = True) -> str:
    """What all rows share, for a title: `AMD EPYC, float32, 1 thread, batch 1, 8 heads`."""
    rows = list(rows)
    parts = [shared(rows, "device"), shared(rows, "dtype")]
    threads = {row["threads"] for row in rows} - {None}
    parts += [f"{count} thread{'s' * (count != 1)}" for count in sorted(threads)]
    parts += [f"batch {shared(rows, 'batch')}"] if batch else []
    heads = shared(rows, "heads")
    return ", ".join([*parts, *([f"{heads} heads"] if heads else [])])


def shared(rows: list[Row], key: str) -> str:
    """The value of all rows; of several numbers the range."""
    values = sorted({row[key] for row in rows if row[key] is not None})
    if len(values) > 2 and not isinstance(values[0], str):
        return f"{values[0]} to {values[-1]}"
    return " and ".join(map(str, values))


def main_batch(rows: list[Row]) -> list[Row]:
    """Of rows of several batches, those of the batch with most lengths."""
    batches = sorted({row["batch"] for row in rows})
    chosen = max(batches, key=lambda batch: len({row["n"] for row in rows if row["batch"] == batch}), default=None)
    return [row for row in rows if row["batch"] == chosen]


def is_ours(row: Row) -> bool:
    return "." not in row["backend"] and row["backend"] not in ("released quadratic", "naive")


def panels_across(panels: int) -> int:
    return panels if panels <= 3 else 3 if panels % 3 == 0 or panels > 8 else min(4, math.ceil(panels / 2))


def grid(panels: int, width: float, height: float) -> tuple[plt.Figure, list[plt.Axes]]:
    across = panels_across(panels)
    down = math.ceil(panels / across)
    figure, axes = plt.subplots(down, across, figsize=(max(5.6, width * across), height * down + 0.3), squeeze=False, sharey=True)
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:panels])


def lines(axis: plt.Axes, rows: list[Row], label, colours, x: str = "n") -> None:
    """One line a label; a contended point is a cross."""
    for place, name in enumerate(dict.fromkeys(label(row) for row in rows)):
        own = sorted((row for row in rows if label(row) == name), key=lambda row: row[x])
        colour = colours[place % len(colours)]
        axis.plot([row[x] for row in own], [row["ms"] for row in own], "-" if is_ours(own[0]) or own[0]["op"] == "sdpa" else "--",
                  color=colour, linewidth=1.3, label=name)
        marks(axis, own, colour, x=x)
    axis.grid(alpha=0.3, which="major")


def marks(axis: plt.Axes, rows: list[Row], colour: str, value=lambda row: row["ms"], x: str = "n") -> None:
    for contended, mark in ((False, "o"), (True, "x")):
        own = [row for row in rows if bool(row["contended"]) is contended]
        axis.plot([row[x] for row in own], [value(row) for row in own], mark, color=colour, markersize=4 if mark == "o" else 5)


def published_marks(axis: plt.Axes, rows: list[Row]) -> None:
    """Hollow diamonds, one label for each hardware."""
    points = {(row["n"], row["published"]["value"]): row["published"]["differs"].partition(", here")[0]
              for row in rows if row["published"] and row["published"]["unit"] == "ms"}
    for hardware in dict.fromkeys(points.values()):
        at = [point for point, name in points.items() if name == hardware]
        axis.plot(*zip(*at), "D", color="black", markerfacecolor="none", markersize=5,
                  label=f"published: {hardware}, batch 16, bfloat16")


def log2(axis: plt.Axes, values: set[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.minorticks_off()
    ticks = sorted(values)
    ticks = ticks if len(ticks) <= 7 else ticks[::2] + ([ticks[-1]] if len(ticks) % 2 == 0 else [])
    axis.set_xticks(ticks, [f"{n:,}" if n < 10_000 else f"{n // 1024}K" for n in ticks], fontsize=7)
    axis.grid(alpha=0.3, which="major")


def log(axis: plt.Axes) -> None:
    axis.set_yscale("log")
    plain(axis.yaxis)


def plain(axis) -> None:
    """Numbers as people write them on a logarithmic axis."""
    low, high = axis.get_view_interval()
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axis.set_minor_formatter(lambda value, _: f"{value:,.6g}" if high < 200 * low and f"{value:e}"[0] in "25" else "")
    axis.set_tick_params(which="both", labelsize=7)


def title(figure: plt.Figure, text: str, rows: list[Row], mark: str = "crosses") -> None:
    contended = f"; {mark}: contended" if any(row["contended"] for row in rows) else ""
    figure.suptitle(f"{text}{contended}\n{conditions(rows)}", fontsize=9.5)
