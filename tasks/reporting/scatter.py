"""Recall against the bytes that a document leaves behind: the figure of the papers, at any number of architectures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from tasks.reporting import labels
from tasks.reporting.plots import MANY, save, styles

PANEL_MARKS = "os^Dv<>p"        # more panels than marks have an axis each


def recall_against_state(points: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """Recall (first order) against state bytes, with 95 % intervals.

    `points`: {panel, architecture, state_bytes, grows, value, low, high}. A state that grows with the document is drawn
    at its size after a document of the evaluation's length, as an open mark.
    """
    if len(architectures) > MANY or len({point["panel"] for point in points}) > len(PANEL_MARKS):
        _named(points, architectures, path)
    else:
        _coloured(points, architectures, path)


def _coloured(points: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """A few: one axis, a colour for an architecture, a mark for a panel."""
    figure, axis = plt.subplots(figsize=(7.6, 4.2))
    style = styles(architectures)
    marks = dict(zip(dict.fromkeys(p["panel"] for p in points), PANEL_MARKS))
    for point in points:
        shift = 1.06 ** (architectures.index(point["architecture"]) - (len(architectures) - 1) / 2)   # equal states stay readable
        _point(axis, point, shift, style[point["architecture"]].colour, marks.get(point["panel"], "o"))
    for name in architectures:
        axis.plot([], [], "-", linewidth=4, color=style[name].colour, label=name)
    for panel, mark in marks.items():
        axis.plot([], [], mark, color="grey", label=panel)
    _frame(axis, points)
    if any(point["grows"] for point in points):
        axis.plot([], [], "o", color="grey", markerfacecolor="white", label="grows with the document")
    axis.set_xlabel("state after the document (kB, float32; points of one state are set apart a little)")
    axis.set_ylabel("recall, first order")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    save(figure, path)


def _named(points: list[dict[str, Any]], architectures: list[str], path: Path) -> None:
    """Many: one axis a panel, every point with its name."""
    panels = list(dict.fromkeys(point["panel"] for point in points))
    across = 1 if len(panels) == 1 else 2
    down = math.ceil(len(panels) / across)
    figure, axes = plt.subplots(down, across, figsize=(7.4 * across, 5.2 * down), squeeze=False)
    style = styles(architectures)
    for axis, panel in zip(axes.flat, panels):
        own = [point for point in points if point["panel"] == panel]
        for point in own:
            _point(axis, point, 1.0, style[point["architecture"]].colour, style[point["architecture"]].mark)
        _frame(axis, own)
        open_marks = "; open marks: the state grows with the document" if any(point["grows"] for point in own) else ""
        axis.set_title(panel + open_marks, fontsize=9)
        axis.set_ylim(0, 1.06)
        axis.set_xlabel("state after the document (kB, float32)")
        axis.set_ylabel("recall, first order")
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    figure.tight_layout()
    for axis, panel in zip(axes.flat, panels):
        own = [point for point in points if point["panel"] == panel]
        labels.place(axis, [(point["state_bytes"], point["value"], point["architecture"]) for point in own],
                     [(point["low"], point["high"]) for point in own])
    save(figure, path, tight=False)


def _point(axis: plt.Axes, point: dict[str, Any], shift: float, colour: str, mark: str) -> None:
    axis.errorbar(point["state_bytes"] * shift, point["value"],
                  yerr=[[max(0, point["value"] - point["low"])], [max(0, point["high"] - point["value"])]],
                  color=colour, marker=mark, markersize=5, capsize=3, linestyle="none", elinewidth=1,
                  markerfacecolor="white" if point["grows"] else colour)


def _frame(axis: plt.Axes, points: list[dict[str, Any]]) -> None:
    axis.set_xscale("log")
    axis.set_xlim(min(p["state_bytes"] for p in points) / 2, max(p["state_bytes"] for p in points) * 2)
    axis.xaxis.set_major_formatter(lambda octets, _: f"{octets / 1000:g}")
    axis.xaxis.set_minor_formatter(lambda octets, _: f"{octets / 1000:g}" if f"{octets:e}"[0] in "25" else "")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
