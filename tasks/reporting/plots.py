"""The figures of a report. One idea a figure, the same colour for an architecture everywhere, intervals always drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

# Okabe-Ito: told apart by colour-blind readers and in grey
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
ORDER_HATCH = ("", "///", "...", "xxx", "\\\\\\", "++")


MARKS = ("o", "s", "^", "D", "v", "P")
LINES = ("-", "--", ":", "-.")
MANY = len(PALETTE)                    # more architectures than colours: names, marks and line styles have to help


@dataclass(frozen=True)
class Style:
    """How an architecture is drawn everywhere: a colour, and a mark and a line that change when colours run out."""

    colour: str
    mark: str
    line: str


def styles(architectures: list[str]) -> dict[str, Style]:
    """One style an architecture, by its place in the study."""
    return {name: Style(PALETTE[i % MANY], MARKS[i // MANY % len(MARKS)], LINES[i // MANY % len(LINES)])
            for i, name in enumerate(architectures)}


def recall_by_order(rows: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """Bars of recall by architecture and prompt order, 95 % intervals, the higher control as a black tick.

    `rows`: {panel, architecture, order, value, low, high, control} with `control` the higher of the two controls.
    """
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    many = len(architectures) > MANY
    across = min(2 if many else 3, len(panels))
    down = math.ceil(len(panels) / across)
    size = (0.32 * len(architectures) + 1.0, 3.6) if many else (4.2, 3.1)
    figure, axes = plt.subplots(down, across, figsize=(size[0] * across, size[1] * down), squeeze=False, sharey=True)
    style = styles(architectures)
    for axis, panel in zip(axes.flat, panels):
        own = [row for row in rows if row["panel"] == panel]
        orders = list(dict.fromkeys(row["order"] for row in own))
        width = 0.8 / max(1, len(orders))
        for row in own:
            x = architectures.index(row["architecture"]) + (orders.index(row["order"]) - (len(orders) - 1) / 2) * width
            axis.bar(x, row["value"], width * 0.92, color=style[row["architecture"]].colour, edgecolor="white",
                     hatch=ORDER_HATCH[orders.index(row["order"]) % len(ORDER_HATCH)], linewidth=0.5)
            axis.errorbar(x, row["value"], yerr=[[max(0, row["value"] - row["low"])], [max(0, row["high"] - row["value"])]],
                          color="black", capsize=2, linewidth=1)
            if row.get("control") is not None:
                axis.plot([x - width * 0.42, x + width * 0.42], [row["control"]] * 2, color="black", linewidth=2)
        axis.set_xticks(range(len(architectures)), architectures, fontsize=8, **(
            {"rotation": 55, "ha": "right", "rotation_mode": "anchor"} if many else {}))
        axis.set_ylim(0, 1.02)
        axis.grid(axis="y", alpha=0.3)
        axis.set_title(panel, fontsize=9)
        handles = [plt.Rectangle((0, 0), 1, 1, facecolor="lightgrey", edgecolor="black", linewidth=0.5,
                                 hatch=ORDER_HATCH[i % len(ORDER_HATCH)]) for i in range(len(orders))]
        axis.legend(handles, orders, fontsize=6, loc="upper right", framealpha=0.85)
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    for line in axes:
        line[0].set_ylabel("recall (share right)")
    title = "Recall by architecture and prompt order; bars: 95 % interval; thick tick: the higher control"
    figure.suptitle(title if len(panels) > 1 else title.replace("; bars", ";\nbars"), fontsize=10 if len(panels) > 1 else 8)
    save(figure, path)


def loss_curves(curves: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """Training and validation loss against tokens, one panel a workload.

    `curves`: {workload, architecture, seed, tokens: [...], loss: [...], validation_tokens: [...], validation: [...]}, and
    `answers`: False where the loss is that of all text.
    """
    workloads = list(dict.fromkeys(curve["workload"] for curve in curves))
    many = len(architectures) > MANY
    figure, axes = plt.subplots(2, len(workloads), figsize=((6.6 if many else 5) * len(workloads), 7.6 if many else 5.6),
                                squeeze=False, sharex="col")
    style = styles(architectures)
    for column, workload in enumerate(workloads):
        upper, lower = axes[0][column], axes[1][column]
        labelled: set[str] = set()
        for curve in (c for c in curves if c["workload"] == workload):
            name = curve["architecture"]
            label = None if name in labelled else name
            labelled.add(name)
            millions = [tokens / 1e6 for tokens in curve["tokens"]]
            upper.plot(millions, curve["loss"], style[name].line, color=style[name].colour, alpha=0.8, linewidth=1, label=label,
                       marker=style[name].mark if len(millions) == 1 else None, markersize=4)
            if curve["validation"]:
                lower.plot([t / 1e6 for t in curve["validation_tokens"]], curve["validation"], style[name].line,
                           color=style[name].colour, marker=style[name].mark, markersize=3, linewidth=1)
        upper.set_title(workload, fontsize=9)
        what = ", answers" if any(c.get("answers", True) for c in curves if c["workload"] == workload) else ""
        upper.set_ylabel(f"training loss{what} (nats)")
        lower.set_ylabel(f"validation{what} (bits per byte)" if any(
            c["validation"] for c in curves if c["workload"] == workload) else "no validation")
        lower.set_xlabel("tokens seen (millions)")
        if not many:
            upper.legend(fontsize=8)
        for axis in (upper, lower):
            axis.grid(alpha=0.3)
    if many:
        figure.legend([plt.Line2D([], [], color=style[name].colour, linestyle=style[name].line, marker=style[name].mark,
                                  markersize=3) for name in architectures], architectures, fontsize=7,
                      loc="center right", handlelength=3)
    save(figure, path, right=1 - 1.5 / figure.get_figwidth() if many else 1.0)


def latency(rows: list[dict[str, Any]], path: Path) -> None:
    """Milliseconds against length, one line an operation; rows that failed their check are not drawn."""
    figure, axis = plt.subplots(figsize=(5.6, 3.8))
    timed = [row for row in rows if row.get("ms") is not None and row.get("measure", "forward") == "forward"]
    for i, key in enumerate(dict.fromkeys((row["op"], row["backend"]) for row in timed)):
        own = sorted((row["n"], row["ms"]) for row in timed if (row["op"], row["backend"]) == key)
        axis.plot(*zip(*own), marker="o", markersize=3, color=PALETTE[i % len(PALETTE)], label=f"{key[0]} ({key[1]})")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("length (tokens)")
    axis.set_ylabel("milliseconds, forward, one thread")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=7)
    axis.set_title("CPU latency against length; every point passed its correctness check", fontsize=9)
    save(figure, path)


def save(figure: plt.Figure, path: Path, tight: bool = True, right: float = 1.0) -> None:
    """Write the figure and let go of it. right: share of the width that the axes may take."""
    if tight:
        figure.tight_layout(rect=(0, 0, right, 1))
    figure.savefig(path, dpi=140)
    plt.close(figure)
