"""What a flow run is called: `pretrain jrt-tiny on pydocs, 2.0M tokens`. Reads manifests alone, starts and trains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.artifacts import Store
from storage.errors import RereadError
from tasks.external import is_external, label

LONGEST = 60        # of a name that somebody else gave [characters]


def model(store: Store, checkpoint: str) -> str:
    """`jrt-tiny` of a checkpoint, `quick-pydocs@best-tiny` of a registered version, else what was given."""
    from flows.forms.checkpoints import REGISTERED, resolve

    if checkpoint.startswith(REGISTERED):
        return checkpoint.removeprefix(REGISTERED).replace("/", " version ")
    with suppress(RereadError):
        if is_external(checkpoint):
            return label(checkpoint)
        made = store.manifest(resolve(store, checkpoint))
        return str(made.spec.get("preset") or made.counts.get("model") or made.counts["architecture"])
    return checkpoint[:LONGEST]


def text(corpus: Any, otherwise: str = "pydocs") -> str:
    """`pydocs`, the first file, or the data set."""
    if corpus is None:
        return otherwise
    if corpus.source == "files":
        return places(corpus.paths)
    return (corpus.dataset or "").rpartition("/")[2] if corpus.source == "huggingface" else corpus.source


def places(paths: Sequence[str]) -> str:
    """`dev.json` or `a.jsonl and 2 more`"""
    first = (Path(paths[0]).name if paths else "files")[:LONGEST]
    return f"{first} and {len(paths) - 1} more" if len(paths) > 1 else first


def count(number: int | float, what: str) -> str:
    """`1 order`, `3 orders`, `2.0M tokens`"""
    return f"{short(number)} {what}{'' if number == 1 else 's'}"


def short(number: int | float) -> str:
    """`512`, `12k`, `2.0M`, `1.3B`"""
    for size, letter, places_ in ((1e9, "B", 1), (1e6, "M", 1), (1e4, "k", 0)):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.{places_}f}{letter}"
    return f"{number:g}"


def joined(*parts: str | None) -> str:
    """The parts that there are, with commas."""
    return ", ".join(part for part in parts if part)


def run_name() -> str:
    """The name of the flow run that is about to begin; the flow's own name where the form does not say what to do."""
    from prefect import runtime

    name = str(runtime.flow_run.flow_name)
    with suppress(Exception):          # a run must not fail over its name, and a wrong form is told by the flow itself
        from flows.forms.forms import FORMS

        return FORMS[name].model_validate(runtime.flow_run.parameters["request"]).to_request().title(Store())
    return name
