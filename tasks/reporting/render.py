"""What the report says: its tables, its sentences, its figures. Words follow the numbers; none is typed in."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from tasks.reporting import overview, plots, scatter
from tasks.reporting.compare import (
    Difference,
    Recall,
    between_architectures,
    between_orders,
    claim_note,
    orders_of,
    recalls,
)
from tasks.reporting.footprint import Footprint
from tasks.reporting.gather import Gathered, Panel
from tasks.reporting.tables import Table, count, interval, share, size
from tasks.specs import StudySpec

RESAMPLES = 2000
MANY = plots.MANY
COLUMN_RANK = {"natural": 0, "uncommon": 1, "swap": 2, "held_out": 3, "list": 4}


@dataclass
class Report:
    """A report before it is written."""

    study: StudySpec
    found: Gathered
    footprints: dict[str, Footprint]       # "workload/architecture" -> what it takes
    state_length: dict[str, int]           # workload -> tokens of the evaluation's longest document
    recalls: list[Recall] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    def compare(self) -> Report:
        """Fills the comparisons; separate from construction because it takes seconds."""
        for panel in self.panels:
            names = list(self.study.workloads[panel.workload].architectures)
            orders = orders_of(self.found, panel)
            self.recalls += recalls(self.found, panel, names, RESAMPLES, 0)
            self.differences += between_architectures(self.found, panel, self.pairs(names), orders[0], RESAMPLES, 0)
            for name in names:
                self.differences += between_orders(self.found, panel, name, RESAMPLES, 0)
        return self

    def pairs(self, names: list[str]) -> list[tuple[str, str]]:
        """Which architectures are compared: each with the study's reference, or all with all; of many, none without a
        reference, since among hundreds of differences some exclude zero by chance."""
        reference = self.study.reference
        if reference in names:
            return [(name, reference) for name in names if name != reference]
        return list(combinations(names, 2)) if len(names) <= MANY else []

    @property
    def panels(self) -> list[Panel]:
        """In the order of the study, natural columns first."""
        workloads = list(self.study.workloads)
        return sorted(self.found.answers, key=lambda p: (workloads.index(p.workload), p.task != p.workload, p.task,
                                                         COLUMN_RANK.get(p.column, 9), _natural(p.column)))

    @property
    def architectures(self) -> list[str]:
        return list(dict.fromkeys(name for work in self.study.workloads.values() for name in work.architectures))

    # ------------------------------------------------------------------------------------------------- tables
    def tables(self) -> list[Table]:
        """All tables, the one people read first in front."""
        return [t for t in (*overview.tables(self), *self._recall_tables(), self._training(), self._data(), self._bench()) if t.rows]

    def _recall_tables(self) -> list[Table]:
        tables = []
        for workload, work in self.study.workloads.items():
            panels = [panel for panel in self.panels if panel.workload == workload]
            orders = list(dict.fromkeys(order for panel in panels for order in orders_of(self.found, panel)))
            table = Table(f"recall-{workload}", f"Recall: {workload}",
                          ["task / column", "architecture", *orders, "empty", "other", "above controls", "n"],
                          note="Share of right answers with a 95 % bootstrap interval over documents. empty, other: the "
                               "controls, no document and another document. Only what lies above both is recall.")
            for panel in panels:
                for name in work.architectures:
                    own = {row.order: row for row in self.recalls if row.panel == panel and row.architecture == name}
                    if not own:
                        continue
                    first = own[orders_of(self.found, panel)[0]]
                    cells = [interval(own[o].score.value, own[o].score.low, own[o].score.high) if o in own else ""
                             for o in orders]
                    table.rows.append([panel.title, name, *cells, share(first.controls.get("empty")),
                                       share(first.controls.get("other")), "yes" if first.is_recall else "no",
                                       count(first.score.n)])
            tables.append(table)
        return tables

    def _training(self) -> Table:
        table = Table("training", "Training", ["workload", "architecture", "seed", "parameters", "state", "steps", "tokens",
                                               "supervised", "seconds", "tokens/s", "bits/byte"],
                      note="state: bytes after a document of the evaluation's length ("
                           + ", ".join(f"{w}: {n} tokens" for w, n in self.state_length.items())
                           + "), float32; a Transformer's grows with the document. Equal tokens, not equal seconds. "
                             "bits/byte: answers of validation rows.")
        for one in self.found.trained:
            key, summary = f"{one.workload}/{one.architecture}", one.summary
            table.rows.append([one.workload, one.architecture, str(one.seed), count(self.footprints[key].parameters),
                               size(self.footprints[key].state_bytes), count(summary["steps"]), count(summary["tokens"]),
                               count(summary["supervised"]), f"{summary['seconds']:,.0f}",
                               count(summary["tokens_per_second"]), share(summary.get("validation_bits_per_byte"))])
        return table

    def _data(self) -> Table:
        table = Table("data", "Data", ["workload", "artifact", "count", "value"])
        for workload, parts in self.found.data.items():
            for role, counts in parts.items():
                table.rows += [[workload, role, name, _value(value)] for name, value in counts.items()]
        for prompts, reasons in self.found.rejected.items():
            table.rows += [[prompts, "prompts", f"rejected: {reason}", count(n)] for reason, n in reasons.items()]
        return table

    def _bench(self) -> Table:
        device = next((row["device"] for row in self.found.timings if row.get("device")), "this CPU")
        table = Table("bench", f"Operations on {device}",
                      ["operation", "backend", "measure", "length", "ms", "error", "times SDPA", "contended"],
                      note="ms: best repetition. error: against float64 (the naive form, or a formula proven on it). times SDPA: "
                           "how many times faster than PyTorch's causal attention in the same run. A row whose check fails "
                           "has no time.")
        for row in self.found.timings:
            table.rows.append([row["op"], row["backend"], row.get("measure", "forward"), count(row["n"]),
                               "–" if row.get("ms") is None else f"{row['ms']:.2f}",
                               "–" if row.get("error") is None else f"{row['error']:.1e}",
                               "–" if row.get("ratio_to_sdpa") is None else f"{row['ratio_to_sdpa']:.2f}",
                               "yes" if row.get("contended") else "no"])
        return table

    # ----------------------------------------------------------------------------------------------- sentences
    def findings(self) -> str:
        """The question, the answer in figures, what is significant and what is not."""
        lines = [f"# Study `{self.study.name}`", "", self.study.about, ""]
        if self.study.question:
            lines += [f"**Question.** {self.study.question}", ""]
        lines += ["## What was measured", ""]
        for workload in self.study.workloads:
            for panel in (p for p in self.panels if p.workload == workload):
                first = orders_of(self.found, panel)[0]
                own = [r for r in self.recalls if r.panel == panel and r.order == first]
                figures = ", ".join(f"{r.architecture} {interval(r.score.value, r.score.low, r.score.high)}"
                                    for r in _shown(own))
                worst = max((value for r in own for value in r.controls.values()), default=None)
                lines.append(f"* {panel.title}, {first}: {figures}; highest control {share(worst)}.")
        lines += ["", *dict.fromkeys(claim_note(len(work.seeds)) for work in self.study.workloads.values()), ""]
        lines += overview.not_above_lines(self) + overview.edge_lines(self)
        lines += ["## Between architectures", ""] + self._sentences("architecture") + self._untested()
        lines += ["", "## Between prompt orders", ""] + self._sentences("order") + self._untrained_orders()
        tested = len(self.differences)
        lines += ["", f"{tested} differences were tested at 95 % without correction: about {tested * 0.05:.0f} of them would "
                      "exclude zero by chance alone.", ""]
        return "\n".join(lines)

    def _sentences(self, about: str) -> list[str]:
        own = [d for d in self.differences if d.about == about and d.gap.value is not None]
        yes, no = [d for d in own if d.significant], [d for d in own if not d.significant]
        lines = ["Significant (the 95 % interval excludes zero):", ""]
        lines += [f"* {d.sentence}" for d in yes] or ["* none"]
        lines += ["", "Not significant:", ""]
        lines += [f"* {d.sentence}" for d in no] or ["* none"]
        return lines

    def _untested(self) -> list[str]:
        """Workloads whose architectures are too many to compare all with all."""
        return ["", *(f"{name}: {len(work.architectures)} architectures and no `reference` in the study, so no pair was "
                      "tested; see the intervals in the tables." for name, work in self.study.workloads.items()
                      if len(work.architectures) > MANY and not self.pairs(list(work.architectures)))]

    def _untrained_orders(self) -> list[str]:
        """Orders that a workload's training rows never had."""
        lines = []
        for workload, parts in self.found.data.items():
            trained = parts.get("rows", {}).get("by_order", {})
            asked = {order for panel in self.panels if panel.workload == workload
                     for order in orders_of(self.found, panel)}
            missing = sorted(order for order in asked if trained and not trained.get(order))
            if missing:
                lines += ["", f"{workload}: trained on no row in the order {', '.join(missing)}; those columns are "
                              "out of distribution."]
        return lines

    # ------------------------------------------------------------------------------------------------- figures
    def draw(self, folder: Path) -> list[str]:
        """Writes the plots; returns their names."""
        bars = [{"panel": r.panel.title, "architecture": r.architecture, "order": r.order, "value": r.score.value,
                 "low": r.score.value if r.score.low is None else r.score.low,
                 "high": r.score.value if r.score.high is None else r.score.high,
                 "control": max(r.controls.values(), default=None)} for r in self.recalls]
        if bars:
            plots.recall_by_order(bars, self.architectures, folder / "recall.png")
        points = [{"panel": bar["panel"], "architecture": r.architecture, "value": bar["value"], "low": bar["low"],
                   "high": bar["high"], "state_bytes": self.footprints[f"{r.panel.workload}/{r.architecture}"].state_bytes,
                   "grows": self.footprints[f"{r.panel.workload}/{r.architecture}"].grows}
                  for r, bar in zip(self.recalls, bars)
                  if r.order == orders_of(self.found, r.panel)[0] and self._against_state(r.panel)]
        if points:
            scatter.recall_against_state(points, self.architectures, folder / "recall-against-state.png")
        if self.found.trained:
            plots.loss_curves([_curve(one) for one in self.found.trained], self.architectures, folder / "loss.png")
        if any(row.get("ms") is not None for row in self.found.timings):
            plots.latency(self.found.timings, folder / "latency.png")
        return sorted(path.name for path in folder.glob("*.png"))


    def _against_state(self, panel: Panel) -> bool:
        """Whether recall against state is drawn: of a few architectures all share an axis, which two columns fill."""
        return panel.column in ("natural", "swap") or (
            len(self.architectures) > MANY and panel.column not in ("uncommon", "held_out"))


def _curve(one: Any) -> dict[str, Any]:
    points = [p for p in one.curve if p.get("loss/answer", p.get("loss")) is not None]
    checks = [p for p in one.curve if p.get("validation/bits_per_byte") is not None]
    return {"workload": one.workload, "architecture": one.architecture, "seed": one.seed,
            "tokens": [p["tokens"] for p in points], "loss": [p.get("loss/answer", p.get("loss")) for p in points],
            "validation_tokens": [p["tokens"] for p in checks],
            "validation": [p["validation/bits_per_byte"] for p in checks]}


def _shown(rows: list[Recall]) -> list[Recall]:
    """All of a few; of many the best and the last three, best first (the table has the others)."""
    if len(rows) <= MANY:
        return rows
    ranked = sorted(rows, key=lambda row: -row.score.value)
    return ranked[:3] + ranked[-3:]


def _natural(text: str) -> list[Any]:
    """Sorts 4|16 before 16|4."""
    return [int(part) if part.isdigit() else 0 for part in text.replace("|", " ").split()]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(part)}" for name, part in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return count(value) if isinstance(value, int) else str(value)
