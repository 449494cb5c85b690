"""The data that a stage reads, as MLflow shows it: names, digests that are artifact ids, where they lie, what they hold."""

from __future__ import annotations

from typing import Any

from flows.overrides import flat
from flows.recording.about import About
from storage.artifacts import Store

READ = {"rows": "training", "shards": "training", "corpus": "training", "prompts": "evaluation", "questions": "training"}
MEASURING = "evaluation"


def datasets(store: Store, inputs: dict[str, Any], about: About) -> list[dict[str, Any]]:
    """One entry an input that is data (not weights). A training that reads rows names these, not the shards below."""
    training = about.facts.get("kind") in ("training", "trial")
    found = {role: artifact for role, artifact in inputs.items() if role in READ and isinstance(artifact, str)
             and store.exists(artifact)}
    if training and "rows" in found:
        found.pop("shards", None)
    return [{"name": name_of(role, about), "digest": artifact, "context": READ[role] if training else MEASURING,
             "source": f"{store.root.rstrip('/')}/artifacts/{artifact}", "profile": counts(store.manifest(artifact).counts)}
            for role, artifact in found.items()]


def name_of(role: str, about: About) -> str:
    """`pydocs rows`, `fda prompts`."""
    of = about.facts.get("task") if role == "prompts" else about.facts.get("corpus")
    return f"{of or about.facts.get('workload') or 'data'} {role}"


def counts(found: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a manifest by dotted name, a few levels deep."""
    numbers = {name: value for name, value in flat(found).items()
               if isinstance(value, (int, float)) and not isinstance(value, bool)}
    return dict(list(numbers.items())[:40])
