"""Evaluation stage: a checkpoint answers prompts; every answer and every score with its interval are kept.

predictions.arrow  one row per prompt: item, document, task, column, uncommon, order, control, prompt (hash of its
                   text), prediction, ids, answers, correct (what the metric says: a number for f1 and rouge_l), tokens
                   (generated), seconds; every metric by name; error (its class, "" = right), truncated (all tokens that
                   were allowed were generated), loglikelihood (of the first answer [nats], NaN when there is none) and
                   answer_tokens (how many tokens it is the sum of)
scores.json        see tasks/scores.py
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.artifacts import Store, artifact_id
from storage.errors import SpecError
from storage.identity import code_hash
from storage.shards import RowTable, ShardWriter
from tasks.answer_errors import error_of
from tasks.likelihood import Likelihood, pairs, score
from tasks.loading import OUTSIDE, model_of, outside, tokenizer_of
from tasks.predictions import Answer, answer, distinct, key_of, threads
from tasks.scores import graded_or_not, rescore, score_rows
from tasks.scoring import ENOUGH, GRADED, METRICS, every_metric
from tasks.specs import EvaluateSpec

__all__ = ["SCHEMA", "plan", "rescore", "run", "score_rows"]

VERSION = "2"
ADAPTER = "models.adapters.hf_level"     # joins states of transformers models; found by name, like the adapter itself
SCHEMA = pa.schema([
    ("item", pa.string()), ("document", pa.string()), ("task", pa.string()), ("column", pa.string()),
    ("uncommon", pa.bool_()), ("order", pa.string()), ("control", pa.string()), ("prompt", pa.string()),
    ("prediction", pa.string()), ("ids", pa.list_(pa.int32())), ("answers", pa.list_(pa.string())),
    ("correct", pa.bool_()), ("tokens", pa.int32()), ("seconds", pa.float64()),
    *((name, pa.float32()) for name in METRICS), ("error", pa.string()), ("truncated", pa.bool_()),
    ("loglikelihood", pa.float64()), ("answer_tokens", pa.int32()),
])


def run(spec: EvaluateSpec, store: Store, checkpoint: str, prompts: str, mixers: Iterable[str] | None = None) -> str:
    """Answer the prompts and return the id of the `scores` artifact.

    checkpoint        an artifact, or a model of transformers as `hf:<folder or hub name>` (tasks/external.py), whose
                      checksum or commit is part of the identity
    mixers            kinds of mixer in the checkpoint, part of the identity; None = all there are, so that an edited
                      mixer never meets a stale score
    Raises SpecError when the evaluation asks for more generation than the prompts left room for.
    """
    def build(folder: Path) -> dict[str, Any]:
        written = store.manifest(prompts)
        if not outside(checkpoint):
            store.verify(checkpoint)                 # arrow files are checked when they are opened, weights are not
        table = RowTable(store.path(prompts) / "prompts.arrow")
        metric = written.counts["metric"] or spec.metric
        rows, missing = _answered(spec, written, table, checkpoint, store, folder)
        with ShardWriter(folder / "predictions.arrow", schema_of(metric)) as writer:
            for row in rows:
                writer.append(row)
        scores = score_rows(rows, spec)
        for row in scores:
            row["metric"] = metric
        (folder / "scores.json").write_text(json.dumps(scores, indent=1), encoding="utf-8")
        answered = {row["prompt"]: row for row in rows}.values()
        seconds = sum(row["seconds"] for row in answered)
        counts = {"examples": len(rows), "prompts": len(answered), "tokens": sum(row["tokens"] for row in answered),
                  "seconds_answering": round(seconds, 3),
                  "examples_per_second": round(len(answered) / seconds, 2) if seconds else None}
        if spec.likelihood:
            counts["without_likelihood"] = missing
        if outside(checkpoint):
            counts["source"] = checkpoint
        return counts

    return store.produce("scores", spec.model_dump(mode="json"), _inputs(checkpoint, prompts), _code(mixers, checkpoint),
                         build, VERSION)


def plan(spec: EvaluateSpec, store: Store, checkpoint: str, prompts: str,
         mixers: Iterable[str] | None = None) -> str:
    """The id that `run` would return; nothing is done, and the inputs need not exist."""
    return artifact_id("scores", spec.model_dump(mode="json"), _inputs(checkpoint, prompts), _code(mixers, checkpoint))


def schema_of(metric: str) -> pa.Schema:
    """SCHEMA, with numbers in `correct` for a graded metric."""
    if metric not in GRADED:
        return SCHEMA
    return SCHEMA.set(SCHEMA.get_field_index("correct"), pa.field("correct", pa.float64()))


def _inputs(checkpoint: str, prompts: str) -> dict[str, str]:
    elsewhere = outside(checkpoint)
    return {"checkpoint": elsewhere.identity(checkpoint) if elsewhere else checkpoint, "prompts": prompts}


def _answered(spec: EvaluateSpec, written: Any, table: RowTable, checkpoint: str, store: Store,
              folder: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The rows of predictions.arrow, in the order of the prompts, and why some have no likelihood."""
    room = written.spec["generation_tokens"]
    if spec.generation_tokens > room:
        raise SpecError(f"the evaluation generates {spec.generation_tokens} tokens, but the prompts {written.id} leave "
                        f"room for {room}; lower generation_tokens here or raise it in the cloze spec")
    tokenizer = tokenizer_of(checkpoint, store, spec.tokenizer)
    column = {name: table.column(name) for name in ("prompt", "tail", "tokens", "tail_tokens", "id", "document_id",
                                                    "column", "uncommon", "order", "control", "answers")}
    asked = distinct(column["prompt"], [int(n) for n in column["tokens"]], [int(n) for n in column["tail_tokens"]],
                     tokenizer, written.counts["end_of_text_first"], spec.keep_out)
    keys = [key_of(text) for text in column["prompt"]]
    scored, names, missing = [], [None] * len(keys), {}
    if spec.likelihood:
        scored, names, missing = pairs({prompt.key: prompt for prompt in asked},
                                       list(zip(keys, column["prompt"], column["answers"])), tokenizer)
    maximum_new = min(spec.generation_tokens, written.counts["generation_tokens"])      # a task may need fewer
    given, nats = _asked(spec, asked, scored, checkpoint, store, tokenizer, maximum_new, folder)
    metric, rows = written.counts["metric"] or spec.metric, []
    for k, key in enumerate(keys):
        own = {name: column[name][k] for name in ("prompt", "tail", "column", "order", "control", "answers")}
        rows.append({"item": column["id"][k], "document": column["document_id"][k], "task": written.spec["task"],
                     "uncommon": bool(column["uncommon"][k]),
                     **_row(own, given[key], nats.get(names[k]), metric, maximum_new), "prompt": key})
    return rows, missing


def _asked(spec: EvaluateSpec, asked: Sequence[Any], scored: Sequence[Any], checkpoint: str, store: Store, tokenizer: Any,
           maximum_new: int, folder: Path) -> tuple[dict[str, Answer], dict[str, Likelihood]]:
    """Answers by prompt key and likelihoods by their own, from this process or from actors."""
    from tasks.actors import Crew, wanted

    if wanted(spec):
        with Crew(store.root, checkpoint, spec, maximum_new) as crew:
            return crew.answer(asked, folder), crew.score(scored, folder) if scored else {}
    with threads(spec.threads):
        model = model_of(checkpoint, store, spec.dtype)
        given = answer(asked, model, tokenizer, spec, maximum_new, folder)
        return given, score(scored, model, tokenizer, spec, folder) if scored else {}


def _row(own: dict[str, Any], given: Answer, nats: Likelihood | None, metric: str, maximum_new: int) -> dict[str, Any]:
    """What one answer adds to its prompt's row."""
    metrics = every_metric(given.text, own["answers"])
    truncated = len(given.ids) == maximum_new
    error = error_of(given.text, own["answers"], metrics[metric] >= ENOUGH,
                     own["prompt"][:len(own["prompt"]) - len(own["tail"])], own["tail"], truncated)
    return {**{name: own[name] for name in ("column", "order", "control", "answers")}, "prediction": given.text,
            "ids": list(given.ids), "correct": graded_or_not(metric, metrics[metric]), "tokens": len(given.ids),
            "seconds": given.seconds, **metrics, "error": error, "truncated": truncated,
            "loglikelihood": nats.nats if nats else math.nan, "answer_tokens": nats.tokens if nats else 0}


def _code(mixers: Iterable[str] | None, checkpoint: str) -> str:
    """Hash of this stage, generation, and the trunk and mixers that may run, or the adapter."""
    if outside(checkpoint):
        return code_hash(["tasks.evaluate", "models.generate", OUTSIDE, ADAPTER])
    kinds = sorted(set(mixers)) if mixers is not None else _kinds()
    return code_hash(["tasks.evaluate", "models.checkpoint", "models.generate",
                      *(f"models.mixers.{kind}" for kind in kinds)])


def _kinds() -> list[str]:
    """Names of the mixer files, found without importing torch. One that does not parse is in no checkpoint."""
    [folder] = importlib.util.find_spec("models").submodule_search_locations
    return sorted(path.stem for path in Path(folder, "mixers").glob("*.py") if path.stem != "__init__" and _parses(path))


def _parses(path: Path) -> bool:
    facts = path.stat()
    return _readable(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4096)
def _readable(path: Path, modified: int, size: int) -> bool:
    """Of a file as it was then; a plan asks for every checkpoint."""
    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return True
