"""How one set of prompts was asked and answered: what has to stand beside every score."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tasks.specs import EvaluationPlan, StudySpec


@dataclass(frozen=True)
class Setting:
    """Of one evaluation of a workload. document_tokens: the cut of the document, or of the whole prompt under `total`."""

    task: str
    metric: str
    strategy: str
    keep_out: str
    template: str
    shots: int
    budget: str
    document_tokens: int

    @property
    def short(self) -> str:
        """`left_pad, clean, 0-shot, contains`."""
        tail = "" if self.keep_out == "question" else f" (keep_out {self.keep_out})"
        return f"{self.strategy}{tail}, {self.template}, {self.shots}-shot, {self.metric}"

    @property
    def alike(self) -> Setting:
        """The same for all that differs in data set and length alone: these may be averaged."""
        return replace(self, task="", document_tokens=0)


def setting(evaluation: EvaluationPlan, metric: str | None = None) -> Setting:
    """metric: what was really scored, where a task has its own."""
    cloze, evaluate = evaluation.cloze, evaluation.evaluate
    return Setting(cloze.task, metric or evaluate.metric, evaluate.strategy, evaluate.keep_out, cloze.template, cloze.shots,
                   cloze.budget, cloze.total_tokens if cloze.budget == "total" else cloze.document_tokens)


def settings(study: StudySpec, metrics: dict[tuple[str, str], str]) -> dict[tuple[str, str], Setting]:
    """(workload, label) -> how it was asked. metrics: (workload, label) -> the metric that the scores name."""
    return {(workload, evaluation.label): setting(evaluation, metrics.get((workload, evaluation.label)))
            for workload, work in study.workloads.items() for evaluation in work.evaluations}
