"""What a run in MLflow is about, in the short names that people sort and filter by; known before the work begins.

    kind           training, trial, evaluation, reading, timing or study: what the views of an experiment choose by
    stage          the stage's own name; study, workload, task, architecture, seed as in the plan
    model          preset or `hf:` name; parameters; state_bytes after `state_tokens` tokens, float32; tokens trained on
    corpus         what the model was trained on
    order          orders of the prompts; strategy: how they are read; prompts: their artifact; suite, where one asks
    device         cpu or cuda
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from flows.overrides import flat
from flows.planning.plan import Plan, Stage
from storage import logs
from storage.artifacts import Store
from storage.errors import RereadError
from tasks.external import is_external
from tasks.specs import PretrainSpec, Spec

KINDS = {"pretrain": "training", "evaluate": "evaluation", "perplexity": "reading", "extrapolation": "reading",
         "deploy": "timing", "bench": "timing", "report": "study"}
NUMBERS = ("parameters", "state_bytes", "tokens")       # also metrics, since MLflow orders parameters as text
LONG = 2048             # tokens after which a state is counted where the training rows have no length of their own
PARAMS = 200            # a run page with more is not read

log = logs.get("flows.about")


@dataclass(frozen=True)
class About:
    """Of one run; small and picklable, for the process that does the work. register: name of the registered model that
    gets a version when a training is done; empty = none."""

    facts: dict[str, Any] = field(default_factory=dict)
    register: str = ""


@dataclass(frozen=True)
class Made:
    """An artifact that is there or will be: its kind, its spec, what it is made from."""

    kind: str
    spec: dict[str, Any]
    inputs: dict[str, str]
    typed: Spec | None = None           # of a stage of the plan


class Abouts:
    """Looks things up in a plan and, for what is there already, in the store."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store = plan, store
        self._models: dict[str, dict[str, Any]] = {}        # what was found out, once a checkpoint

    def of(self, stage: Stage) -> About:
        facts: dict[str, Any] = {"kind": KINDS.get(stage.kind, stage.kind), **stage.tags}
        checkpoint = stage.artifact if stage.kind == "pretrain" else stage.inputs.get("checkpoint")
        if checkpoint:
            if checkpoint not in self._models:
                self._models[checkpoint] = self.model(checkpoint)
            facts |= self._models[checkpoint]
        spec = stage.spec
        if stage.kind == "pretrain":
            facts["tokens"] = stage.tokens or None
            if spec.train.trial is not None:
                facts["kind"] = "trial"
        prompts = self.made(stage.inputs.get("prompts", ""))
        if prompts is not None:
            facts |= {"order": ", ".join(prompts.spec.get("orders") or ()), "prompts": stage.inputs["prompts"]}
        facts["strategy"] = getattr(spec, "strategy", None)
        facts["device"] = device(spec)
        facts = {name: value for name, value in facts.items() if value not in (None, "")}
        registers = stage.kind == "pretrain" and facts["kind"] == "training"
        return About(facts, self.name(stage) if registers else "")

    def name(self, stage: Stage) -> str:
        """Registered model: `<study>-<workload>`, of a single training its experiment."""
        return f"{self.plan.name}-{stage.tags['workload']}" if self.plan.goal.kind == "report" else self.plan.name

    def model(self, checkpoint: str) -> dict[str, Any]:
        """What is known of a model that answers, reads or is trained; little of one from elsewhere."""
        if is_external(checkpoint):
            return {"model": checkpoint}
        made = self.made(checkpoint)
        if made is None:
            return {}
        preset = made.spec.get("preset") or (made.spec.get("model") if made.typed is not None else None)
        length = self.length(made)
        return {"model": preset, "tokens": self.tokens(checkpoint), "corpus": self.corpus(made), "state_tokens": length,
                **self.cost(checkpoint, made, length)}

    def cost(self, checkpoint: str, made: Made, length: int) -> dict[str, int]:
        """Nothing where the config cannot be read: a run without these figures is better than none."""
        from models import ModelConfig, load_config
        from tasks.pretrain import resolve_config

        try:
            if isinstance(made.typed, PretrainSpec):
                return _cost(resolve_config(made.typed), length)
            known = made.spec.get("model")
            return _cost(ModelConfig.model_validate(known) if known else load_config(self.store.path(checkpoint)), length)
        except (RereadError, ValueError) as error:
            log.warning("parameters and state of %s are not known to its run: %s", checkpoint, error)
            return {}

    def tokens(self, checkpoint: str) -> int | None:
        """Trained on: as counted, or as planned."""
        stage = self.stages.get(checkpoint)
        if self.store.exists(checkpoint):
            return self.store.manifest(checkpoint).counts.get("tokens")
        return stage.tokens if stage else None

    def length(self, made: Made) -> int:
        """Tokens of a training row, where all have the same or a longest is set."""
        data = made.inputs.get((made.spec.get("train") or {}).get("data", ""), "")
        found = self.made(data)
        return int(found.spec.get("row_tokens") or found.spec.get("maximum_row_tokens") or LONG) if found else LONG

    def corpus(self, made: Made, depth: int = 4) -> str | None:
        """The text that all this comes from, by name; of rows without a text their kind."""
        if made.kind == "corpus":
            return corpus_name(made.spec)
        for role in ("corpus", "shards", "rows"):
            found = self.made(made.inputs.get(role, "")) if depth else None
            if found is not None and (name := self.corpus(found, depth - 1)):
                return name
        return str(made.spec.get("kind")) if made.kind == "rows" else None

    def made(self, artifact: str) -> Made | None:
        """None for what is neither planned nor there."""
        stage = self.stages.get(artifact)
        if stage is not None:
            kind = {"tokenise": "shards", "pretrain": "checkpoint"}.get(stage.kind, stage.kind)
            return Made(kind, stage.spec.model_dump(mode="json"), stage.inputs, stage.spec)
        if not artifact or not self.store.exists(artifact):
            return None
        manifest = self.store.manifest(artifact)
        return Made(manifest.kind, manifest.spec, manifest.inputs)

    @cached_property
    def stages(self) -> dict[str, Stage]:
        return {stage.artifact: stage for stage in self.plan.stages.values()}


def parameters(about: About, spec: Spec) -> dict[str, Any]:
    """What a run's parameters say: the facts, then the spec; a field of the spec named like a fact is `spec.<field>`."""
    found = dict(about.facts)
    for name, value in flat(spec.model_dump(mode="json")).items():
        if value is None:
            continue
        if name not in found:
            found[name] = value
        elif str(found[name]) != str(value):
            found[f"spec.{name}"] = value
    return dict(list(found.items())[:PARAMS])


def size_of(preset: str) -> str:
    """What follows the first dash of a preset, as an alias can carry it: jrt-tiny -> tiny, based-1.3b -> 1-3b."""
    rest = preset.partition("-")[2] or preset
    return re.sub(r"[^a-z0-9]+", "-", rest.lower()).strip("-")


def corpus_name(spec: dict[str, Any]) -> str:
    """A few words for a corpus."""
    if spec.get("source") == "files":
        return ", ".join(Path(path).name for path in (spec.get("paths") or ()))[:100] or "files"
    if spec.get("source") == "huggingface":
        return str(spec.get("dataset") or "huggingface")
    return str(spec.get("source") or "")


def device(spec: Spec) -> str:
    """Where the work happens, as far as it was asked for."""
    if isinstance(spec, PretrainSpec):
        return "cuda" if spec.train.gpus_per_worker else "cpu"
    return str(getattr(spec, "device", None) or ("cuda" if getattr(spec, "gpus_per_actor", 0) else "cpu"))


def _cost(config: Any, length: int) -> dict[str, Any]:
    """Parameters and state of a model, counted without its weights."""
    from models.sizing import Sketch

    sketch = Sketch(config)
    cost = sketch.cost(min(length, sketch.able.max_length or length))
    return {"parameters": cost.parameters, "state_bytes": cost.state_bytes}
