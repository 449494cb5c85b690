"""Pieces of the benchmark's plots: conditions as a label, lines with marks, axes with numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from tasks.benchmarks import published

GREY = "#777777"
SHAPES = ("o", "s", "D", "p", "^", "v", "h", "*", "8", "d")      # of published figures
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
    """Hollow marks, a shape for each published system, labelled with its hardware, batch and dtype."""
    points: dict[tuple, set] = {}
    for claim in filter(None, map(published.claim_of, rows)):
        if claim["unit"] == "ms":
            points.setdefault((claim["system"], printed_under(claim)), set()).add((claim["n"], claim["value"]))
    for (system, under), at in points.items():
        axis.plot(*zip(*sorted(at)), hollow(system), color="black", markerfacecolor="none", markersize=5.5,
                  label=f"published: {system}\n{under}")


def printed_under(claim: dict[str, Any]) -> str:
    """Hardware of a published figure, and batch and dtype where its paper names them."""
    return ", ".join([claim["hardware"], *([f"batch {claim['batch']}"] if claim["batch"] else []),
                      *([claim["dtype"]] if claim["dtype"] else [])])


def hollow(system: str) -> str:
    """The shape of a published system's marks, the same in every plot."""
    return SHAPES[published.systems().index(system) % len(SHAPES)]


def name_ends(axis: plt.Axes, lines: list[tuple[str, float, float, str, Any]]) -> None:
    """Names beside the right ends of lines, each (name, x, y, colour, style), set apart where the lines are not; for an
    axis that has its limits."""
    axis.get_ylim()
    fractions = axis.transAxes.inverted().transform(axis.transData.transform([(x, y) for _, x, y, _, _ in lines]))[:, 1]
    order = sorted(range(len(lines)), key=lambda i: fractions[i])
    heights = apart([float(fractions[i]) for i in order], 10 / (axis.figure.get_figheight() * 0.7 * 72))
    for i, height in zip(order, heights):
        name, x, y, colour, style = lines[i]
        axis.annotate(name, (x, y), xytext=(1.12, height), textcoords="axes fraction", va="center", fontsize=7,
                      arrowprops={"arrowstyle": "-", "color": colour, "linestyle": style, "linewidth": 1.1, "shrinkA": 1,
                                  "relpos": (0, 0.5)})


def apart(heights: list[float], gap: float) -> list[float]:
    """Rising heights at least `gap` from each other: those too near become a stack around their mean."""
    stacks: list[list[float]] = []
    for height in heights:
        stacks.append([height])
        while len(stacks) > 1 and _edge(stacks[-1], gap, -1) - _edge(stacks[-2], gap, 1) < gap:
            stacks[-2:] = [stacks[-2] + stacks[-1]]
    return [_edge(stack, gap, -1) + i * gap for stack in stacks for i in range(len(stack))]


def _edge(stack: list[float], gap: float, side: int) -> float:
    """The lowest (-1) or the highest (1) place of a stack."""
    return sum(stack) / len(stack) + side * gap * (len(stack) - 1) / 2


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
