"""Which differences a study shows: against the controls, between architectures, between prompt orders.

Every comparison resamples documents, paired, and seeds where there are several. With fewer than three seeds a
difference is about the checkpoints at hand and the report says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.reporting.gather import Answers, Gathered, Panel
from tasks.statistics import SEEDS_FOR_A_CLAIM, Interval, hierarchical

NONE = "none"                     # the value of `control` on real prompts
CONTROLS = ("empty", "other")


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
        return bool(self.above) and all(gap.low is not None and gap.low > 0 for gap in self.above.values())


@dataclass(frozen=True)
class Difference:
    """`first` minus `second`, paired on the same items."""

    panel: Panel
    first: str
    second: str
    about: str                              # "architecture" or "order"
    where: str                              # the order, or the architecture, held fixed
    gap: Interval

    @property
    def significant(self) -> bool:
        return self.gap.low is not None and self.gap.high is not None and (self.gap.low > 0 or self.gap.high < 0)

    @property
    def sentence(self) -> str:
        gap = self.gap
        ends = "no interval" if gap.low is None else f"[{gap.low:+.3f}, {gap.high:+.3f}]"
        return f"{self.panel.title}, {self.where}: {self.first} − {self.second} = {gap.value:+.3f} {ends}"


def recalls(found: Gathered, panel: Panel, architectures: list[str], resamples: int, seed: int) -> list[Recall]:
    """One `Recall` per architecture and order that was run."""
    rows = []
    for architecture in architectures:
        for order in orders_of(found, panel):
            own = _by_seed(found, panel, architecture, order, NONE)
            if not own:
                continue
            values, documents = _stack(own)
            score = hierarchical(values, documents, resamples=resamples, seed=seed)
            controls, above = {}, {}
            for control in CONTROLS:
                other = (_by_seed(found, panel, architecture, order, control)
                         or _by_seed(found, panel, architecture, orders_of(found, panel)[0], control))
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
        a, b = (_by_seed(found, panel, name, order, NONE) for name in (first, second))
        if a and b:
            rows.append(Difference(panel, first, second, "architecture", order, _gap(a, b, resamples, seed)))
    return rows


def between_orders(found: Gathered, panel: Panel, architecture: str, resamples: int, seed: int) -> list[Difference]:
    """Every other order against the first, within one architecture; its seeds stay paired."""
    orders = orders_of(found, panel)
    base = _by_seed(found, panel, architecture, orders[0], NONE)
    rows = []
    for order in orders[1:]:
        other = _by_seed(found, panel, architecture, order, NONE)
        if base and other:
            rows.append(Difference(panel, order, orders[0], "order", architecture,
                                   _paired_gap(other, base, resamples, seed)))
    return rows


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


def _by_seed(found: Gathered, panel: Panel, architecture: str, order: str, control: str) -> dict[int, Answers]:
    return {seed: answers for (name, seed, o, c), answers in sorted(found.answers[panel].items(), key=lambda i: i[0][1])
            if (name, o, c) == (architecture, order, control)}


def _stack(answers: dict[int, Answers], keep: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Values [seeds, items] and document names [items], on the items that all seeds (and `keep`) share."""
    shared = keep
    for one in answers.values():
        shared = one.items_N if shared is None else np.intersect1d(shared, one.items_N)
    values = []
    for one in answers.values():
        place = np.searchsorted(one.items_N, shared)
        values.append(one.correct_N[place])
        documents = one.documents_N[place]
    return np.stack(values), documents


def _gap(a: dict[int, Answers], b: dict[int, Answers], resamples: int, seed: int) -> Interval:
    """Mean of a minus mean of b on the items both answered; seeds of the two drawn separately."""
    shared = None
    for one in (*a.values(), *b.values()):
        shared = one.items_N if shared is None else np.intersect1d(shared, one.items_N)
    values_a, documents = _stack(a, shared)
    values_b, _ = _stack(b, shared)
    return hierarchical(values_a, documents, minus_SN=values_b, resamples=resamples, seed=seed)


def _paired_gap(a: dict[int, Answers], b: dict[int, Answers], resamples: int, seed: int) -> Interval:
    """As `_gap`, for two conditions of the same checkpoints: seed by seed the difference is taken first."""
    seeds = sorted(set(a) & set(b))
    shared = None
    for one in (*(a[s] for s in seeds), *(b[s] for s in seeds)):
        shared = one.items_N if shared is None else np.intersect1d(shared, one.items_N)
    values_a, documents = _stack({s: a[s] for s in seeds}, shared)
    values_b, _ = _stack({s: b[s] for s in seeds}, shared)
    return hierarchical(values_a - values_b, documents, resamples=resamples, seed=seed)
