"""Plots of mixers and whole models: growth with the history, first token and generation, LAVO's protocols."""

from __future__ import annotations

import matplotlib.pyplot as plt

from tasks.benchmarks.drawing import Row, log, log2, marks, title
from tasks.benchmarks.sections import FIRST_TOKEN, GENERATION, INCREMENTAL, MODEL_FORWARD, PREFIXES, STEP
from tasks.reporting.plots import PALETTE

STYLES = ("-", "--", ":", "-.")       # beside the colours: equal lines stay visible, and colours may come round again


def growth(rows: list[Row]) -> plt.Figure | None:
    """State counted and measured, and the step's cost counted and measured, against history."""
    rows = [row for row in rows if row["measure"] == STEP]
    if not rows:
        return None
    kinds = list(dict.fromkeys(row["op"] for row in rows))
    figure, axes = plt.subplots(1, 3, figsize=(12.6, 4.0))
    for axis, key, scale, label in ((axes[0], "state_bytes", 1e3, "state (kB); line: counted, ring: measured"),
                                    (axes[1], "flops", 1e3, "FLOPs of a step (thousands), counted"),
                                    (axes[2], "ms", 1, "milliseconds a step, measured")):
        for place, kind in enumerate(kinds):
            own = sorted((row for row in rows if row["op"] == kind), key=lambda row: row["n"])
            colour, style = PALETTE[place % len(PALETTE)], STYLES[(place + place // len(PALETTE)) % 4]
            points = [(row["n"], row[key] / scale) for row in own if row[key]]
            axis.plot(*zip(*points), style, color=colour, linewidth=1.3, label=kind)
            if key == "state_bytes":
                axis.plot([row["n"] for row in own], [row["state_bytes_measured"] / scale for row in own], "o",
                          markersize=5, markerfacecolor="none", color=colour)
            if key == "ms":
                marks(axis, own, colour)
        log2(axis, {row["n"] for row in rows})
        log(axis)
        axis.set_xlabel("history (tokens)")
        axis.set_ylabel(label, fontsize=8)
    axes[2].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5), ncols=1 + len(kinds) // 17, frameon=False)
    title(figure, "Cost of one more token as the history grows, one layer", rows)
    return figure


def models(rows: list[Row]) -> plt.Figure | None:
    """Time to first token and throughput by preset."""
    rows = [row for row in rows if row["measure"] in (FIRST_TOKEN, GENERATION)]
    if not rows:
        return None
    names = list(dict.fromkeys(row["op"] for row in rows))
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 1.7 + 0.34 * len(names)), sharey=True)
    for axis, measure, key, label in ((axes[0], FIRST_TOKEN, "ms", "ms to the first token"),
                                      (axes[1], GENERATION, "tokens_per_second", "tokens/s, prompt included")):
        own = [row for row in rows if row["measure"] == measure]
        for row in own:
            place = len(names) - 1 - names.index(row["op"])
            axis.barh(place, row[key], color=PALETTE[0], height=0.7, hatch="///" if row["contended"] else None,
                      edgecolor="white", linewidth=0.4)
            axis.annotate(f"{row[key]:,.3g}" if row[key] < 1000 else f"{row[key]:,.0f}", (row[key], place), xytext=(3, 0),
                          textcoords="offset points", va="center", fontsize=7)
        axis.set_xlim(0, 1.18 * max((row[key] for row in own), default=1))
        axis.set_yticks(range(len(names)), reversed(names), fontsize=8)
        axis.set_xlabel(label, fontsize=8)
        axis.set_title(f"{measure}: {own[0]['n']:,} tokens" if own else measure, fontsize=9)
        axis.grid(axis="x", alpha=0.3)
    title(figure, "Whole models, random weights", rows, "hatched")
    return figure


def protocols(rows: list[Row]) -> plt.Figure | None:
    """LAVO's protocols: speed and memory of the forward pass, and the simulated generation, against vanilla."""
    rows = [row for row in rows if row["measure"] in (MODEL_FORWARD, PREFIXES, INCREMENTAL)]
    if not rows:
        return None
    systems = list(dict.fromkeys(row["op"] for row in rows))
    figure, axes = plt.subplots(1, 3, figsize=(13.2, 4.2))
    forward = [row for row in rows if row["measure"] == MODEL_FORWARD]
    for axis, key, scale, label in ((axes[0], "ratio_to_vanilla", 1, "times faster than vanilla, forward"),
                                    (axes[1], "peak_bytes", 1e6, "peak memory of a forward (MB)")):
        for place, system in enumerate(systems):
            own = sorted((row for row in forward if row["op"] == system and row[key]), key=lambda row: row["n"])
            axis.plot([row["n"] for row in own], [row[key] / scale for row in own], "-", linewidth=1.3,
                      color=PALETTE[place % len(PALETTE)], label=system)
            marks(axis, own, PALETTE[place % len(PALETTE)], lambda row, key=key, scale=scale: row[key] / scale)
            if key == "ratio_to_vanilla":
                for row in (row for row in own if row["published"]):
                    axis.plot(row["n"], row["published"]["value"], "D", markerfacecolor="none",
                              color=PALETTE[place % len(PALETTE)])
        log2(axis, {row["n"] for row in forward})
        log(axis)
        axis.set_xlabel("length (tokens)")
        axis.set_ylabel(label, fontsize=8)
    axes[0].axhline(1, color="black", linewidth=1)
    axes[0].legend(fontsize=7)
    simulated = [row for row in rows if row["measure"] != MODEL_FORWARD and row["ratio_to_vanilla"]]
    longest = max((row["n"] for row in simulated), default=0)
    for place, system in enumerate(systems):
        for side, (measure, hatch) in enumerate(((PREFIXES, None), (INCREMENTAL, "///"))):
            for row in simulated:
                if (row["op"], row["measure"], row["n"]) == (system, measure, longest):
                    axes[2].bar(place + (side - 0.5) * 0.38, row["tokens_per_second"], 0.36, hatch=hatch,
                                color=PALETTE[place % len(PALETTE)], edgecolor="white")
                    if row["contended"]:
                        axes[2].plot(place + (side - 0.5) * 0.38, row["tokens_per_second"] * 1.06, "x", color="black",
                                     markersize=4)
    log(axes[2])
    axes[2].set_xticks(range(len(systems)), [system.replace(" + ", "\n+ ") for system in systems], fontsize=7, rotation=30)
    axes[2].set_ylabel(f"tokens/s over {longest:,} tokens;\nplain: by prefixes, hatched: incremental", fontsize=8)
    axes[2].grid(axis="y", alpha=0.3)
    title(figure, f"LAVO's efficiency protocols ({rows[0]['note'].partition(';')[0]})", rows)
    return figure
