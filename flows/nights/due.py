"""Which evaluations a registered version still needs. Identity decides: the id of its scores is known before they are
made and follows from prompts, settings, code and checkpoint; a version that carries these ids has nothing to do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from flows.planning.builder import Builder
from flows.planning.checks import check_readable, tokenizer_name
from flows.planning.plan import Plan, Stage, identify
from flows.suites import Suite
from storage.artifacts import Store
from storage.errors import ArtifactError, RereadError, SpecError
from storage.identity import canonical
from storage.tracking.registry import Version
from tasks.external import is_external
from tasks.specs import EvaluationPlan
from tasks.suite_scores import Part, Parts

EXPERIMENT = "nightly-evaluations"      # of the evaluations themselves; the nights are in `nightly`
NEW, PROMPTS, CODE, SUITE = "new", "prompts changed", "code or settings changed", "suite changed"


@dataclass(frozen=True)
class Asked:
    """One evaluation of one version."""

    label: str
    prompts: str
    scores: str
    order: str              # whose scores are compared


@dataclass
class Entry:
    """A version, what the suite asks it, and what of that is missing."""

    version: Version
    asked: dict[str, Asked] = field(default_factory=dict)           # by label
    before: dict[str, dict[str, str]] = field(default_factory=dict)     # label -> {"prompts", "scores", "order"} it carries
    reason: str = ""                                                # why it is due; "" = it is not
    not_asked: str = ""                                             # why the suite cannot ask it, one sentence
    failure: str = ""
    plan: Plan | None = None                                        # what has to be made; None = nothing

    @property
    def due(self) -> bool:
        return bool(self.reason)

    @property
    def name(self) -> str:
        """`quick-pydocs version 3`"""
        return f"{self.version.name} version {self.version.number}"

    @property
    def architecture(self) -> str:
        return self.version.tags.get("architecture", "")

    @property
    def size(self) -> str:
        return self.version.tags.get("size", "")

    def parts(self, store: Store, ids: dict[str, str] | None = None) -> Parts | None:
        """The answers that count, of the planned scores or of those in `ids` by label; None where any is not here."""
        wanted = {label: one.scores for label, one in self.asked.items()} if ids is None else ids
        if not wanted or not all(store.exists(each) for each in wanted.values()):
            return None
        return {label: Part(store.path(each), self.asked[label].order) for label, each in wanted.items()}


def suite_version(suite: Suite, store: Store) -> str:
    """What stands for a suite as it is asked today: prompts, settings and code, without any model. 8 hex digits.

    :raises RereadError: its corpus or questions cannot be read
    """
    corpus = identify("corpus", suite.corpus, store, {}) if suite.corpus else "*"
    asked = []
    for evaluation in suite.evaluations:
        questions = identify("questions", evaluation.questions, store, {}) if evaluation.questions else "*"
        prompts = identify("cloze", evaluation.cloze, store, {"corpus": corpus, "shards": "*", "questions": questions})
        scores = identify("evaluate", evaluation.evaluate, store, {"checkpoint": "*", "prompts": prompts})
        asked.append([evaluation.label, scores])
    return hashlib.sha256(canonical([asked, suite.order]).encode()).hexdigest()[:8]


def look(suite: Suite, versions: Iterable[Version], store: Store) -> list[Entry]:
    """Every version that the suite is for, with what is missing of its scores."""
    entries = [_entry(suite, version, store) for version in versions
               if any(fnmatchcase(version.name, pattern) for pattern in suite.models)]
    stages = [stage for entry in entries if entry.plan for stage in entry.plan.stages.values()]
    if stages:
        said = f"{suite.name} {suite_version(suite, store)}"
        for stage in stages:
            stage.tags["suite"] = said          # what its run in MLflow says
    return entries


def carried(suite: Suite, version: Version) -> dict[str, dict[str, str]]:
    """label -> {"prompts", "scores", "order"}: what a version carries of this suite."""
    try:
        found = json.loads(version.tags.get(f"suite.{suite.name}", "{}"))
        return {label: {"prompts": one["prompts"], "scores": one["scores"], "order": one.get("order", "")}
                for label, one in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}                        # somebody changed the tag: evaluated again


def _entry(suite: Suite, version: Version, store: Store) -> Entry:
    entry = Entry(version, before=carried(suite, version))
    checkpoint = version.tags.get("checkpoint", "")
    if not checkpoint:
        entry.not_asked = "it has no tag `checkpoint`, so nothing says which weights it is"
        return entry
    try:
        builder, keys = Builder(EXPERIMENT, store), {}
        name = f"{version.name}/{version.number}"
        made = _sources(builder, suite, name, checkpoint, store)
        for evaluation in suite.evaluations:
            entry.asked[evaluation.label], keys[evaluation.label] = _asked(
                builder, suite, name, evaluation, made, version, checkpoint, store)
    except (ArtifactError, SpecError) as refusal:
        entry.asked, entry.not_asked = {}, str(refusal)
        return entry
    except RereadError as error:
        entry.asked, entry.failure, entry.reason = {}, str(error), NEW if not entry.before else PROMPTS
        return entry
    entry.reason = _reason(entry)
    if entry.due:
        entry.plan = _needed(builder, [builder.stages[key] for key in keys.values()])
    return entry


def _sources(builder: Builder, suite: Suite, name: str, checkpoint: str, store: Store) -> dict[str, str]:
    """corpus and shards, as far as there are any: the suite's own, else those that the checkpoint was trained on."""
    if suite.corpus is not None:
        return builder.data(name, suite.corpus, None, None)
    if is_external(checkpoint):
        return {}
    inputs = store.manifest(checkpoint).inputs
    if "rows" in inputs and store.exists(inputs["rows"]):
        inputs = store.manifest(inputs["rows"]).inputs
    made = {"shards": inputs["shards"]} if "shards" in inputs else {}
    if "shards" in made and store.exists(made["shards"]):
        inputs = inputs | store.manifest(made["shards"]).inputs
    return made | ({"corpus": inputs["corpus"]} if "corpus" in inputs else {})


def _asked(builder: Builder, suite: Suite, name: str, evaluation: EvaluationPlan, made: dict[str, str], version: Version,
           checkpoint: str, store: Store) -> tuple[Asked, str]:
    """An evaluation, its stages added to `builder`, and the key of its last one.

    :raises SpecError, ArtifactError: this model cannot be asked that
    """
    from tasks.cloze import resolve
    from tasks.evals.base import get_task

    external, task = is_external(checkpoint), get_task(evaluation.cloze.task)
    if not external:
        _check_readable(evaluation, tokenizer_name(store, checkpoint))
    if task.needs_corpus and "corpus" not in made:
        raise SpecError(f"{evaluation.label} asks about documents, and this model was trained on none that are known; "
                        "name a `corpus` in the suite")
    # counted with the shards' tokenizer, as in a study; without them with the copy that the checkpoint carries
    own = checkpoint if external or "shards" not in made else None
    prompts = builder.prompts(name, evaluation, made, own)
    if own is None and not store.exists(prompts) and not _available(builder, store, made["shards"]):
        prompts = builder.prompts(name, evaluation, made, checkpoint)
    if task.needs_corpus and not store.exists(prompts) and not _available(builder, store, made["corpus"]):
        raise ArtifactError(f"the corpus {made['corpus']} that {evaluation.label} asks about is no longer here, nor are "
                            "its prompts; read it again, or name a `corpus` in the suite")
    architecture = version.tags.get("architecture") or version.name
    scores = builder.evaluate(name, architecture, _number(version.tags.get("seed")), evaluation.label,
                              evaluation.evaluate, checkpoint, prompts)
    orders = resolve(evaluation.cloze)[2].orders
    order = suite.order if suite.order in orders else orders[0]
    return Asked(evaluation.label, prompts, scores, order), builder.makers[scores]


def _check_readable(evaluation: EvaluationPlan, tokenizer: str) -> None:
    """:raises SpecError: as for a study, but nobody can change what the model was trained on"""
    try:
        check_readable(evaluation.cloze, tokenizer)
    except SpecError as refusal:
        raise SpecError(f"it was trained on {tokenizer if tokenizer.startswith('ids:') else 'text'}, and {evaluation.label} asks "
                        "in another form; a suite's `models` says which ones it is for") from refusal


def _available(builder: Builder, store: Store, artifact: str) -> bool:
    """Whether it is there or will be made."""
    return artifact in builder.makers or store.exists(artifact)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _reason(entry: Entry) -> str:
    """Why a version is due; "" when it carries what the suite gives it today."""
    if not entry.before:
        return NEW
    if set(entry.before) != set(entry.asked):
        return SUITE
    if any(entry.before[label]["prompts"] != one.prompts for label, one in entry.asked.items()):
        return PROMPTS
    if any(entry.before[label]["scores"] != one.scores or entry.before[label].get("order") not in ("", None, one.order)
           for label, one in entry.asked.items()):
        return CODE
    return ""


def _needed(builder: Builder, goals: list[Stage]) -> Plan | None:
    """The plan of those goals that do not exist, with only what they need."""
    goals = [goal for goal in goals if not goal.exists]
    if not goals:
        return None
    wanted: set[str] = set()
    waiting = list(goals)
    while waiting:
        stage = waiting.pop()
        if stage.key not in wanted:
            wanted.add(stage.key)
            waiting += [builder.stages[key] for key in stage.after if not stage.exists]
    return Plan(builder.name, {key: stage for key, stage in builder.stages.items() if key in wanted}, goals[-1])
