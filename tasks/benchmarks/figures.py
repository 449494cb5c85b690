"""The plots of a benchmark. Every figure names device, dtype and threads; a contended point is a cross; what a paper
published is a hollow mark, a shape a system, that names its own hardware; a row without a time is not drawn."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from tasks.benchmarks import published
from tasks.benchmarks.drawing import (
    GREY,
    Row,
    conditions,
    grid,
    hollow,
    is_ours,
    lines,
    log,
    log2,
    main_batch,
    panels_across,
    plain,
    printed_under,
    published_marks,
    title,
)
from tasks.benchmarks.model_figures import growth, models, protocols
from tasks.benchmarks.sections import BACKWARD, DECODE, FORWARD
from tasks.reporting.plots import PALETTE

FORMS = {"chunked": PALETTE[0], "triton": PALETTE[3], "naive": "#bbbbbb"}       # ours keep their colours in every panel
MOST_BARS = 30
ATTENTION = "torch's attention"
BESIDE = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5), "frameon": False}       # a legend right of its axis


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


# -------------------------------------------------------------------------------------------------- time against length
def time_against_length(rows: list[Row]) -> plt.Figure | None:
    """One panel an operation, one line an implementation, attention in grey in each."""
    rows = main_batch([row for row in rows if row["measure"] in (FORWARD, BACKWARD)])
    panels = list(dict.fromkeys((row["op"], row["measure"]) for row in rows
                                if row["op"] != "sdpa" and row["measure"] == FORWARD))
    if not panels or len({row["n"] for row in rows}) < 2:
        return None
    figure, axes = grid(len(panels), 4.0, 3.5)
    for axis, (op, measure) in zip(axes, panels):
        own = [row for row in rows if (row["op"], row["measure"]) == (op, measure)]
        if any(row["ratio_to_sdpa"] for row in own):
            lines(axis, [row for row in rows if row["op"] == "sdpa" and row["measure"] == measure],
                   lambda row: "attention (torch)", [GREY])
        peers = [row["backend"] for row in own if row["backend"] not in FORMS]
        others = [PALETTE[i] for i in (1, 2, 4, 5, 7)]
        places = {name: others[i % len(others)] for i, name in enumerate(dict.fromkeys(peers))}
        names = list(dict.fromkeys(row["backend"] for row in own))
        lines(axis, own, lambda row: row["backend"], [(FORMS | places)[name] for name in names])
        published_marks(axis, own)
        axis.set_title(op, fontsize=9)
        axis.set_xlabel("length (tokens)", fontsize=8)
        log2(axis, {row["n"] for row in rows if row["measure"] == measure})
        log(axis)
        axis.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    for axis in axes[::panels_across(len(panels))]:
        axis.set_ylabel("milliseconds, forward", fontsize=8)
    title(figure, "Time against length, each point after its check", rows)
    return figure


def time_against_batch(rows: list[Row]) -> plt.Figure | None:
    """The batch sweep, where there is one."""
    rows = [row for row in rows if row["measure"] == FORWARD]
    n = max({row["n"] for row in rows}, key=lambda n: len({r["batch"] for r in rows if r["n"] == n}), default=None)
    rows = [row for row in rows if row["n"] == n]
    if len({row["batch"] for row in rows}) < 2:
        return None
    figure, axis = plt.subplots(figsize=(7.8, 4.2))
    lines(axis, rows, lambda row: f"{row['op']} ({row['backend']})", PALETTE, x="batch")
    log2(axis, {row["batch"] for row in rows})
    log(axis)
    axis.set_xlabel(f"rows of {n:,} tokens")
    axis.set_ylabel("milliseconds, forward")
    axis.legend(fontsize=7, **BESIDE)
    axis.set_title("Time against batch\n" + conditions(rows, batch=False), fontsize=9)
    return figure


# ---------------------------------------------------------------------------------------------------------------- ratios
def ratios(rows: list[Row]) -> plt.Figure | None:
    """Points that say how many times faster than attention and than the quickest peer, the threshold 1 marked."""
    bars = []
    for row in quickest(main_batch([row for row in rows if row["measure"] in (FORWARD, BACKWARD)])):
        name = f"{row['op']} {row['n']:,}" + (f" ({row['backend']})" if row["backend"] != "chunked" else "")
        name += ", with gradients" if row["measure"] == BACKWARD else ""
        bars += [(name, row["ratio_to_sdpa"], PALETTE[0], row, ATTENTION)] if row["ratio_to_sdpa"] else []
        bars += [(name, row["ratio_to_peer"], PALETTE[1], row, row["peer"])] if row["ratio_to_peer"] else []
    if not bars:
        return None
    if len(bars) > MOST_BARS:      # only the longest row of each
        longest: dict[tuple, tuple] = {}
        for bar in sorted(bars, key=lambda bar: bar[3]["n"]):
            longest[bar[3]["measure"], bar[3]["op"], bar[2]] = bar
        bars = list(longest.values())
    bars.sort(key=lambda bar: (bar[3]["measure"], bar[3]["op"], bar[4] != ATTENTION, bar[3]["n"]))
    figure, axis = plt.subplots(figsize=(7.6, 1.6 + 0.26 * len(bars)))
    labels: dict[str, plt.Line2D] = {}
    for place, (_, ratio, colour, row, against) in enumerate(reversed(bars)):
        axis.plot((1, ratio), (place, place), "-", color=colour, linewidth=1, alpha=0.5)
        drawn = axis.plot(ratio, place, "x" if row["contended"] else "o", color=colour, markersize=6, linestyle="none")[0]
        labels.setdefault(("than torch's attention" if against == ATTENTION else "than the quickest peer of the operation "
                           "(named)") + (", contended" if row["contended"] else ""), drawn)
        claim = published.ratio(row) if against == ATTENTION else None
        if claim:
            known = published.claim_of(row)
            mark = axis.plot(claim, place, hollow(known["system"]), color="black", markerfacecolor="none", markersize=6,
                             linestyle="none")[0]
            labels.setdefault(f"published: {known['system']},\nover FlashAttention-2, {printed_under(known)}", mark)
        axis.annotate((f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}") + ("" if against == ATTENTION else f"  {against}"),
                      (max(ratio, 1, claim or 0), place), xytext=(7, 0), textcoords="offset points", va="center", fontsize=7)
    axis.axvline(1, color="black", linewidth=1.2)
    axis.set_xscale("log")
    axis.set_xlim(min(0.5, 0.8 * min(bar[1] for bar in bars)),
                  5 * max(max(bar[1], published.ratio(bar[3]) or 0) for bar in bars))
    plain(axis.xaxis)
    axis.set_yticks(range(len(bars)), [bar[0] for bar in reversed(bars)], fontsize=7)
    axis.set_ylim(-0.7, len(bars) - 0.3)
    axis.set_xlabel("times faster; right of the line at 1 is faster")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(labels.values(), labels, fontsize=7, loc="upper center",
                bbox_to_anchor=(0.35, -0.6 / (1.6 + 0.26 * len(bars)) - 0.02), ncols=2, frameon=False)
    axis.set_title("Ratios within this run\n" + conditions([bar[3] for bar in bars]), fontsize=9)
    return figure


def quickest(rows: list[Row]) -> list[Row]:
    """Our quickest form of each operation, measure and length."""
    found: dict[tuple, Row] = {}
    for row in rows:
        key = row["op"], row["measure"], row["n"]
        if row["op"] != "sdpa" and is_ours(row) and (key not in found or row["ms"] < found[key]["ms"]):
            found[key] = row
    return list(found.values())


# ------------------------------------------------------------------------------------------------------------ decoding
def decode(rows: list[Row]) -> plt.Figure | None:
    """Milliseconds a token against context."""
    rows = [row for row in rows if row["measure"] == DECODE]
    if len({row["n"] for row in rows}) < 2:
        return None
    figure, axis = plt.subplots(figsize=(8.2, 4.3))
    lines(axis, [row for row in rows if row["op"] == "sdpa"], lambda row: "attention (torch) on its cache", [GREY])
    lines(axis, [row for row in rows if row["op"] != "sdpa"], lambda row: row["op"], PALETTE)
    log2(axis, {row["n"] for row in rows})
    log(axis)
    axis.set_xlabel("context (tokens)")
    axis.set_ylabel("milliseconds a decode step, one layer's mixing")
    axis.legend(fontsize=7, **BESIDE)
    axis.set_title("Decode step against context; states are synthetic\n" + conditions(rows), fontsize=9)
    return figure
