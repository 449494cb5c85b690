"""Evaluation stage: a checkpoint answers prompts; every answer and every score with its interval are kept.

predictions.arrow  one row per prompt: item, document, task, column, uncommon, order, control, prompt (hash of its
                   text), prediction, ids, answers, correct, tokens (generated), seconds
scores.json        one row per column, order and control: n, documents, value, low, high (95 %, bootstrap over
                   documents), examples_per_second. Rows of control `none` also hold `controls`, the two controls'
                   scores, and `above_controls`, the paired difference on the same items: what is left above both is
                   recall. Its difference and interval are those against the control that leaves less (the lower `low`).

The column `uncommon` repeats those items of `natural` whose value a guesser would not say.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from storage.artifacts import Store, artifact_id
from storage.errors import SpecError
from storage.identity import code_hash
from storage.shards import RowTable, ShardWriter
from tasks.predictions import answer, distinct, key_of, threads
from tasks.scoring import metric
from tasks.specs import EvaluateSpec
from tasks.statistics import bootstrap, paired
from tasks.tokenizers import load_tokenizer

VERSION = "1"
OUTSIDE = "tasks.external"
EXAMPLES = 200      # rows of the table of examples in the tracking store
SCHEMA = pa.schema([
    ("item", pa.string()), ("document", pa.string()), ("task", pa.string()), ("column", pa.string()),
    ("uncommon", pa.bool_()), ("order", pa.string()), ("control", pa.string()), ("prompt", pa.string()),
    ("prediction", pa.string()), ("ids", pa.list_(pa.int32())), ("answers", pa.list_(pa.string())),
    ("correct", pa.bool_()), ("tokens", pa.int32()), ("seconds", pa.float64()),
])


def run(spec: EvaluateSpec, store: Store, checkpoint: str, prompts: str, tracking: Any = None, run_id: str = "",
        mixers: Iterable[str] | None = None) -> str:
    """Answer the prompts and return the id of the `scores` artifact.

    checkpoint        an artifact, or a model of transformers as `hf:<folder or hub name>` (tasks/external.py), whose
                      checksum or commit is part of the identity
    tracking, run_id  where examples and headline numbers are logged, if anywhere
    mixers            kinds of mixer in the checkpoint, part of the identity; None = all there are, so that an edited
                      mixer never meets a stale score
    Raises SpecError when the evaluation asks for more generation than the prompts left room for.
    """
    outside = _outside(checkpoint)
    inputs = {"checkpoint": outside.identity(checkpoint) if outside else checkpoint, "prompts": prompts}

    def build(folder: Path) -> dict[str, Any]:
        written = store.manifest(prompts)
        if not outside:
            store.verify(checkpoint)                 # arrow files are checked when they are opened, weights are not
        table = RowTable(store.path(prompts) / "prompts.arrow")
        rows = _answered(spec, written, table, checkpoint if outside else store.path(checkpoint), folder)
        with ShardWriter(folder / "predictions.arrow", SCHEMA) as writer:
            for row in rows:
                writer.append(row)
        scores = score_rows(rows, spec)
        for row in scores:
            row["metric"] = written.counts["metric"] or spec.metric
        (folder / "scores.json").write_text(json.dumps(scores, indent=1), encoding="utf-8")
        answered = {row["prompt"]: row for row in rows}.values()
        seconds = sum(row["seconds"] for row in answered)
        counts = {"examples": len(rows), "prompts": len(answered), "tokens": sum(row["tokens"] for row in answered),
                  "seconds_answering": round(seconds, 3),
                  "examples_per_second": round(len(answered) / seconds, 2) if seconds else None}
        if outside:
            counts["source"] = checkpoint
        if tracking is not None:
            _track(tracking, run_id, rows, scores, counts)
        return counts

    return store.produce("scores", spec.model_dump(mode="json"), inputs, _code(mixers, outside), build, VERSION)


def plan(spec: EvaluateSpec, store: Store, checkpoint: str, prompts: str,
         mixers: Iterable[str] | None = None) -> str:
    """The id that `run` would return; nothing is done, and the inputs need not exist."""
    outside = _outside(checkpoint)
    inputs = {"checkpoint": outside.identity(checkpoint) if outside else checkpoint, "prompts": prompts}
    return artifact_id("scores", spec.model_dump(mode="json"), inputs, _code(mixers, outside))


def _answered(spec: EvaluateSpec, written: Any, table: RowTable, checkpoint: Path | str,
              folder: Path) -> list[dict[str, Any]]:
    """The rows of predictions.arrow, in the order of the prompts. checkpoint: a folder, or `hf:...`."""
    import torch

    outside = _outside(checkpoint) if isinstance(checkpoint, str) else None
    room = written.spec["generation_tokens"]
    if spec.generation_tokens > room:
        raise SpecError(f"the evaluation generates {spec.generation_tokens} tokens, but the prompts {written.id} leave "
                        f"room for {room}; lower generation_tokens here or raise it in the cloze spec")
    tokenizer = outside.tokenizer_of(checkpoint) if outside else load_tokenizer(str(checkpoint / "tokenizer"))
    column = {name: table.column(name) for name in ("prompt", "tokens", "tail_tokens", "id", "document_id", "column",
                                                    "uncommon", "order", "control")}
    asked = distinct(column["prompt"], [int(n) for n in column["tokens"]], [int(n) for n in column["tail_tokens"]],
                     tokenizer, written.counts["end_of_text_first"], spec.keep_out)
    maximum_new = min(spec.generation_tokens, written.counts["generation_tokens"])      # a task may need fewer
    with threads(spec.threads):
        model = _model(outside, checkpoint, getattr(torch, spec.dtype), "cuda" if torch.cuda.is_available() else "cpu")
        answers = answer(asked, model, tokenizer, spec, maximum_new, folder)
    correct = metric(written.counts["metric"] or spec.metric)
    rows = []
    for k, expected in enumerate(table.column("answers")):
        given = answers[key_of(column["prompt"][k])]
        rows.append({
            "item": column["id"][k], "document": column["document_id"][k], "task": written.spec["task"],
            "column": column["column"][k], "uncommon": bool(column["uncommon"][k]), "order": column["order"][k],
            "control": column["control"][k], "prompt": key_of(column["prompt"][k]), "prediction": given.text,
            "ids": list(given.ids), "answers": expected, "correct": correct(given.text, expected),
            "tokens": len(given.ids), "seconds": given.seconds})
    return rows


def _model(outside: ModuleType | None, checkpoint: Path | str, dtype: Any, device: str) -> Any:
    if outside:
        return outside.load_external(checkpoint, dtype, device)
    from models import load_model

    return load_model(checkpoint, dtype, device)


def score_rows(rows: Iterable[dict[str, Any]], spec: EvaluateSpec) -> list[dict[str, Any]]:
    """scores.json from the rows of predictions.arrow."""
    cells: dict[tuple[str, str, str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        columns = [row["column"]] + (["uncommon"] if row["column"] == "natural" and row["uncommon"] else [])
        for column in columns:
            cells.setdefault((row["task"], column, row["order"], row["control"]), {})[row["item"]] = row
    found = []
    for (task, column, order, control), items in cells.items():
        seconds = sum(row["seconds"] for row in items.values())
        score = {"task": task, "column": column, "order": order, "control": control, "strategy": spec.strategy,
                 "keep_out": spec.keep_out, **_interval(items, spec),
                 "examples_per_second": round(len(items) / seconds, 2) if seconds else None}
        if control == "none":
            beside = {name: cells[task, column, order, name] for name in ("empty", "other")
                      if (task, column, order, name) in cells}
            score["controls"] = {name: _interval(each, spec) for name, each in beside.items()}
            score["above_controls"] = _above(items, beside, spec)
        found.append(score)
    return found


def _interval(items: dict[str, dict[str, Any]], spec: EvaluateSpec) -> dict[str, Any]:
    return bootstrap([row["correct"] for row in items.values()], [row["document"] for row in items.values()],
                     resamples=spec.bootstrap, seed=spec.seed).as_dict()


def _above(items: dict[str, dict[str, Any]], beside: dict[str, dict[str, dict[str, Any]]],
           spec: EvaluateSpec) -> dict[str, Any] | None:
    """Paired differences against each control, and first of all the one that leaves less."""
    against = {}
    for name, control in beside.items():
        both = [item for item in items if item in control]
        against[name] = paired(
            [items[item]["correct"] for item in both], [control[item]["correct"] for item in both],
            [items[item]["document"] for item in both], resamples=spec.bootstrap, seed=spec.seed)
    if not against:
        return None
    name, least = min(against.items(), key=lambda pair: _order(pair[1]))
    return {"difference": least.value, "low": least.low, "high": least.high, "control": name,
            "against": {each: {"difference": found.value, "low": found.low, "high": found.high}
                        for each, found in against.items()}}


def _order(interval: Any) -> tuple[float, float]:
    return tuple(float("-inf") if x is None else x for x in (interval.low, interval.value))


def _track(tracking: Any, run_id: str, rows: list[dict[str, Any]], scores: list[dict[str, Any]],
           counts: dict[str, Any]) -> None:
    """Headline numbers, and the first items of each column, order and control as a table of examples."""
    values = {f"above_controls/{row['column']}/{row['order']}": row["above_controls"]["difference"] for row in scores
              if row.get("above_controls") and row["above_controls"]["difference"] is not None}
    if counts["examples_per_second"]:
        values["examples_per_second"] = counts["examples_per_second"]
    tracking.metrics(run_id, values, step=0)
    cells = len({(row["column"], row["order"], row["control"]) for row in rows}) or 1
    taken: dict[tuple[str, str, str], int] = {}
    examples = []
    for row in rows:
        cell = (row["column"], row["order"], row["control"])
        taken[cell] = taken.get(cell, 0) + 1
        if taken[cell] <= max(1, EXAMPLES // cells):
            examples.append({name: row[name] for name in ("item", "column", "order", "control", "prediction", "answers",
                                                          "correct", "uncommon", "tokens")})
    tracking.table(run_id, examples, "examples")


def _outside(checkpoint: str) -> ModuleType | None:
    """tasks.external for a model of transformers. Imported by name, so that its code, and that of the adapter behind
    it, is part of the identity of what it evaluates and of nothing else."""
    return importlib.import_module(OUTSIDE) if checkpoint.startswith("hf:") else None


def _code(mixers: Iterable[str] | None, outside: ModuleType | None = None) -> str:
    """Hash of this stage, generation, and the trunk and mixers that may run, or the adapter."""
    if outside:
        return code_hash(["tasks.evaluate", "models.generate", OUTSIDE])
    kinds = sorted(set(mixers)) if mixers is not None else _kinds()
    return code_hash(["tasks.evaluate", "models.checkpoint", "models.generate",
                      *(f"models.mixers.{kind}" for kind in kinds)])


def _kinds() -> list[str]:
    """Names of the mixer files, found without importing torch. One that does not parse is in no checkpoint."""
    [folder] = importlib.util.find_spec("models").submodule_search_locations
    return sorted(path.stem for path in Path(folder, "mixers").glob("*.py") if path.stem != "__init__" and _parses(path))


def _parses(path: Path) -> bool:
    try:
        ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return True
