"""Figures of perplexity: by training frequency, by distance of the repeat (JRT Figure 3) and by length (LAVO Figure 4).

Each takes the rows of the stages' JSON files with a `model` in each, the models in their order, and a path. A model has
the colour and mark that it has in every other figure; intervals are always drawn; a bucket that nothing fell into is a
gap, never a point, and left out at either end. From 1,000 on a bucket's upper end is the next one's lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from tasks.reporting.plots import MANY, Style, save, styles

Row = dict[str, Any]
KINDS = {"ar": "recall (AR) tokens", "other": "other tokens"}
PROTOCOLS = {"blocks": "whole blocks of a length, each read from nothing", "positions": "books read once, loss by position"}
SHIFT = 0.06            # between the models' points of one bucket, as a share of its width
TOGETHER = 34           # characters of all bucket names that stand side by side
WINDOWS = ("-", "--", ":", "-.")


def by_frequency(rows: Sequence[Row], models: Sequence[str], path: Path) -> None:
    """Perplexity against the bigram's training count, a panel for recall and one for other tokens.

    `rows`: those of perplexity.json, each with `model`; slices other than `frequency` are passed over.
    """
    own = [row for row in rows if row["slice"] == "frequency"]
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.9), squeeze=False)
    for axis, kind in zip(axes[0], KINDS):
        part = [row for row in own if row["kind"] == kind]
        _buckets(axis, part, models)
        condition = next((row["condition"] for row in part if row["condition"]), "")
        axis.set_title(KINDS[kind] + (f", {condition}" if condition else ""), fontsize=9)
        axis.set_xlabel("count of the bigram in training")
    _finish(figure, axes[0], models, path, "Perplexity by training frequency; bars: 95 % interval over sequences")


def by_distance(rows: Sequence[Row], models: Sequence[str], path: Path) -> None:
    """Perplexity of recall tokens against the distance of the repeat; each model's other tokens as a dashed line.

    `rows`: those of perplexity.json, each with `model`; slices other than `distance` are passed over.
    """
    own = [row for row in rows if row["slice"] == "distance"]
    figure, axis = plt.subplots(figsize=(6.4, 4.1))
    _buckets(axis, [row for row in own if row["kind"] == "ar"], models)
    look = styles(list(models))
    for row in own:
        if row["kind"] == "other" and row["perplexity"] is not None:
            axis.axhline(row["perplexity"], color=look[row["model"]].colour, linestyle="--", linewidth=1)
            if row["low"] is not None:
                axis.axhspan(row["low"], row["high"], color=look[row["model"]].colour, alpha=0.10, linewidth=0)
    axis.set_xlabel("tokens back to the same bigram")
    condition = next((row["condition"] for row in own if row["condition"]), "")
    axis.set_title(f"{condition}; lines: recall (AR), dashed: other; 95 % intervals over sequences", fontsize=8)
    _finish(figure, [axis], models, path, "Perplexity by distance of the repeat")


def by_length(rows: Sequence[Row], models: Sequence[str], path: Path, trained_at: int | None = None) -> None:
    """Perplexity against length, a panel a protocol; a window set at evaluation is a line of its own.

    `rows`: those of extrapolation.json, each with `model`. What could not be read is named below the axes.
    trained_at  marks the length that the models were trained at [tokens]
    """
    protocols = list(dict.fromkeys(row["protocol"] for row in rows))
    windows = list(dict.fromkeys(row["window"] for row in rows))
    figure, axes = plt.subplots(1, len(protocols), figsize=(5.2 * len(protocols) + 0.6, 4.3), squeeze=False)
    look = styles(list(models))
    for axis, protocol in zip(axes[0], protocols):
        for model in models:
            for number, window in enumerate(windows):
                line = [row for row in rows if (row["protocol"], row["model"], row["window"]) == (protocol, model, window)
                        and row["perplexity"] is not None]
                if line:
                    _line(axis, [row["length"] for row in line], line, look[model], WINDOWS[number % len(WINDOWS)])
        lengths = sorted({row["length"] for row in rows if row["protocol"] == protocol})
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [_short(length) for length in lengths], fontsize=8)
        axis.minorticks_off()
        axis.set_xlabel("length (tokens)" if protocol == "blocks" else "position, up to (tokens)")
        axis.set_title(PROTOCOLS.get(protocol, protocol), fontsize=9)
        if trained_at is not None:
            axis.axvline(trained_at, color="black", linewidth=0.8, linestyle=":")
    more = [(plt.Line2D([], [], color="grey", linestyle=WINDOWS[number % len(WINDOWS)]),
             "windows as trained" if window is None else f"window {window}")
            for number, window in enumerate(windows)] if len(windows) > 1 else []
    if trained_at is not None:
        more.append((plt.Line2D([], [], color="black", linestyle=":", linewidth=0.8), f"trained at {_short(trained_at)}"))
    _finish(figure, axes[0], models, path, "Perplexity by length; bars: 95 % interval", more, _cannot(rows))


# ---------------------------------------------------------------------------------------------------------------- parts
def _buckets(axis: Any, rows: Sequence[Row], models: Sequence[str]) -> None:
    """One line a model over buckets of equal width, in the order of their lower ends."""
    edges = _within(rows)
    look = styles(list(models))
    for number, model in enumerate(models):
        own = {row["from"]: row for row in rows if row["model"] == model}
        shift = (number - (len(models) - 1) / 2) * min(SHIFT, 0.6 / max(1, len(models)))
        x = [place + shift for place, (low, _) in enumerate(edges) if low in own]
        _line(axis, x, [own[low] for low, _ in edges if low in own], look[model], look[model].line)
    names = [_label(low, high) for low, high in edges]
    axis.set_xticks(range(len(edges)), names, fontsize=8, **(
        {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if sum(map(len, names)) > TOGETHER else {}))
    axis.set_xlim(-0.5, max(0, len(edges) - 1) + 0.5)
    if not any(row["perplexity"] is not None for row in rows):
        axis.text(0.5, 0.5, "no targets in this slice", transform=axis.transAxes, ha="center", color="grey")


def _within(rows: Sequence[Row]) -> list[tuple[int, int | None]]:
    """Buckets in the order of their lower ends, without the empty ones at either end."""
    edges = sorted({(row["from"], row["to"]) for row in rows}, key=lambda edge: edge[0])
    filled = [place for place, (low, _) in enumerate(edges)
              if any(row["from"] == low and row["perplexity"] is not None for row in rows)]
    return edges[filled[0]:filled[-1] + 1] if filled else edges


def _line(axis: Any, x: Sequence[float], rows: Sequence[Row], look: Style, line: str) -> None:
    """Points joined where neighbours both exist, with their intervals."""
    y = [float("nan") if row["perplexity"] is None else row["perplexity"] for row in rows]
    below = [0 if row["low"] is None else max(0, row["perplexity"] - row["low"]) for row in rows]
    above = [0 if row["high"] is None else max(0, row["high"] - row["perplexity"]) for row in rows]
    axis.errorbar(x, y, yerr=[below, above], color=look.colour, marker=look.mark, markersize=4, linestyle=line,
                  linewidth=1.3, capsize=2, elinewidth=1)


def _label(low: int, high: int | None) -> str:
    if high is None:
        return f"≥{_short(low)}"
    return _short(low) if high == low + 1 else f"{_short(low)}–{_short(high - 1 if high < 1000 else high)}"


def _short(number: int) -> str:
    """512, 2k, 128k in powers of two; 10k, 1M in powers of ten."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k"), (10**6, "M"), (10**3, "k")):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _cannot(rows: Sequence[Row]) -> str:
    """One line per model and reason, with the first length that it holds for."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["cannot"]:
            key = (row["model"] + (f", window {row['window']}" if row["window"] is not None else ""), row["cannot"])
            found[key] = min(found.get(key, row["length"]), row["length"])
    return "\n".join(f"{model}: not from {_short(length)} on ({reason})" for (model, reason), length in found.items())


def _finish(figure: Any, axes: Sequence[Any], models: Sequence[str], path: Path, title: str,
            more: Sequence[tuple[Any, str]] = (), below: str = "") -> None:
    """Scales, grid, one legend beside the axes, and what is said below them."""
    look = styles(list(models))
    for axis in axes:
        if any(y == y for line in axis.lines for y in line.get_ydata()):
            axis.set_yscale("log")
            _plain(axis)
        axis.grid(alpha=0.3, which="both", axis="y")
        axis.grid(alpha=0.2, axis="x")
    axes[0].set_ylabel("perplexity")
    handles = [plt.Line2D([], [], color=look[model].colour, marker=look[model].mark, markersize=4,
                          linestyle=look[model].line if len(models) > MANY else "-") for model in models]
    lines = [line for line in below.splitlines() if line]
    figure.suptitle(title, fontsize=10)
    figure.legend([*handles, *(handle for handle, _ in more)], [*models, *(name for _, name in more)], fontsize=8,
                  loc="center right", handlelength=2.4)
    if lines:
        figure.text(0.01, 0.01, "\n".join(lines), fontsize=7, va="bottom")
    longest = max(len(name) for name in [*models, *(name for _, name in more)] or [""])
    room = (0.75 + 0.07 * longest) / figure.get_figwidth()
    figure.tight_layout(rect=(0, 0.035 * len(lines), 1 - room, 1))
    save(figure, path, tight=False)


def _plain(axis: Any) -> None:
    """Numbers a person reads on a log axis, at least a few of them: 120, 140, 160, or 20, 50, 100 over a wider range."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_ylim()
    steps = (1, 1.5, 2, 3, 5, 7) if high < 30 * low else (1, 2, 5)
    axis.yaxis.set_major_locator(
        MaxNLocator(nbins=7) if 0 < low and high < 3 * low else LogLocator(base=10, subs=steps, numticks=40))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(NullLocator())
