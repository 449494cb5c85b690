"""What the answers are, as stacked bars: right, and each class of error, over all answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from tasks.reporting.plots import PALETTE, save

RIGHT_COLOUR = "#009E73"
COLOURS = [*(colour for colour in PALETTE if colour != RIGHT_COLOUR), "#999999", "#8C564B"]
HATCH = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "", "|||")


def stacked(rows: list[dict[str, Any]], classes: list[str], path: Path) -> None:
    """One axis a panel, one bar an architecture and order, its parts in the order of `classes` (the first is right).

    `rows`: {panel, name, shares: {class: share}}; the shares of a row add up to 1.
    """
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    across = min(2, len(panels))
    down = math.ceil(len(panels) / across)
    most = max(sum(row["panel"] == panel for row in rows) for panel in panels)
    figure, axes = plt.subplots(down, across, figsize=(6.4 * across, (0.24 * most + 0.9) * down + 0.6), squeeze=False, sharex=True)
    style = {name: (RIGHT_COLOUR if i == 0 else COLOURS[(i - 1) % len(COLOURS)], HATCH[i % len(HATCH)])
             for i, name in enumerate(classes)}
    for axis, panel in zip(axes.flat, panels):
        own = [row for row in rows if row["panel"] == panel]
        for place, row in enumerate(own):
            left = 0.0
            for name in classes:
                width = row["shares"].get(name, 0.0)
                axis.barh(place, width, left=left, height=0.8, color=style[name][0], hatch=style[name][1], edgecolor="white",
                          linewidth=0.4)
                left += width
        axis.set_yticks(range(len(own)), [row["name"] for row in own], fontsize=7)
        axis.set_ylim(len(own) - 0.5, -0.5)
        axis.set_xlim(0, 1)
        axis.set_title(panel, fontsize=9)
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    for axis in axes.flat[max(0, len(panels) - across):len(panels)]:          # the lowest of each column
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("share of answers")
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=style[name][0], hatch=style[name][1], edgecolor="white", linewidth=0.4)
               for name in classes]
    columns = min(3 * across, len(classes))
    lines = math.ceil(len(classes) / columns)
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.1 + 0.18 * lines) / figure.get_figheight()))
    figure.legend(handles, [name.replace("_", " ") for name in classes], fontsize=8, loc="upper center", ncols=columns,
                  frameon=False)
    save(figure, path, tight=False)
