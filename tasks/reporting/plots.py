"""The figures of a report. One idea a figure, the same colour for an architecture everywhere, intervals always drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

# Okabe-Ito: told apart by colour-blind readers and in grey
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
ORDER_HATCH = ("", "///", "...", "xxx", "\\\\\\", "++")


def colours(architectures: list[str]) -> dict[str, str]:
    """One colour an architecture, by its place in the study."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(architectures)}


def recall_by_order(rows: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """Bars of recall by architecture and prompt order, 95 % intervals, the higher control as a black tick.

    `rows`: {panel, architecture, order, value, low, high, control} with `control` the higher of the two controls.
    """
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    figure, axes = plt.subplots(down, across, figsize=(4.2 * across, 3.1 * down), squeeze=False, sharey=True)
    colour = colours(architectures)
    for axis, panel in zip(axes.flat, panels):
        own = [row for row in rows if row["panel"] == panel]
        orders = list(dict.fromkeys(row["order"] for row in own))
        width = 0.8 / max(1, len(orders))
        for row in own:
            x = architectures.index(row["architecture"]) + (orders.index(row["order"]) - (len(orders) - 1) / 2) * width
            axis.bar(x, row["value"], width * 0.92, color=colour[row["architecture"]], edgecolor="white",
                     hatch=ORDER_HATCH[orders.index(row["order"]) % len(ORDER_HATCH)], linewidth=0.5)
            axis.errorbar(x, row["value"], yerr=[[max(0, row["value"] - row["low"])], [max(0, row["high"] - row["value"])]],
                          color="black", capsize=2, linewidth=1)
            if row.get("control") is not None:
                axis.plot([x - width * 0.42, x + width * 0.42], [row["control"]] * 2, color="black", linewidth=2)
        axis.set_xticks(range(len(architectures)), architectures, fontsize=8)
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
    figure.suptitle("Recall by architecture and prompt order; bars: 95 % interval; thick tick: the higher control", fontsize=10)
    _save(figure, path)


def loss_curves(curves: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """Training and validation loss against tokens, one panel a workload.

    `curves`: {workload, architecture, seed, tokens: [...], loss: [...], validation_tokens: [...], validation: [...]}.
    """
    workloads = list(dict.fromkeys(curve["workload"] for curve in curves))
    figure, axes = plt.subplots(2, len(workloads), figsize=(5 * len(workloads), 5.6), squeeze=False, sharex="col")
    colour = colours(architectures)
    for column, workload in enumerate(workloads):
        upper, lower = axes[0][column], axes[1][column]
        labelled: set[str] = set()
        for curve in (c for c in curves if c["workload"] == workload):
            name = curve["architecture"]
            label = None if name in labelled else name
            labelled.add(name)
            millions = [tokens / 1e6 for tokens in curve["tokens"]]
            upper.plot(millions, curve["loss"], color=colour[name], alpha=0.8, linewidth=1, label=label)
            if curve["validation"]:
                lower.plot([t / 1e6 for t in curve["validation_tokens"]], curve["validation"], color=colour[name],
                           marker="o", markersize=3, linewidth=1)
        upper.set_title(workload, fontsize=9)
        upper.set_ylabel("answer loss, training (nats)")
        lower.set_ylabel("validation, answers (bits per byte)" if any(
            c["validation"] for c in curves if c["workload"] == workload) else "no validation")
        lower.set_xlabel("tokens seen (millions)")
        upper.legend(fontsize=8)
        for axis in (upper, lower):
            axis.grid(alpha=0.3)
    _save(figure, path)


def recall_against_state(points: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """Recall (default order, natural column) against the bytes a document leaves behind.

    `points`: {panel, architecture, state_bytes, value, low, high}. A Transformer's state grows with the document; its
    point is drawn at the state after a document of the evaluation's length, as the label says.
    """
    figure, axis = plt.subplots(figsize=(7.6, 4.2))
    colour = colours(architectures)
    marks = dict(zip(dict.fromkeys(p["panel"] for p in points), "os^Dv<>p"))
    for point in points:
        shift = 1.06 ** (architectures.index(point["architecture"]) - (len(architectures) - 1) / 2)   # equal states stay readable
        axis.errorbar(point["state_bytes"] * shift, point["value"],
                      yerr=[[max(0, point["value"] - point["low"])], [max(0, point["high"] - point["value"])]],
                      color=colour[point["architecture"]], marker=marks.get(point["panel"], "o"), capsize=3, linestyle="none")
    for name in architectures:
        axis.plot([], [], "-", linewidth=4, color=colour[name], label=name)
    for panel, mark in marks.items():
        axis.plot([], [], mark, color="grey", label=panel)
    axis.set_xscale("log")
    axis.set_xlim(min(p["state_bytes"] for p in points) / 2, max(p["state_bytes"] for p in points) * 2)
    axis.xaxis.set_major_formatter(lambda octets, _: f"{octets / 1000:g}")
    axis.xaxis.set_minor_formatter(lambda octets, _: f"{octets / 1000:g}" if f"{octets:e}"[0] in "25" else "")
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("state after the document (kB, float32; points of one state are set apart a little)")
    axis.set_ylabel("recall, first order")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    _save(figure, path)


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
    _save(figure, path)


def _save(figure: plt.Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=140)
    plt.close(figure)
