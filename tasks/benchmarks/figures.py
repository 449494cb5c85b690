"""The plots of a benchmark. Every figure names device, dtype and threads; a contended point is a cross; what a paper
published is a hollow mark that names its own hardware; a row without a time is not drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from tasks.benchmarks.published import ratio as published_ratio
from tasks.benchmarks.sections import (
    BACKWARD,
    DECODE,
    FIRST_TOKEN,
    FORWARD,
    GENERATION,
    INCREMENTAL,
    MODEL_FORWARD,
    PREFIXES,
    STEP,
)
from tasks.reporting.plots import PALETTE

GREY = "#777777"
FORMS = {"chunked": PALETTE[0], "triton": PALETTE[3], "naive": "#bbbbbb"}       # ours keep their colours in every panel
MOST_BARS = 30
Row = dict[str, Any]


def draw(rows: list[Row], folder: Path) -> list[str]:
    """Write the plots that the rows have data for; their names in reading order."""
    timed = [row for row in rows if row["ms"] is not None]
    made = []
    for name, figure in (("time", time_against_length), ("batch", time_against_batch), ("ratios", ratios),
                         ("decode", decode), ("growth", growth), ("models", models), ("protocols", protocols)):
        drawn = figure(timed)
        if drawn is not None:
            drawn.tight_layout()
            drawn.savefig(folder / f"{name}.png", dpi=140)
            plt.close(drawn)
            made.append(f"{name}.png")
    return made


def conditions(rows: Iterable[Row], batch: bool = True) -> str:
    """What all rows share, for a title: `AMD EPYC, float32, 1 thread, batch 1, 8 heads`."""
    rows = list(rows)
    parts = [_shared(rows, "device"), _shared(rows, "dtype")]
    threads = {row["threads"] for row in rows} - {None}
    parts += [f"{count} thread{'s' * (count != 1)}" for count in sorted(threads)]
    parts += [f"batch {_shared(rows, 'batch')}"] if batch else []
    heads = _shared(rows, "heads")
    return ", ".join([*parts, *([f"{heads} heads"] if heads else [])])


def _shared(rows: list[Row], key: str) -> str:
    return " and ".join(sorted({str(row[key]) for row in rows if row[key] is not None}))


# -------------------------------------------------------------------------------------------------- time against length
def time_against_length(rows: list[Row]) -> plt.Figure | None:
    """One panel an operation, one line an implementation, attention in grey in each."""
    rows = [row for row in rows if row["measure"] in (FORWARD, BACKWARD)]
    # of several batches at one length, the one of the length sweep
    batch = max({row["batch"] for row in rows}, key=lambda b: len({r["n"] for r in rows if r["batch"] == b}), default=None)
    rows = [row for row in rows if row["batch"] == batch]
    panels = list(dict.fromkeys((row["op"], row["measure"]) for row in rows
                                if row["op"] != "sdpa" and row["measure"] == FORWARD))
    if not panels or len({row["n"] for row in rows}) < 2:
        return None
    figure, axes = _grid(len(panels), 4.0, 3.5)
    for axis, (op, measure) in zip(axes, panels):
        own = [row for row in rows if (row["op"], row["measure"]) == (op, measure)]
        if any(row["ratio_to_sdpa"] for row in own):
            _lines(axis, [row for row in rows if row["op"] == "sdpa" and row["measure"] == measure],
                   lambda row: "attention (torch)", [GREY])
        peers = [row["backend"] for row in own if row["backend"] not in FORMS]
        others = [PALETTE[i] for i in (1, 2, 4, 5, 7)]
        places = {name: others[i % len(others)] for i, name in enumerate(dict.fromkeys(peers))}
        names = list(dict.fromkeys(row["backend"] for row in own))
        _lines(axis, own, lambda row: row["backend"], [(FORMS | places)[name] for name in names])
        _published(axis, own)
        axis.set_title(op, fontsize=9)
        axis.set_xlabel("length (tokens)", fontsize=8)
        _log2(axis, {row["n"] for row in rows if row["measure"] == measure})
        _log(axis)
        axis.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False)
    for axis in axes[::_across(len(panels))]:
        axis.set_ylabel("milliseconds, forward", fontsize=8)
    _title(figure, "Time against length, each point after its check", rows)
    return figure


def time_against_batch(rows: list[Row]) -> plt.Figure | None:
    """The batch sweep, where there is one."""
    rows = [row for row in rows if row["measure"] == FORWARD]
    n = max({row["n"] for row in rows}, key=lambda n: len({r["batch"] for r in rows if r["n"] == n}), default=None)
    rows = [row for row in rows if row["n"] == n]
    if len({row["batch"] for row in rows}) < 2:
        return None
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    _lines(axis, rows, lambda row: f"{row['op']} ({row['backend']})", PALETTE, x="batch")
    _log2(axis, {row["batch"] for row in rows})
    _log(axis)
    axis.set_xlabel(f"rows of {n:,} tokens")
    axis.set_ylabel("milliseconds, forward")
    axis.legend(fontsize=7)
    axis.set_title("Time against batch\n" + conditions(rows, batch=False), fontsize=9)
    return figure


# ---------------------------------------------------------------------------------------------------------------- ratios
def ratios(rows: list[Row]) -> plt.Figure | None:
    """Bars of how many times faster than attention and than the quickest peer, the threshold 1 marked."""
    bars = []
    for measure in (FORWARD, BACKWARD):
        for row in rows:
            if row["measure"] == measure and row["op"] != "sdpa" and row["backend"] != "naive":
                name = f"{row['op']} {row['n']:,}" + (f" x {row['batch']}" if row["batch"] > 1 else "") + (
                    f" ({row['backend']})" if row["backend"] not in ("chunked", "triton") else "")
                name += ", with gradients" if measure == BACKWARD else ""
                bars += [(name, row["ratio_to_sdpa"], PALETTE[0], row, "torch's attention")] if (
                    row["ratio_to_sdpa"] and _ours(row)) else []
                bars += [(name, row["ratio_to_peer"], PALETTE[1], row, row["peer"])] if row["ratio_to_peer"] else []
    if not bars:
        return None
    if len(bars) > MOST_BARS:      # only the longest row of each
        longest: dict[tuple, tuple] = {}
        for bar in sorted(bars, key=lambda bar: bar[3]["n"]):
            longest[bar[3]["measure"], bar[3]["op"], bar[3]["backend"], bar[3]["batch"], bar[2]] = bar
        bars = list(longest.values())
    bars.sort(key=lambda bar: (bar[3]["measure"], bar[3]["op"], bar[4] != "torch's attention", bar[3]["n"]))
    figure, axis = plt.subplots(figsize=(7.6, 1.6 + 0.26 * len(bars)))
    for place, (_, ratio, colour, row, against) in enumerate(reversed(bars)):
        axis.barh(place, ratio - 1, left=1, color=colour, height=0.7, hatch="///" if row["contended"] else None,
                  edgecolor="white", linewidth=0.4)
        claim = published_ratio(row) if against == "torch's attention" else None
        if claim:
            axis.plot(claim, place, "D", color="black", markerfacecolor="white", markersize=5)
        axis.annotate(f"{ratio:.2f}" * (ratio < 10) + f"{ratio:.1f}" * (ratio >= 10) + ("" if against == "torch's attention" else f"  {against}"), (max(ratio, 1), place),
                      xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
    axis.axvline(1, color="black", linewidth=1.2)
    axis.set_xscale("log")
    axis.set_xlim(min(0.5, 0.8 * min(bar[1] for bar in bars)),
                  5 * max(max(bar[1], published_ratio(bar[3]) or 0) for bar in bars))
    _plain(axis.xaxis)
    axis.set_yticks(range(len(bars)), [bar[0] for bar in reversed(bars)], fontsize=7)
    axis.set_ylim(-0.7, len(bars) - 0.3)
    axis.set_xlabel("times faster; right of the line at 1 is faster")
    axis.grid(axis="x", alpha=0.3)
    handles = [plt.Rectangle((0, 0), 1, 1, color=PALETTE[0]), plt.Rectangle((0, 0), 1, 1, color=PALETTE[1]),
               plt.Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=GREY, hatch="///")]
    handles.append(plt.Line2D([], [], marker="D", color="black", markerfacecolor="white", linestyle="none", markersize=5))
    labels = ["than torch's attention", "than the quickest peer of the operation (named)", "contended",
              "published: over FlashAttention-2, NVIDIA H100"]
    chosen = [0] + [1] * any(bar[2] == PALETTE[1] for bar in bars) + [2] * any(bar[3]["contended"] for bar in bars) + [
        3] * any(published_ratio(bar[3]) for bar in bars)
    axis.legend([handles[i] for i in dict.fromkeys(chosen)], [labels[i] for i in dict.fromkeys(chosen)], fontsize=7,
                loc="upper center", bbox_to_anchor=(0.35, -0.6 / (1.6 + 0.26 * len(bars)) - 0.02), ncols=2, frameon=False)
    axis.set_title("Ratios within this run\n" + conditions([bar[3] for bar in bars]), fontsize=9)
    return figure


def _ours(row: Row) -> bool:
    return "." not in row["backend"] and row["backend"] not in ("released quadratic", "naive")


# ------------------------------------------------------------------------------------------------------------ decoding
def decode(rows: list[Row]) -> plt.Figure | None:
    """Milliseconds a token against context."""
    rows = [row for row in rows if row["measure"] == DECODE]
    if len({row["n"] for row in rows}) < 2:
        return None
    figure, axis = plt.subplots(figsize=(6.6, 4.3))
    _lines(axis, [row for row in rows if row["op"] == "sdpa"], lambda row: "attention (torch) on its cache", [GREY])
    _lines(axis, [row for row in rows if row["op"] != "sdpa"], lambda row: row["op"], PALETTE)
    _log2(axis, {row["n"] for row in rows})
    _log(axis)
    axis.set_xlabel("context (tokens)")
    axis.set_ylabel("milliseconds a decode step, one layer's mixing")
    axis.legend(fontsize=7)
    axis.set_title("Decode step against context; states are synthetic\n" + conditions(rows), fontsize=9)
    return figure


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
            colour, style = PALETTE[place % len(PALETTE)], ("-", "--", ":", "-.")[place % 4]     # equal lines stay visible
            points = [(row["n"], row[key] / scale) for row in own if row[key]]
            axis.plot(*zip(*points), style, color=colour, linewidth=1.3, label=kind)
            if key == "state_bytes":
                axis.plot([row["n"] for row in own], [row["state_bytes_measured"] / scale for row in own], "o",
                          markersize=5, markerfacecolor="none", color=colour)
            if key == "ms":
                _marks(axis, own, colour)
        _log2(axis, {row["n"] for row in rows})
        _log(axis)
        axis.set_xlabel("history (tokens)")
        axis.set_ylabel(label, fontsize=8)
    axes[1].legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=min(7, len(kinds)), frameon=False)
    _title(figure, "Cost of one more token as the history grows, one layer", rows)
    return figure


# --------------------------------------------------------------------------------------------------------- whole models
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
    _title(figure, "Whole models, random weights", rows, "hatched")
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
            _marks(axis, own, PALETTE[place % len(PALETTE)], lambda row, key=key, scale=scale: row[key] / scale)
            if key == "ratio_to_vanilla":
                for row in (row for row in own if row["published"]):
                    axis.plot(row["n"], row["published"]["value"], "D", markerfacecolor="none",
                              color=PALETTE[place % len(PALETTE)])
        _log2(axis, {row["n"] for row in forward})
        _log(axis)
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
    _log(axes[2])
    axes[2].set_xticks(range(len(systems)), [system.replace(" + ", "\n+ ") for system in systems], fontsize=7, rotation=30)
    axes[2].set_ylabel(f"tokens/s over {longest:,} tokens;\nplain: by prefixes, hatched: incremental", fontsize=8)
    axes[2].grid(axis="y", alpha=0.3)
    _title(figure, f"LAVO's efficiency protocols ({rows[0]['note'].partition(';')[0]})", rows)
    return figure


# ------------------------------------------------------------------------------------------------------------- pieces
def _across(panels: int) -> int:
    return panels if panels <= 3 else 3 if panels % 3 == 0 or panels > 8 else min(4, math.ceil(panels / 2))


def _grid(panels: int, width: float, height: float) -> tuple[plt.Figure, list[plt.Axes]]:
    across = _across(panels)
    down = math.ceil(panels / across)
    figure, axes = plt.subplots(down, across, figsize=(max(5.6, width * across), height * down + 0.3), squeeze=False, sharey=True)
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:panels])


def _lines(axis: plt.Axes, rows: list[Row], label, colours, x: str = "n") -> None:
    """One line a label; a contended point is a cross."""
    for place, name in enumerate(dict.fromkeys(label(row) for row in rows)):
        own = sorted((row for row in rows if label(row) == name), key=lambda row: row[x])
        colour = colours[place % len(colours)]
        axis.plot([row[x] for row in own], [row["ms"] for row in own], "-" if _ours(own[0]) or own[0]["op"] == "sdpa" else "--",
                  color=colour, linewidth=1.3, label=name)
        _marks(axis, own, colour, x=x)
    axis.grid(alpha=0.3, which="major")


def _marks(axis: plt.Axes, rows: list[Row], colour: str, value=lambda row: row["ms"], x: str = "n") -> None:
    for contended, mark in ((False, "o"), (True, "x")):
        own = [row for row in rows if bool(row["contended"]) is contended]
        axis.plot([row[x] for row in own], [value(row) for row in own], mark, color=colour, markersize=4 if mark == "o" else 5)


def _published(axis: plt.Axes, rows: list[Row]) -> None:
    """Hollow diamonds, one label for each hardware."""
    points = {(row["n"], row["published"]["value"]): row["published"]["differs"].partition(", here")[0]
              for row in rows if row["published"] and row["published"]["unit"] == "ms"}
    for hardware in dict.fromkeys(points.values()):
        at = [point for point, name in points.items() if name == hardware]
        axis.plot(*zip(*at), "D", color="black", markerfacecolor="none", markersize=5,
                  label=f"published: {hardware}, batch 16, bfloat16")


def _log2(axis: plt.Axes, values: set[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.minorticks_off()
    ticks = sorted(values)
    ticks = ticks if len(ticks) <= 7 else ticks[::2] + ([ticks[-1]] if len(ticks) % 2 == 0 else [])
    axis.set_xticks(ticks, [f"{n:,}" if n < 10_000 else f"{n // 1024}K" for n in ticks], fontsize=7)
    axis.grid(alpha=0.3, which="major")


def _log(axis: plt.Axes) -> None:
    axis.set_yscale("log")
    _plain(axis.yaxis)


def _plain(axis) -> None:
    """Numbers as people write them on a logarithmic axis."""
    low, high = axis.get_view_interval()
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axis.set_minor_formatter(lambda value, _: f"{value:,.6g}" if high < 200 * low and f"{value:e}"[0] in "25" else "")
    axis.set_tick_params(which="both", labelsize=7)


def _title(figure: plt.Figure, text: str, rows: list[Row], mark: str = "crosses") -> None:
    contended = f"; {mark}: contended" if any(row["contended"] for row in rows) else ""
    figure.suptitle(f"{text}{contended}\n{conditions(rows)}", fontsize=9.5)
