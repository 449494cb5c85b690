"""Plots of mixers and whole models: growth with the history, first token and generation, LAVO's protocols."""

from __future__ import annotations

import textwrap

import matplotlib.pyplot as plt

from tasks.benchmarks import published
from tasks.benchmarks.drawing import GREY, SHAPES, Row, log, log2, marks, name_ends, title
from tasks.benchmarks.notes import common
from tasks.benchmarks.sections import FIRST_TOKEN, GENERATION, INCREMENTAL, MODEL_FORWARD, PREFIXES, STEP
from tasks.reporting.plots import PALETTE

COLOURS = tuple(colour for colour in PALETTE if colour != "#F0E442")       # yellow is lost on white
# beside the colours, and as many as have no common factor with them: every line is told from 34 others
STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))


def growth(rows: list[Row]) -> plt.Figure | None:
    """State counted and measured, and the step's cost counted and measured, against history."""
    rows = [row for row in rows if row["measure"] == STEP]
    if not rows:
        return None
    kinds = list(dict.fromkeys(row["op"] for row in rows))
    figure, axes = plt.subplots(1, 3, figsize=(14.5, max(4.4, 2.0 + 0.22 * len(kinds))))
    for axis, key, scale, label in ((axes[0], "state_bytes", 1e3, "state (kB); line: counted, ring: measured"),
                                    (axes[1], "flops", 1e3, "FLOPs of a step (thousands), counted"),
                                    (axes[2], "ms", 1, "milliseconds a step, measured")):
        ends = []
        for place, kind in enumerate(kinds):
            own = sorted((row for row in rows if row["op"] == kind), key=lambda row: row["n"])
            colour, style = COLOURS[place % len(COLOURS)], STYLES[place % len(STYLES)]
            points = [(row["n"], row[key] / scale) for row in own if row[key]]
            if not points:
                continue
            axis.plot(*zip(*points), linestyle=style, color=colour, linewidth=1.4, label=kind)
            ends.append((kind, *points[-1], colour, style))
            if key == "state_bytes":
                axis.plot([row["n"] for row in own], [row["state_bytes_measured"] / scale for row in own], "o",
                          markersize=5, markerfacecolor="none", color=colour)
            if key == "ms":
                marks(axis, own, colour)
        log2(axis, {row["n"] for row in rows})
        log(axis)
        axis.set_xlabel("history (tokens)")
        axis.set_ylabel(label, fontsize=8)
        if ends:
            name_ends(axis, ends)
    title(figure, "Cost of one more token as the history grows, one layer", rows)
    return figure


def models(rows: list[Row]) -> plt.Figure | None:
    """Time to first token and throughput by preset."""
    rows = [row for row in rows if row["measure"] in (FIRST_TOKEN, GENERATION)]
    if not rows:
        return None
    names = list(dict.fromkeys(row["op"] for row in rows))
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 1.7 + 0.34 * len(names)), sharey=True)
    for axis, measure, key, label in (
            (axes[0], FIRST_TOKEN, "ms", "ms to the first token"),
            (axes[1], GENERATION, "tokens_per_second", "new tokens a second, the prompt's prefill included in the time")):
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
        axis.set_title(_asked(own) if own else measure, fontsize=9)
        axis.grid(axis="x", alpha=0.3)
    title(figure, "Whole models, random weights", rows, "hatched")
    return figure


def _asked(rows: list[Row]) -> str:
    """`time to first token of a prompt of 512`, `generation: 64 tokens after a prompt of 512`."""
    row = rows[0]
    if row["measure"] == FIRST_TOKEN:
        return f"{FIRST_TOKEN} after a prompt of {row['n']:,}"
    return f"{GENERATION}: {(row['note'] or '').partition(',')[0] or format(row['n'], ',') + ' tokens, the prompt among them'}"


# ---------------------------------------------------------------------------------------------------- LAVO's protocols
def protocols(rows: list[Row]) -> plt.Figure | None:
    """Speed and memory of the forward pass, and the simulated generations, against vanilla."""
    rows = [row for row in rows if row["measure"] in (MODEL_FORWARD, PREFIXES, INCREMENTAL)]
    if not rows:
        return None
    systems = list(dict.fromkeys(row["op"] for row in rows))
    figure, axes = plt.subplots(1, 3, figsize=(15.5, 4.8))
    forward = [row for row in rows if row["measure"] == MODEL_FORWARD]
    _against_length(axes[0], forward, systems, "ratio_to_vanilla", 1, published.claim_of)
    axes[0].set_ylabel("times faster than vanilla, forward", fontsize=8)
    axes[0].axhline(1, color="black", linewidth=0.8)
    _against_length(axes[1], forward, systems, "peak_bytes", 1e6, published.memory)
    axes[1].set_ylabel("peak memory of a forward (MB)", fontsize=8)
    simulated = [row for row in rows if row["measure"] != MODEL_FORWARD and row["ratio_to_vanilla"]]
    _simulated(axes[2], simulated, systems)
    claims = [claim for row in rows for claim in (published.claim_of(row), published.memory(row)) if claim]
    handles = [plt.Line2D([], [], marker="D", color="grey", markerfacecolor="none", linestyle="none", label=
                          f"hollow, in its system's colour: published, {hardware}")
               for hardware in dict.fromkeys(claim["hardware"] for claim in claims)]
    if handles:
        figure.legend(handles=handles, fontsize=8, loc="lower left", frameon=False)
    sizes = rows[0]["note"].partition(";")[0] if rows[0]["note"] else "models of one mixer"
    title(figure, f"LAVO's efficiency protocols ({sizes})", rows)
    return figure


def _look(systems: list[str], system: str) -> tuple[str, str]:
    """Colour of a system, and the shape of what was published of it."""
    place = systems.index(system)
    return (*COLOURS, GREY)[place % (len(COLOURS) + 1)], SHAPES[place % len(SHAPES)]


def _against_length(axis: plt.Axes, rows: list[Row], systems: list[str], key: str, scale: float, claimed) -> None:
    """A line a system, named at its end, with the published marks that `claimed(row)` gives."""
    ends = []
    for system in systems:
        own = sorted((row for row in rows if row["op"] == system and row[key]), key=lambda row: row["n"])
        if not own:
            continue
        colour, shape = _look(systems, system)
        axis.plot([row["n"] for row in own], [row[key] / scale for row in own], "-", linewidth=1.3, color=colour)
        marks(axis, own, colour, lambda row: row[key] / scale)
        points = [(row["n"], claim["value"]) for row in own if (claim := claimed(row))]
        if points:
            axis.plot(*zip(*points), shape, markerfacecolor="none", color=colour, markersize=7)
        ends.append((system, own[-1]["n"], own[-1][key] / scale, colour, "-"))
    log2(axis, {row["n"] for row in rows})
    log(axis)
    axis.set_xlabel("length (tokens)", fontsize=8)
    if ends:
        name_ends(axis, ends)


def _simulated(axis: plt.Axes, rows: list[Row], systems: list[str]) -> None:
    """Points a system: how many times faster than vanilla, by prefixes and by steps, at the longest length."""
    longest = max((row["n"] for row in rows), default=0)
    rows = [row for row in rows if row["n"] == longest]
    for row in rows:
        colour, shape = _look(systems, row["op"])
        left = row["measure"] == PREFIXES
        at = systems.index(row["op"]) + (-0.15 if left else 0.15)
        axis.plot(at, row["ratio_to_vanilla"], "o" if left else "^", color=colour, markersize=8)
        if row["contended"]:
            axis.plot(at, row["ratio_to_vanilla"], "x", color="white", markersize=4)
        if claim := published.claim_of(row):
            axis.plot(at, claim["value"], shape, color=colour, markerfacecolor="none", markersize=9)
    axis.axhline(1, color="black", linewidth=0.8)
    log(axis)
    axis.set_xticks(range(len(systems)), [system.replace(" + ", "\n+ ") for system in systems], fontsize=7, rotation=35,
                    ha="right", rotation_mode="anchor")
    axis.set_xlim(-0.6, len(systems) - 0.4)
    axis.set_ylabel(f"times faster than vanilla, {longest:,} tokens generated\ncircle: by prefixes, triangle: by steps of "
                    "a decoder", fontsize=8)
    how = common([(row["note"] or "").split("; ") for row in rows])[1:]      # after the model's size
    axis.set_title(textwrap.fill(f"estimated: {'; '.join(how)}" if how else "estimated from some lengths", 70), fontsize=8)
    axis.grid(axis="y", alpha=0.3)
