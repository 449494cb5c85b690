"""A `prompts` artifact as a folder of lm-evaluation-harness tasks, which run wherever lm_eval does, without this project.

    <task>.yaml    one task for each column, order and control
    <task>.jsonl   its prompts, one a line
    answers.py     reads the lines, and the metrics `contains` and `exact`
    README.md      how to run them

All tasks carry the tag `reread_<eval task>`. A prompt is a finished text: no template, no few-shot examples and no
white space are added; an answer ends at a line feed or after as many tokens as in an evaluation.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.artifacts import Store
from storage.errors import ArtifactError
from storage.manifest import Manifest
from storage.shards import RowTable

FILES = "tasks.harness.task_files.answers"
METRICS = ("contains", "exact")
UNTIL = ("\n",)
COLUMNS = ("id", "document_id", "column", "uncommon", "order", "control", "prompt", "tail", "answers", "tokens", "tail_tokens")


def export_prompts(store: Store, prompts: str, folder: str | Path) -> dict[str, int]:
    """Write the folder, made if need be, and return the number of prompts by task name.

    Raises ArtifactError where the artifact is no set of prompts, or its file is damaged.
    """
    manifest, docs = read_prompts(store, prompts)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tasks: dict[str, list[dict[str, Any]]] = {}
    for doc in docs:
        for name in task_names(manifest.spec["task"], doc):
            tasks.setdefault(name, []).append(doc)
    for name, each in tasks.items():
        lines = "".join(json.dumps(doc, ensure_ascii=False) + "\n" for doc in each)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        (folder / f"{name}.yaml").write_text(_yaml(name, manifest, each[0]), encoding="utf-8")
    source = Path(importlib.util.find_spec(FILES).origin)
    (folder / source.name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "README.md").write_text(_readme(manifest, tasks), encoding="utf-8")
    return {name: len(each) for name, each in tasks.items()}


def read_prompts(store: Store, prompts: str) -> tuple[Manifest, list[dict[str, Any]]]:
    """The manifest of a `prompts` artifact and its rows as the documents of a task."""
    manifest = store.manifest(prompts)
    if manifest.kind != "prompts":
        raise ArtifactError(f"{prompts} is a {manifest.kind} artifact, expected prompts; "
                            "`reread list --kind prompts` shows those there are")
    table = RowTable(store.path(prompts) / "prompts.arrow").table
    return manifest, table.select([name for name in COLUMNS if name in table.column_names]).to_pylist()


def task_names(task: str, doc: dict[str, Any]) -> Iterator[str]:
    """Names of the exported tasks in which a prompt stands: its column's, and `uncommon` where it is counted there."""
    columns = [doc["column"]] + (["uncommon"] if doc["column"] == "natural" and doc["uncommon"] else [])
    control = [] if doc["control"] == "none" else [doc["control"]]
    for column in columns:
        yield _plain("_".join(["reread", task, column, doc["order"], *control]))


def generation(manifest: Manifest) -> dict[str, Any]:
    """lm_eval's generation settings of these prompts."""
    return {"until": list(UNTIL), "max_gen_toks": manifest.counts["generation_tokens"], "do_sample": False}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)


def _yaml(name: str, manifest: Manifest, doc: dict[str, Any]) -> str:
    """One task. JSON is YAML, but for the functions, which lm_eval looks for in answers.py."""
    spec = manifest.spec
    settings = {
        "task": name, "tag": [_plain(f"reread_{spec['task']}")], "dataset_kwargs": {"jsonl": f"{name}.jsonl"},
        "test_split": "test", "output_type": "generate_until", "doc_to_text": "prompt", "doc_to_target": "answers",
        "target_delimiter": "", "num_fewshot": 0, "generation_kwargs": generation(manifest),
        "metadata": {"version": 1, "prompts": manifest.id, "template": spec.get("template"), "order": doc["order"],
                     "control": doc["control"], "end_of_text_first": manifest.counts["end_of_text_first"]}}
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
    lines += ["custom_dataset: !function answers.load", "metric_list:"]
    for metric in METRICS:
        lines += [f"  - metric: !function answers.{metric}", "    aggregation: mean", "    higher_is_better: true"]
    return "\n".join(lines) + "\n"


def _readme(manifest: Manifest, tasks: dict[str, list]) -> str:
    listed = "\n".join(f"| {name} | {len(each)} |" for name, each in tasks.items())
    first = ("In an evaluation of reread a model reads its end-of-text token before each prompt; `add_bos_token=True` among "
             "the model arguments does the same here." if manifest.counts["end_of_text_first"] else
             "A model reads nothing before a prompt.")
    return (f"# Prompts of `{manifest.spec['task']}` for lm-evaluation-harness\n\nWritten from {manifest.id} (tokenizer "
            f"{manifest.counts['tokenizer']}).\n\n    lm_eval --include_path <this folder> --tasks "
            f"{_plain('reread_' + manifest.spec['task'])} --model hf --model_args pretrained=...\n\n{first} `contains` is "
            "the share of prompts whose continuation holds an acceptable answer, letter case aside.\n\n"
            f"| task | prompts |\n|---|---|\n{listed}\n")
