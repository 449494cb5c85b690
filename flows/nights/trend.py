"""The trend plot: scores of registered models across nights, with intervals, alias moves, regressions, and where prompts
changed, after which values are no longer those of before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from flows.nights.due import NEW, PROMPTS, SUITE
from flows.nights.ledger import Past
from flows.nights.outcome import Outcome
from storage.errors import SpecError

WHOLE = "suite"
SHORTEST = timedelta(days=6)        # that a plot spans


@dataclass(frozen=True)
class Point:
    """One version on one night."""

    at: datetime
    version: str
    value: float
    low: float
    high: float
    alias: str              # that moved here
    worse: bool
    first: bool             # a version's first scores
    apart: bool             # other prompts than before


def draw(nights: Sequence[Past], folder: Path, model: str | None = None, task: str | None = None,
         under_way: str = "") -> list[Path]:
    """One PNG per registered model and evaluation, and one for the whole suite where it has several.

    under_way   run of a night that is not ended yet and is drawn all the same
    :raises SpecError: there is no such model or evaluation in these nights
    """
    finished = [night for night in nights if night.finished or night.run == under_way]
    models = sorted({one.model for night in finished for one in night.outcomes if one.tasks})
    if model is not None and model not in models:
        raise SpecError(f"no finished night evaluated {model!r}; evaluated are: {', '.join(models) or '(none yet)'}")
    found = []
    for name in models if model is None else [model]:
        tasks = list(dict.fromkeys(label for night in finished for one in night.outcomes if one.model == name
                                   for label in one.tasks))
        wanted = tasks + ([WHOLE] if len(tasks) > 1 else [])
        if task is not None and task not in wanted:
            raise SpecError(f"no finished night asked {name} {task!r}; it was asked: {', '.join(wanted)}")
        for label in wanted if task is None else [task]:
            path = folder / f"{_file(name)}.{_file(label)}.png"
            if points(finished, name, label):           # a task may be without any score
                _draw(finished, name, label, path)
                found.append(path)
    return found


def points(nights: Sequence[Past], model: str, label: str) -> dict[str, list[Point]]:
    """Lines of a plot: architecture and size -> its points, in the order of time."""
    lines: dict[str, list[Point]] = {}
    for night in nights:
        for one in night.outcomes:
            figure = one.suite if label == WHOLE else one.tasks.get(label)
            if one.model != model or figure is None or figure[0] is None:
                continue
            value, low, high = figure
            lines.setdefault(" ".join(word for word in (one.architecture, one.size) if word) or model, []).append(Point(
                night.at, one.version, value, value if low is None else low, value if high is None else high, one.alias,
                _worse(one, label), one.reason == NEW, one.reason in (PROMPTS, SUITE)))
    return lines


def _worse(one: Outcome, label: str) -> bool:
    return any(label == WHOLE or verdict.what in (label, WHOLE) for verdict in one.regressions)


def _draw(nights: Sequence[Past], model: str, label: str, path: Path) -> None:
    from matplotlib import pyplot as plt
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DayLocator

    from tasks.reporting.plots import save, styles

    lines = points(nights, model, label)
    style = styles(list(lines))
    figure, axis = plt.subplots(figsize=(8.6, 4.4))
    last, apart = max(night.at for night in nights), set()
    for own in lines.values():
        own.sort(key=lambda point: (point.at, int(point.version)))
    step = _step(nights)
    for number, (name, own) in enumerate(lines.items()):
        look = style[name]
        shift = step * (number - (len(lines) - 1) / 2)
        days = [point.at + shift for point in own]
        for part in _parts(own):
            axis.plot([days[k] for k in part], [own[k].value for k in part], look.line, color=look.colour, linewidth=1.2)
        if own[-1].at < last:
            axis.plot([days[-1], last], [own[-1].value] * 2, ":", color=look.colour, linewidth=1)
        axis.errorbar(days, [point.value for point in own], yerr=[[max(0, p.value - p.low) for p in own],
                                                                  [max(0, p.high - p.value) for p in own]],
                      fmt=look.mark, color=look.colour, markersize=4.5, capsize=2.5, linewidth=1, label=name)
        for day, point in zip(days, own):
            if point.apart:
                apart.add(point.at)
            if point.first or point.apart:
                axis.annotate(f"v{point.version}", (day, point.value), xytext=(4.5, 3), textcoords="offset points",
                              fontsize=7, ha="left", va="bottom", color=look.colour)
            if point.alias:
                axis.plot([day], [point.high], "*", color="black", markersize=9, zorder=5)
                axis.annotate(point.alias, (day, point.high), xytext=(0, 6), textcoords="offset points", fontsize=7,
                              ha="center", va="bottom")
            if point.worse:
                axis.plot([day], [point.value], "x", color="#CC0000", markersize=11, markeredgewidth=2.2, zorder=6)
    for at in sorted(apart):
        before = at - step * (len(lines) / 2 + 1)
        axis.axvline(before, color="grey", linestyle="--", linewidth=0.8)
        axis.annotate("prompts changed", (before, 1), xycoords=("data", "axes fraction"), xytext=(-3, -3),
                      textcoords="offset points", fontsize=7, color="grey", rotation=90, ha="right", va="top")
    room = max(6 * step, timedelta(days=1) if step >= SHORTEST / 90 else step)
    axis.set_xlim(min(night.at for night in nights) - room, last + room)
    axis.set_ylim(*_limits(lines.values()))
    locator = DayLocator() if step == SHORTEST / 90 else AutoDateLocator(minticks=3, maxticks=9)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axis.set_xlabel("night (UTC)")
    axis.set_ylabel("mean over columns, share right" if label != WHOLE else "mean over all columns, share right")
    axis.set_title(f"{model}, {'the whole suite' if label == WHOLE else label}: scores by night, 95 % intervals over documents",
                   fontsize=10)
    axis.grid(alpha=0.3)
    handles, names = axis.get_legend_handles_labels()
    handles += [plt.Line2D([], [], color="black", marker="*", linestyle="", markersize=9),
                plt.Line2D([], [], color="#CC0000", marker="x", linestyle="", markersize=8, markeredgewidth=2),
                plt.Line2D([], [], color="black", linestyle=":", linewidth=1)]
    axis.legend(handles, [*names, "alias moves here", "worse than before", "not evaluated since"], fontsize=7.5,
                loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def _parts(own: Sequence[Point]) -> list[list[int]]:
    """Stretches of a line, as places in `own`: through the newest version of each night, broken where prompts changed."""
    newest: dict[datetime, int] = {}
    for k, point in enumerate(own):
        other = newest.get(point.at)
        if other is None or int(point.version) >= int(own[other].version):
            newest[point.at] = k
    parts: list[list[int]] = []
    for k in newest.values():
        if not parts or own[k].apart:
            parts.append([])
        parts[-1].append(k)
    return parts


def _step(nights: Sequence[Past]) -> timedelta:
    """How far lines are drawn apart, so that intervals of one night do not cover each other: a part of the whole span."""
    span = max(night.at for night in nights) - min(night.at for night in nights)
    return (span if timedelta(0) < span < timedelta(days=1) else max(span, SHORTEST)) / 90      # several on one day


def _limits(lines) -> tuple[float, float]:
    low = min(point.low for own in lines for point in own)
    high = max(point.high for own in lines for point in own)
    room = max(0.12 * (high - low), 0.03)
    return max(-0.02, low - 1.6 * room), min(1.08, high + 1.6 * room)


def _file(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)
