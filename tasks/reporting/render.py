"""A report before it is written: what was gathered, what was compared, and where each part of the page comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from tasks.reporting import averages, figures, language, overview, plots, recall_tables, sentences, tables_beside
from tasks.reporting.averages import Average
from tasks.reporting.compare import (
    Difference,
    Recall,
    between_architectures,
    between_orders,
    between_settings,
    holm,
    orders_of,
    recalls,
)
from tasks.reporting.footprint import Footprint
from tasks.reporting.gather import Gathered, Measured, Panel
from tasks.reporting.published import Here, Published
from tasks.reporting.settings import Setting, settings
from tasks.reporting.tables import Table
from tasks.specs import StudySpec

RESAMPLES = 2000
MANY = plots.MANY
COLUMN_RANK = {"natural": 0, "uncommon": 1, "swap": 2, "held_out": 3, "list": 4}


@dataclass
class Report:
    """A report before it is written."""

    study: StudySpec
    found: Gathered
    footprints: dict[str, Footprint]       # "workload/architecture" -> what it takes; models of transformers have none
    state_length: dict[str, int]           # workload -> tokens of the evaluation's longest document
    recalls: list[Recall] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    averages: list[Average] = field(default_factory=list)

    def compare(self) -> Report:
        """Fills the comparisons; separate from construction because it takes seconds."""
        differences = []
        for panel in self.panels:
            names = list(self.study.workloads[panel.workload].architectures)
            orders = orders_of(self.found, panel)
            self.recalls += recalls(self.found, panel, names, RESAMPLES, 0)
            differences += between_architectures(self.found, panel, self.pairs(names), orders[0], RESAMPLES, 0)
            for name in names:
                differences += between_orders(self.found, panel, name, RESAMPLES, 0)
        for workload, work in self.study.workloads.items():
            for panels in self._asked_again(workload):
                for name in work.architectures:
                    differences += between_settings(self.found, panels, name, RESAMPLES, 0)
            self.averages += self._averages(workload)
        self.differences = holm(differences)
        return self

    def pairs(self, names: list[str]) -> list[tuple[str, str]]:
        """Which architectures are compared: each with the study's reference, or all with all; of many, none without a
        reference, since among hundreds of differences some exclude zero by chance."""
        reference = self.study.reference
        if reference in names:
            return [(name, reference) for name in names if name != reference]
        return list(combinations(names, 2)) if len(names) <= MANY else []

    @cached_property
    def panels(self) -> list[Panel]:
        """In the order of the study, natural columns first."""
        workloads = list(self.study.workloads)
        labels = {name: [one.label for one in work.evaluations] for name, work in self.study.workloads.items()}
        return sorted(self.found.answers, key=lambda p: (
            workloads.index(p.workload), labels[p.workload].index(p.task) if p.task in labels[p.workload] else len(labels),
            p.task, COLUMN_RANK.get(p.column, 9), _natural(p.column)))

    def panels_of(self, workload: str) -> list[Panel]:
        return [panel for panel in self.panels if panel.workload == workload]

    @property
    def architectures(self) -> list[str]:
        return list(dict.fromkeys(name for work in self.study.workloads.values() for name in work.architectures))

    # --------------------------------------------------------------------------------------------------- settings
    @cached_property
    def settings(self) -> dict[tuple[str, str], Setting]:
        """(workload, label) -> how it was asked."""
        return settings(self.study, self.found.metrics)

    def asked(self, panel: Panel) -> str:
        """`left_pad, clean, 0-shot, contains`."""
        found = self.settings.get((panel.workload, panel.task))
        return found.short if found else ""

    @cached_property
    def published(self) -> Published:
        return Published(self.study.claims)

    def here(self, panel: Panel, architecture: str, order: str) -> Here:
        """The conditions of one measured figure."""
        found = self.settings.get((panel.workload, panel.task))
        return Here(*self._size(panel.workload, architecture), found.document_tokens if found else None,
                    found.short if found else "", order, _source(self.study, panel.workload, panel.task), architecture)

    def reading(self, one: Measured, length: int) -> Here:
        """The conditions of a perplexity at one length."""
        spec = self.study.workloads[one.workload].extrapolations.get(one.label)
        source = "files of books" if spec and spec.paths else _source(self.study, one.workload, "")
        return Here(*self._size(one.workload, one.architecture), document_tokens=length, source=source, architecture=one.architecture)

    def _size(self, workload: str, architecture: str) -> tuple[int | None, int | None]:
        """Parameters and training tokens, as far as they are known."""
        taken = self.footprints.get(f"{workload}/{architecture}")
        trained = next((one for one in self.found.trained if (one.workload, one.architecture) == (workload, architecture)), None)
        return taken.parameters if taken else None, trained.summary.get("tokens") if trained else None

    def _asked_again(self, workload: str) -> list[list[Panel]]:
        """Panels of one task and column under several labels."""
        groups: dict[tuple[str, int, str], list[Panel]] = {}
        for panel in self.panels_of(workload):
            if found := self.settings.get((workload, panel.task)):
                groups.setdefault((found.task, found.document_tokens, panel.column), []).append(panel)
        return [panels for panels in groups.values() if len(panels) > 1]

    def _averages(self, workload: str) -> list[Average]:
        """Over evaluations of question tasks that were asked alike, each in its first column."""
        work = self.study.workloads[workload]
        first: dict[str, Panel] = {}
        for panel in self.panels_of(workload):
            first.setdefault(panel.task, panel)
        groups: dict[Setting, list[Panel]] = {}
        for evaluation in work.evaluations:
            if evaluation.questions is not None and evaluation.label in first:
                groups.setdefault(self.settings[workload, evaluation.label].alike, []).append(first[evaluation.label])
        prefix = {name for name in work.architectures if getattr(self.footprints.get(f"{workload}/{name}"), "prefix", False)}
        return averages.averages(self.found, groups, self.settings, list(work.architectures), prefix, RESAMPLES, 0)

    # --------------------------------------------------------------------------------------------------- the page
    def tables(self) -> list[Table]:
        """All tables, the one people read first in front."""
        workloads = list(self.study.workloads)
        found = [*overview.tables(self), recall_tables.averages(self, self.averages),
                 *(recall_tables.recall(self, name) for name in workloads), tables_beside.beside(self),
                 *(made(self, name) for made in (language.deploy, language.slices, language.lengths) for name in workloads),
                 *(recall_tables.metrics(self, name) for name in workloads),
                 *(recall_tables.errors(self, name) for name in workloads), tables_beside.differences(self),
                 tables_beside.training(self), recall_tables.rejected(self), tables_beside.data(self),
                 tables_beside.bench(self)]
        return [table for table in found if table.rows]

    def findings(self) -> str:
        """The question, the answer in figures, what is significant and what is not."""
        return sentences.findings(self)

    def draw(self, folder: Path) -> list[str]:
        """Writes the plots; returns their names."""
        return figures.draw(self, folder)


def _source(study: StudySpec, workload: str, label: str) -> str:
    """Where the text comes from: `pydocs`, `fda (files)`, `hazyresearch/based-fda`."""
    work = study.workloads[workload]
    questions = next((one.questions for one in work.evaluations if one.label == label), None)
    if questions is not None:
        return questions.dataset or f"{questions.task} samples"
    return work.corpus.source if work.corpus else ""


def _natural(text: str) -> list[int]:
    """Sorts 4|16 before 16|4."""
    return [int(part) if part.isdigit() else 0 for part in text.replace("|", " ").split()]
