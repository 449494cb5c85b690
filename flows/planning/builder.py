"""From a study to its stages: what each makes, from what, under which artifact id, and whether it is there already."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from flows import studies
from flows.planning.checks import (
    Rows,
    check_prefix,
    check_readable,
    check_vocabulary,
    parameters,
    tokenizer_of,
    tokenizer_source,
    tokens,
)
from flows.planning.plan import Plan, Stage, identify
from storage.artifacts import Store
from storage.errors import SpecError
from tasks.external import is_external
from tasks.specs import (
    BenchSpec,
    CorpusSpec,
    DeploySpec,
    EvaluateSpec,
    EvaluationPlan,
    ExtrapolationSpec,
    PerplexityPlan,
    PretrainSpec,
    QuestionRowsSpec,
    QuestionsSpec,
    Spec,
    StudySpec,
    TokeniseSpec,
    Workload,
)
from tasks.training import sweep


def plan(study: StudySpec, store: Store) -> Plan:
    """Resolve the study against `store`. Reads package versions and checksums of local files, trains nothing."""
    studies.check_data(study)
    builder = Builder(study.name, store)
    results: dict[str, Any] = {"workloads": {}, "timings": None}
    for name, workload in study.workloads.items():
        results["workloads"][name] = builder.workload(name, workload)
    if study.bench is not None:
        results["timings"] = builder.bench(study.bench)
    artifact = importlib.import_module("tasks.report").plan(study, store, results)
    report = Stage("report", "report", f"report of study {study.name}", study, {}, artifact, store.exists(artifact),
                   after=tuple(builder.stages), tags=builder.tags("report"))
    return Plan(study.name, {**builder.stages, report.key: report}, report, results, study)


class Builder:
    """Collects stages; the same work asked for twice is one stage."""

    def __init__(self, name: str, store: Store) -> None:
        self.name, self.store = name, store
        self.stages: dict[str, Stage] = {}
        self.makers: dict[str, str] = {}          # artifact id -> key of the stage that makes it

    def add(self, kind: str, title: str, spec: Spec, inputs: dict[str, str], key: str, tokens: int = 0,
            weight: float = 0.0, tags: dict[str, str] | None = None) -> Stage:
        artifact = identify(kind, spec, self.store, inputs)
        if artifact not in self.makers:
            self.makers[artifact] = key
            after = tuple(self.makers[made] for made in inputs.values() if made in self.makers)
            self.stages[key] = Stage(key, kind, title, spec, inputs, artifact, self.store.exists(artifact), after,
                                     tokens, weight, {**self.tags(kind), **(tags or {})})
        return self.stages[self.makers[artifact]]

    def tags(self, kind: str) -> dict[str, str]:
        return {"stage": kind, "study": self.name}

    def data(self, name: str, corpus: CorpusSpec | None, tokenise: TokeniseSpec | None, rows: Rows | None,
             questions: QuestionsSpec | None = None) -> dict[str, str]:
        """Corpus, shards and rows as far as they are asked for: role -> artifact id.

        tokenise   None: the corpus alone
        questions  what rows of kind `questions` are drawn from
        """
        made: dict[str, str] = {}
        if corpus is not None:
            made["corpus"] = self.add("corpus", f"read corpus {corpus.source}", corpus, {}, f"{name}/corpus").artifact
        if corpus is not None and tokenise is not None:
            made["shards"] = self.add("tokenise", f"tokenise {name} with {tokenise.tokenizer}", tokenise,
                                      {"corpus": made["corpus"]}, f"{name}/tokenise").artifact
        if rows is not None:
            sources = dict(made)
            if isinstance(rows, QuestionRowsSpec):
                sources["questions"] = self.questions(name, questions, "training")
            made["rows"] = self.add("rows", f"write training rows of {name}", rows, sources, f"{name}/rows").artifact
        return made

    def questions(self, name: str, spec: QuestionsSpec | None, label: str) -> str:
        """The id of what a task of questions and documents asks.

        :raises SpecError: nothing says where they are
        """
        if spec is None:
            raise SpecError(f"{name}: {label} needs `questions`: which task's format, and `paths` or `dataset`")
        return self.add("questions", f"read {spec.task} questions of {name} for {label}", spec, {},
                        f"{name}/questions/{label}").artifact

    def workload(self, name: str, workload: Workload) -> dict[str, Any]:
        for evaluation in workload.evaluations:
            check_readable(evaluation.cloze, tokenizer_of(workload.rows, workload.tokenise))
        trains = any(one.model for one in workload.architectures.values())
        made = self.data(name, workload.corpus, workload.tokenise, workload.rows if trains else None,
                         workload.training_questions)
        checkpoints, sweeps = {}, {}
        for spec in trainings(workload):
            for evaluation in workload.evaluations:
                check_prefix(spec, evaluation)
            trials = self.trials(name, spec, made, workload.rows, workload.tokenise, workload.seeds[0])
            sweeps |= {f"{spec.architecture}/{value:g}": trial for value, trial in trials.items()}
            checkpoints[f"{spec.architecture}/{spec.seed}"] = self.pretrain(name, spec, made, workload.rows,
                                                                            workload.tokenise, trials)
        given = {f"{label}/0": one.checkpoint for label, one in workload.architectures.items() if one.checkpoint}
        prompts, scores = {}, {}
        for evaluation in workload.evaluations:
            label = evaluation.label
            for model, checkpoint in {**checkpoints, **given}.items():
                asked = self.prompts(name, evaluation, made, checkpoint if model in given else None)
                own = prompts.setdefault(label, asked) != asked      # counted with this model's tokenizer
                prompts[f"{label}/{model.rpartition('/')[0]}" if own else label] = asked
                architecture, seed = model.rsplit("/", 1)
                scores[f"{model}/{label}"] = self.evaluate(name, architecture, int(seed), label, evaluation.evaluate,
                                                           checkpoint, asked)
        trained = checkpoints | {model: one for model, one in given.items() if not is_external(one)}
        measured = self.measured(name, workload, made, checkpoints | given)
        return {**{role: made.get(role) for role in ("corpus", "shards", "rows")},
                "prompts": prompts, "checkpoints": trained, "scores": scores, **({"sweeps": sweeps} if sweeps else {}),
                **{kind: found for kind, found in measured.items() if found}}

    def prompts(self, name: str, evaluation: EvaluationPlan, made: dict[str, str], checkpoint: str | None) -> str:
        """The id of an evaluation's prompts. checkpoint: a model that was not trained on `made`, whose tokenizer counts."""
        from tasks.evals.base import get_task

        spec, sources = evaluation.cloze, {role: made[role] for role in ("corpus", "shards") if role in made}
        if checkpoint is not None and is_external(checkpoint):
            sources.pop("shards", None)
            spec = spec.model_copy(update={"tokenizer": evaluation.evaluate.tokenizer or checkpoint})
        elif checkpoint is not None:
            sources["shards"] = tokenizer_source(self.store, checkpoint)
        if get_task(spec.task).needs_questions:
            sources["questions"] = self.questions(name, evaluation.questions, evaluation.label)
        key = f"{name}/cloze/{evaluation.label}"
        own = "" if checkpoint is None else f" for {checkpoint.rpartition('/')[2]}"
        return self.add("cloze", f"write {evaluation.label} prompts of {name}{own}", spec, sources,
                        key + (f"/{checkpoint.rpartition('/')[2]}" if checkpoint else "")).artifact

    def measured(self, name: str, workload: Workload, made: dict[str, str],
                 models: dict[str, str]) -> dict[str, dict[str, str]]:
        """What is measured of every model beside recall: kind -> architecture/seed/label -> artifact id."""
        found: dict[str, dict[str, str]] = {"perplexities": {}, "extrapolations": {}, "deploys": {}}
        for model, checkpoint in models.items():
            for label, plan in workload.perplexities.items():
                found["perplexities"][f"{model}/{label}"] = self.perplexity(name, label, model, plan, made, checkpoint)
            for label, spec in workload.extrapolations.items():
                found["extrapolations"][f"{model}/{label}"] = self.extrapolation(name, label, model, spec, made, checkpoint)
            for label, spec in workload.deploys.items():
                found["deploys"][f"{model}/{label}"] = self.deploy(name, label, model, spec, checkpoint)
        return found

    def perplexity(self, name: str, label: str, model: str, plan: PerplexityPlan, made: dict[str, str],
                   checkpoint: str) -> str:
        """The id of a reading. Models trained here read rows of the shards, with bigrams counted over them; a model with
        a tokenizer of its own reads documents, and bigrams of other tokens say nothing about its own."""
        inputs = {"checkpoint": checkpoint}
        if is_external(checkpoint) or "shards" not in made:
            inputs["corpus"] = made["corpus"]
        else:
            inputs["shards"] = made["shards"]
            if plan.bigrams is not None:
                inputs["bigrams"] = self.add("bigrams", f"count bigrams of {name}", plan.bigrams,
                                             {"shards": made["shards"]}, f"{name}/bigrams/{label}").artifact
        return self._measure("perplexity", f"perplexity of {model} on {label}", plan.perplexity, inputs, name, model, label)

    def extrapolation(self, name: str, label: str, model: str, spec: ExtrapolationSpec, made: dict[str, str],
                      checkpoint: str) -> str:
        inputs = {"checkpoint": checkpoint, **({} if spec.paths else {"corpus": made["corpus"]})}
        return self._measure("extrapolation", f"extrapolate {model} on {label}", spec, inputs, name, model, label)

    def deploy(self, name: str, label: str, model: str, spec: DeploySpec, checkpoint: str) -> str:
        from tasks.deploy import placed

        return self._measure("deploy", f"time {model} as deployed, {label}", placed(spec), {"checkpoint": checkpoint},
                             name, model, label)

    def _measure(self, kind: str, title: str, spec: Spec, inputs: dict[str, str], name: str, model: str,
                 label: str) -> str:
        tags = dict(zip(("architecture", "seed"), model.rsplit("/", 1)), workload=name)
        return self.add(kind, title, spec, inputs, f"{name}/{kind}/{model}/{label}", tags=tags).artifact

    def pretrain(self, name: str, spec: PretrainSpec, made: dict[str, str],
                 rows: Rows | None, tokenise: TokeniseSpec,
                 trials: dict[float, str] | None = None) -> str:
        """The id of the checkpoint. trials: of its sweep; None = make them here, with the seed of `spec`."""
        check_vocabulary(spec, tokenizer_of(rows, tokenise))
        if trials is None:
            trials = self.trials(name, spec, made, rows, tokenise, spec.seed)
        return self._training(
            name, spec, {**_data(spec, made), **{sweep.role(value): trial for value, trial in trials.items()}},
            f"pretrain {spec.architecture} seed {spec.seed} on {name} {spec.train.data}",
            f"{name}/pretrain/{spec.architecture}/{spec.seed}", tokens(spec, rows, tokenise))

    def trials(self, name: str, spec: PretrainSpec, made: dict[str, str],
               rows: Rows | None, tokenise: TokeniseSpec, seed: int) -> dict[float, str]:
        """Value -> id of its trial, all trained with one seed; empty without a sweep."""
        found = spec.train.sweep
        made_trials = {}
        for value in found.values if found else ():
            trial = spec.model_copy(update={"seed": seed, "train": spec.train.at(value, trial=found.share)})
            check_vocabulary(trial, tokenizer_of(rows, tokenise))
            made_trials[value] = self._training(
                name, trial, _data(trial, made), f"sweep {spec.architecture} {sweep.label(found, value)} on {name}",
                f"{name}/sweep/{spec.architecture}/{value!r}", round(found.share * tokens(spec, rows, tokenise)),
                {"sweep": f"{found.field}={value!r}"})
        return made_trials

    def _training(self, name: str, spec: PretrainSpec, inputs: dict[str, str], title: str, key: str, seen: int,
                  tags: dict[str, str] | None = None) -> str:
        return self.add("pretrain", title, spec, inputs, key, seen, seen * parameters(spec),
                        {"architecture": spec.architecture, "seed": str(spec.seed), "workload": name,
                         **(tags or {})}).artifact

    def evaluate(self, name: str, label: str, seed: int, task: str, spec: EvaluateSpec, checkpoint: str,
                 prompts: str) -> str:
        return self.add("evaluate", f"evaluate {label} seed {seed} on {task}", spec,
                        {"checkpoint": checkpoint, "prompts": prompts}, f"{name}/evaluate/{label}/{seed}/{task}",
                        tags={"architecture": label, "seed": str(seed), "workload": name, "task": task}).artifact

    def bench(self, spec: BenchSpec) -> str:
        from tasks.bench import placed

        return self.add("bench", f"time the kernels ({spec.preset})", placed(spec), {}, "bench").artifact


def _data(spec: PretrainSpec, made: dict[str, str]) -> dict[str, str]:
    roles = ("shards",) if spec.train.data == "shards" else ("rows", "shards")
    return {role: made[role] for role in roles if role in made}


def trainings(workload: Workload) -> Iterator[PretrainSpec]:
    """Every model that the workload trains."""
    for seed in workload.seeds:
        for label, architecture in workload.architectures.items():
            if architecture.model:
                yield PretrainSpec(architecture=label, model=architecture.model, seed=seed,
                                   model_overrides=architecture.model_overrides, train=studies.training(workload, label))
