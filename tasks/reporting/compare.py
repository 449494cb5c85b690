"""Which differences a study shows: against the controls, between architectures, prompt orders and settings.

Every comparison resamples documents, paired, and seeds where there are several. With fewer than three seeds a
difference is about the checkpoints at hand and the report says so. Of many differences some exclude zero by chance:
`holm` marks those that hold when all of them are judged together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from tasks.reporting.gather import Answers, Gathered, Panel
from tasks.statistics import SEEDS_FOR_A_CLAIM, Interval, hierarchical

NONE = "none"                     # the value of `control` on real prompts
CONTROLS = ("empty", "other")
TINY = 1e-9                       # what is left of equal means after rounding


@dataclass(frozen=True)
class Recall:
    """Recall of one architecture on one panel in one order, beside its controls."""

    panel: Panel
    architecture: str
    order: str
    score: Interval
    controls: dict[str, float]             # mean of each control that was run
    above: dict[str, Interval]             # score minus that control, paired

    @property
    def is_recall(self) -> bool:
        """Above every control, the whole interval."""
        return bool(self.above) and all(gap.low is not None and gap.low > TINY for gap in self.above.values())


@dataclass(frozen=True)
class Difference:
    """`first` minus `second`, paired on the same items."""

    panel: Panel
    first: str
    second: str
    about: str                              # "architecture", "order" or "setting"
    where: str                              # what is held fixed: the order, the architecture, or both
    gap: Interval
    holds: bool = False                     # still excludes zero when all differences of a report are judged together
    again: Callable[[float, int], Interval] | None = field(default=None, repr=False, compare=False)   # (level, resamples)

    @property
    def significant(self) -> bool:
        return self.gap.low is not None and self.gap.high is not None and (self.gap.low > TINY or self.gap.high < -TINY)

    @property
    def sentence(self) -> str:
        gap = self.gap
        ends = "no interval" if gap.low is None else f"[{gap.low:+.3f}, {gap.high:+.3f}]"
        place = self.panel.column if self.about == "setting" else self.panel.title
        return f"{place}, {self.where}: {self.first} − {self.second} = {gap.value:+.3f} {ends}" + (
            " (holds after Holm's correction)" if self.holds else "")


def recalls(found: Gathered, panel: Panel, architectures: list[str], resamples: int, seed: int) -> list[Recall]:
    """One `Recall` per architecture and order that was run."""
    rows = []
    for architecture in architectures:
        for order in orders_of(found, panel):
            own = by_seed(found, panel, architecture, order, NONE)
            if not own:
                continue
            values, documents = stack(own)
            score = hierarchical(values, documents, share=True, resamples=resamples, seed=seed)
            controls, above = {}, {}
            for control in CONTROLS:
                other = (by_seed(found, panel, architecture, order, control)
                         or by_seed(found, panel, architecture, orders_of(found, panel)[0], control))
                if other:
                    controls[control] = float(np.mean([answers.value for answers in other.values()]))
                    above[control] = _paired_gap(own, other, resamples, seed)
            rows.append(Recall(panel, architecture, order, score, controls, above))
    return rows


def between_architectures(found: Gathered, panel: Panel, pairs: list[tuple[str, str]], order: str, resamples: int,
                          seed: int) -> list[Difference]:
    """These pairs of architectures in one order, as far as both were asked."""
    rows = []
    for first, second in pairs:
        a, b = (by_seed(found, panel, name, order, NONE) for name in (first, second))
        if a and b:
            rows.append(_difference(panel, first, second, "architecture", order, _gap, a, b, resamples, seed))
    return rows


def between_orders(found: Gathered, panel: Panel, architecture: str, resamples: int, seed: int) -> list[Difference]:
    """Every other order against the first, within one architecture; its seeds stay paired."""
    orders = orders_of(found, panel)
    base = by_seed(found, panel, architecture, orders[0], NONE)
    rows = []
    for order in orders[1:]:
        other = by_seed(found, panel, architecture, order, NONE)
        if base and other:
            rows.append(_difference(panel, order, orders[0], "order", architecture, _paired_gap, other, base, resamples, seed))
    return rows


def between_settings(found: Gathered, panels: list[Panel], architecture: str, resamples: int, seed: int) -> list[Difference]:
    """Every other panel against the first, order by order, within one architecture: panels that ask the same items in
    another way (strategy, template, examples). Nothing where they share no item."""
    rows = []
    for panel in panels[1:]:
        for order in (order for order in orders_of(found, panel) if order in orders_of(found, panels[0])):
            a, b = (by_seed(found, one, architecture, order, NONE) for one in (panel, panels[0]))
            if set(a) & set(b) and _shared((*a.values(), *b.values())).size:
                rows.append(_difference(panel, panel.task, panels[0].task, "setting", f"{architecture}, {order}", _paired_gap,
                                        a, b, resamples, seed))
    return rows


def holm(differences: list[Difference], alpha: float = 0.05) -> list[Difference]:
    """The same differences, those marked that hold when all are judged together (Holm 1979, on bootstrap intervals).

    Step down: with r found so far of m, a difference is found if its interval at level 1 - alpha / (m - r) excludes zero.
    """
    m = sum(one.gap.low is not None for one in differences)
    resamples = min(20_000, max(2_000, 200 * m))
    waiting = [number for number, one in enumerate(differences) if one.significant and one.again]
    found: set[int] = set()
    while waiting:
        level = 1 - alpha / (m - len(found))
        new = {number for number in waiting
               if replace(differences[number], gap=differences[number].again(level, resamples)).significant}
        if not new:
            break
        found |= new
        waiting = [number for number in waiting if number not in new]
    return [replace(one, holds=number in found) for number, one in enumerate(differences)]


def _difference(panel: Panel, first: str, second: str, about: str, where: str, gap: Callable[..., Interval],
                a: dict[int, Answers], b: dict[int, Answers], resamples: int, seed: int) -> Difference:
    return Difference(panel, first, second, about, where, gap(a, b, resamples, seed),
                      again=lambda level, draws: gap(a, b, draws, seed, level))


def orders_of(found: Gathered, panel: Panel) -> list[str]:
    """Orders run on a panel: the plain ones first, in the order the prompts were written."""
    rank = {"default": 0, "question_first": 1, "alternate": 2, "twice": 3, "repeat": 4, "filler": 5,
            "small_first": 0, "large_first": 1}
    return sorted({order for _, _, order, control in found.answers[panel] if control == NONE},
                  key=lambda order: (rank.get(order, 99), order))


def claim_note(seeds: int) -> str:
    """What a difference is about."""
    if seeds >= SEEDS_FOR_A_CLAIM:
        return f"{seeds} training seeds: intervals resample seeds and documents, so differences are about the architectures."
    return (f"{seeds} training seed{'s' if seeds > 1 else ''}: differences are about these checkpoints; "
            f"a statement about an architecture needs at least {SEEDS_FOR_A_CLAIM}.")


def by_seed(found: Gathered, panel: Panel, architecture: str, order: str, control: str) -> dict[int, Answers]:
    """Training seed -> what that checkpoint answered; empty where it was not asked."""
    return {seed: answers for (name, seed, o, c), answers in sorted(found.answers[panel].items(), key=lambda i: i[0][1])
            if (name, o, c) == (architecture, order, control)}


def _shared(answers: Iterable[Answers]) -> np.ndarray:
    """The items that all of these answered."""
    items = [one.items_N for one in answers]
    return reduce(np.intersect1d, items)


def stack(answers: dict[int, Answers], keep: np.ndarray | None = None,
          of: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Values [seeds, items] and document names [items], on the items of `keep`, or those that all seeds share.

    of: another metric than the evaluation's own
    """
    shared = _shared(answers.values()) if keep is None else keep
    values = []
    for one in answers.values():
        place = np.searchsorted(one.items_N, shared)
        values.append((one.also[of] if of else one.correct_N)[place])
        documents = one.documents_N[place]
    return np.stack(values), documents


def _gap(a: dict[int, Answers], b: dict[int, Answers], resamples: int, seed: int, level: float = 0.95) -> Interval:
    """Mean of a minus mean of b on the items both answered; seeds of the two drawn separately."""
    shared = _shared((*a.values(), *b.values()))
    values_a, documents = stack(a, shared)
    values_b, _ = stack(b, shared)
    return hierarchical(values_a, documents, minus_SN=values_b, resamples=resamples, seed=seed, level=level)


def _paired_gap(a: dict[int, Answers], b: dict[int, Answers], resamples: int, seed: int, level: float = 0.95) -> Interval:
    """As `_gap`, for two conditions of the same checkpoints: seed by seed the difference is taken first."""
    seeds = sorted(set(a) & set(b))
    a, b = {s: a[s] for s in seeds}, {s: b[s] for s in seeds}
    shared = _shared((*a.values(), *b.values()))
    values_a, documents = stack(a, shared)
    values_b, _ = stack(b, shared)
    return hierarchical(values_a - values_b, documents, resamples=resamples, seed=seed, level=level)
