"""Names beside points of a plot, moved apart: near its point where there is room, further away on a thin line else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

RINGS = (6, 10, 15, 22, 30, 40, 52, 66, 82, 100)     # distances of a name from its point [points]
DIRECTIONS = tuple(math.radians(angle) for angle in (0, 180, 45, -45, 135, -135, 90, -90, 20, -20, 160, -160, 70, -70))
LEADER = 16                                      # a name further off than this gets a line
PAD = 1.5


def place(axis: Axes, points: Sequence[tuple[float, float, str]], bars: Sequence[tuple[float, float]] = (),
          fontsize: float = 6.5) -> list[tuple[float, ...]]:
    """Write each (x, y, name) in data coordinates; scales and limits of the axis must be final. bars: the ends (low,
    high) of each point's interval, which names keep off where they can.

    Returns the boxes (x0, y0, x1, y1) of the names in pixels, in the order of `points`.
    """
    figure = axis.figure
    figure.canvas.draw()
    renderer, dpi = figure.canvas.get_renderer(), figure.dpi / 72
    frame = axis.get_window_extent(renderer)
    at = np.array([axis.transData.transform((x, y)) for x, y, _ in points]).reshape(-1, 2)
    marks = [_box(x, y, 7 * dpi, 7 * dpi) for x, y in at]
    for (x, _, _), ends in zip(points, bars):
        low, high = (axis.transData.transform((x, end)) for end in ends)
        marks.append((low[0] - 2 * dpi, low[1], low[0] + 2 * dpi, high[1]))
    boxes: list[tuple[float, ...]] = [()] * len(points)
    for number in sorted(range(len(points)), key=lambda i: -_crowd(at, i)):
        text = axis.text(0, 0, points[number][2], fontsize=fontsize)
        extent = text.get_window_extent(renderer)
        text.remove()
        taken = [box for box in boxes if box]
        best = min(_candidates(at[number], extent.width, extent.height, dpi), key=lambda option: (
            _cost(option[1], taken, marks, frame), option[0]))
        reach, box = best
        boxes[number] = box
        axis.annotate(points[number][2], points[number][:2],
                      xytext=(((box[0] + box[2]) / 2 - at[number][0]) / dpi, ((box[1] + box[3]) / 2 - at[number][1]) / dpi),
                      textcoords="offset points", ha="center", va="center", fontsize=fontsize,
                      arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "grey", "shrinkA": 0, "shrinkB": 2}
                      if reach > LEADER else None)
    return boxes


def _candidates(point: np.ndarray, width: float, height: float, dpi: float) -> list[tuple[float, tuple[float, ...]]]:
    """(distance, box) of every place where a name may stand."""
    found = []
    for ring in RINGS:
        for direction in DIRECTIONS:
            x = point[0] + math.cos(direction) * (ring * dpi + width / 2 * abs(math.cos(direction)))
            y = point[1] + math.sin(direction) * ring * dpi
            if abs(math.cos(direction)) < 0.1 or abs(y - point[1]) > height or abs(x - point[0]) > width / 2:
                found.append((ring, _box(x, y, width, height)))
    return found


def _cost(box: tuple[float, ...], taken: list[tuple[float, ...]], marks: list[tuple[float, ...]], frame) -> float:
    """Pixels that are covered twice; outside the frame counts as covered."""
    area = (box[2] - box[0]) * (box[3] - box[1])
    inside = _overlap(box, (frame.x0, frame.y0, frame.x1, frame.y1))
    covered = sum(_overlap(_grown(box), other) for other in taken) * 3
    return covered + sum(_overlap(box, mark) for mark in marks) + 10 * (area - inside)


def _crowd(at: np.ndarray, number: int) -> float:
    """How many points are near: those in a crowd choose first."""
    return float((np.abs(at - at[number]).max(axis=1) < 60).sum())


def _box(x: float, y: float, width: float, height: float) -> tuple[float, ...]:
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _grown(box: tuple[float, ...]) -> tuple[float, ...]:
    return (box[0] - PAD, box[1] - PAD, box[2] + PAD, box[3] + PAD)


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
