"""`--dry-run`: which artifacts exist, which will be made, and what that takes."""

from __future__ import annotations

from typing import Any

from flows.commands.output import document, say, size, table
from flows.planning.plan import Plan, Stage
from storage.artifacts import Store
from tasks.specs import PretrainSpec

STATE_LENGTH = 2048
BYTES_PER_TOKEN = 4          # of rows and shards, ids of 16 bits with their labels and starts
PYDOCS_BYTES = 60_000_000    # documents of the default corpus, measured
SMALL_BYTES = 2_000_000      # prompts, scores, timings, a report with plots


def describe(planned: Plan, store: Store, json: bool) -> None:
    facts = gather(planned, store)
    if json:
        document(facts)
        return
    table(["", "stage", "artifact"],
          [["exists" if stage.exists else "make", stage.title, stage.artifact] for stage in planned.stages.values()])
    missing = sum(not stage.exists for stage in planned.stages.values())
    say(f"\n{missing} of {len(planned.stages)} artifacts to make"
        + ("; nothing to do: what was asked for exists" if planned.finished else ""))
    say(f"{facts['tokens']:,} training tokens, about {size(facts['disk_bytes'])} of disk under {store.root}")
    if facts["parameters"]:
        table(["model", "parameters", f"state after {STATE_LENGTH} tokens"],
              [[name, f"{count:,}", size(facts["state_bytes"][name])] for name, count in facts["parameters"].items()],
              right=("parameters", f"state after {STATE_LENGTH} tokens"))


def gather(planned: Plan, store: Store) -> dict[str, Any]:
    """{artifacts, parameters by model, tokens to train, state_bytes by model, disk_bytes to write}."""
    parameters, state_bytes = {}, {}
    for stage in planned.stages.values():
        if isinstance(stage.spec, PretrainSpec):
            name = "/".join(stage.key.split("/")[::2][:2])
            if name not in parameters:
                parameters[name], state_bytes[name] = cost(stage.spec)
    missing = planned.missing()
    return {"artifacts": [{"id": stage.artifact, "kind": stage.artifact.rpartition("-")[0], "exists": stage.exists}
                          for stage in planned.stages.values()],
            "parameters": parameters, "tokens": sum(stage.tokens for stage in missing),
            "state_bytes": state_bytes, "disk_bytes": int(sum(disk(stage, parameters) for stage in missing))}


def cost(spec: PretrainSpec) -> tuple[int, int]:
    """Parameters of a model and bytes of its state, without its weights."""
    from models.sizing import Sketch
    from tasks.pretrain import resolve_config

    found = Sketch(resolve_config(spec)).cost(STATE_LENGTH)
    return found.parameters, found.state_bytes


def disk(stage: Stage, parameters: dict[str, int]) -> float:
    """A rough figure, so that nobody starts a study that cannot end."""
    if stage.kind == "corpus":
        return PYDOCS_BYTES
    if stage.kind == "tokenise":
        return PYDOCS_BYTES / 2
    if stage.kind == "rows":
        tokens = getattr(stage.spec, "tokens", None) or stage.spec.batches * stage.spec.batch_tokens
        return tokens * BYTES_PER_TOKEN
    if stage.kind == "pretrain":
        return parameters["/".join(stage.key.split("/")[::2][:2])] * 4
    return SMALL_BYTES
