"""A `scores` artifact as JSONL, one object a prompt, with the fields of lm-evaluation-harness's samples.

doc_id, doc, target, arguments, resps, filtered_resps, filter, metrics, doc_hash, prompt_hash and target_hash are what
lm_eval logs when the prompts run there as exported tasks (tasks/harness/export.py), so that files of both can be joined
line by line. Beside them: the task's name, column, order, control, item, every metric of the evaluation, the class of the
error, the log-likelihood of the answer, whether the answer was cut off, its tokens and its seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.artifacts import Store
from storage.errors import ArtifactError
from storage.shards import RowTable
from tasks.harness.export import generation, read_prompts, task_names
from tasks.predictions import key_of

VALUES = ("correct", "contains", "exact", "squad_exact", "f1", "rouge_l")
FACTS = ("error", "loglikelihood", "truncated", "tokens", "seconds")


def export_samples(store: Store, scores: str, file: str | Path) -> int:
    """Write the file, whole or not at all, and return its number of lines.

    Raises ArtifactError for another kind of artifact, and where scores and prompts do not belong together.
    """
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    count = 0
    try:
        with partial.open("w", encoding="utf-8") as out:
            for sample in samples(store, scores):
                out.write(json.dumps(sample, ensure_ascii=False, allow_nan=False) + "\n")
                count += 1
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return count


def samples(store: Store, scores: str) -> Iterator[dict[str, Any]]:
    """The objects, in the order of the prompts."""
    manifest = store.manifest(scores)
    if manifest.kind != "scores":
        raise ArtifactError(f"{scores} is a {manifest.kind} artifact, expected scores; `reread list --kind scores` shows "
                            "those there are")
    written, docs = read_prompts(store, manifest.inputs["prompts"])
    rows = RowTable(store.path(scores) / "predictions.arrow").table.to_pylist()
    if [row["prompt"] for row in rows] != [key_of(doc["prompt"]) for doc in docs]:
        raise ArtifactError(f"{scores} does not answer the prompts of {written.id} in their order; evaluate them again")
    settings = {**generation(written), "max_gen_toks": min(written.counts["generation_tokens"],
                                                           manifest.spec["generation_tokens"])}
    seen: Counter[str] = Counter()
    for doc, row in zip(docs, rows):
        name = next(task_names(written.spec["task"], doc))
        yield _sample(name, seen[name], doc, row, settings)
        seen[name] += 1


def _sample(name: str, number: int, doc: dict[str, Any], row: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    metrics = {value: float(row[value]) for value in VALUES if value in row}
    target = str(doc["answers"])
    return {
        "doc_id": number, "doc": doc, "target": target,
        "arguments": {"gen_args_0": {"arg_0": doc["prompt"], "arg_1": settings}},
        "resps": [[row["prediction"]]], "filtered_resps": [row["prediction"]], "filter": "none",
        "metrics": list(metrics), "doc_hash": _hash(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _hash(doc["prompt"]), "target_hash": _hash(target), **metrics,
        "task": name, "item": row["item"], "column": row["column"], "order": row["order"], "control": row["control"],
        **{fact: _finite(row[fact]) for fact in FACTS if fact in row}}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
