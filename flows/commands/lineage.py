"""What the store knows of a checkpoint: its data back to the corpus, its training, its scores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from models.adapters.card import Provenance, Source
from storage.artifacts import Manifest, Store
from storage.errors import ArtifactError

SUMMARY = "summary.json"
TRIAL = "trial_"          # how the inputs of a training name the trials of its sweep


def provenance(name: str, folder: Path, manifest: Manifest | None, store: Store, tokenizer: Any) -> Provenance:
    """Everything that the card says; of a folder without a manifest only its summary, if it has one."""
    path = folder / SUMMARY
    training = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    told = {"name": name, "version": package_version(), "training": training,
            "tokenizer": getattr(tokenizer, "name", None), "end_of_text": getattr(tokenizer, "end_of_text", None)}
    if manifest is None:
        return Provenance(**told)
    return Provenance(**told, commit=manifest.git_commit, created=manifest.created, preset=manifest.spec.get("preset"),
                      settings=_settings(manifest.spec.get("train") or {}, training),
                      sources=[_source(role, identifier, found) for role, identifier, found in _upstream(manifest, store)],
                      scores=list(_scores(manifest.id, store)))


def package_version() -> str:
    """The installed version of this package."""
    try:
        return metadata.version("reread")
    except metadata.PackageNotFoundError:
        return "of an unpackaged source tree"


def _settings(train: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    """By name, a swept field at the value that its trials chose, which is not the one that was written down."""
    swept = training.get("sweep") or {}
    given = {f"{part}.{name}": value for part in ("optimiser", "objective") for name, value in (train.get(part) or {}).items()}
    given |= {swept["field"]: swept["chosen"]} if swept else {}
    optimiser = {name.removeprefix("optimiser."): value for name, value in given.items() if name.startswith("optimiser.")}
    tried = ", ".join(f"{trial['value']:g}" for trial in swept.get("trials", ()))
    found = {"objective": training.get("objective", given.get("objective.kind")),
             "optimiser": optimiser.get("kind"), "learning rate": optimiser.get("learning_rate"),
             "learning rate of matrices": optimiser.get("matrix_learning_rate") if optimiser.get("kind") == "muon" else None,
             "chosen on validation rows": f"{swept['field']} {swept['chosen']:g} among {tried}" if swept else None,
             "schedule": optimiser.get("schedule"), "weight decay": optimiser.get("weight_decay"),
             "precision": train.get("precision")}
    return {name: value for name, value in found.items() if value is not None}


def _upstream(manifest: Manifest, store: Store) -> Iterator[tuple[str, str, Manifest | None]]:
    """(role, id, manifest) of every artifact behind this one, nearest first, each once; None = not in this store. Trials
    of a sweep are left out: they chose a setting, nothing was learnt from them."""
    seen: set[str] = set()
    waiting = [(role, identifier) for role, identifier in manifest.inputs.items() if not role.startswith(TRIAL)]
    while waiting:
        role, identifier = waiting.pop(0)
        if identifier in seen:
            continue
        seen.add(identifier)
        try:
            found = store.manifest(identifier)
        except ArtifactError:
            found = None
        yield role, identifier, found
        waiting += list(found.inputs.items()) if found else []


def _source(role: str, identifier: str, manifest: Manifest | None) -> Source:
    if manifest is None:
        return Source(role, identifier, "not in this store any more")
    describe = {"rows": _rows, "shards": _shards, "corpus": _corpus}.get(manifest.kind)
    return Source(role, identifier, describe(manifest) if describe else f"a {manifest.kind} artifact")


def _rows(manifest: Manifest) -> str:
    counts = manifest.counts
    return f"{counts['rows']:,} {manifest.spec.get('kind', '')} rows of {counts['tokens']:,} tokens".replace("  ", " ")


def _shards(manifest: Manifest) -> str:
    splits = manifest.counts.get("splits") or {}
    cut = ", ".join(f"{name} {one['tokens']:,}" for name, one in splits.items())
    return f"tokens of tokenizer `{manifest.spec.get('tokenizer')}`: {cut or 'not counted'}"


def _corpus(manifest: Manifest) -> str:
    spec, counts = manifest.spec, manifest.counts
    made_of = spec.get("packages") or spec.get("files") or spec.get("revision") or {}
    if isinstance(made_of, dict):
        shown = [f"{name} {str(mark)[:12]}" for name, mark in list(made_of.items())[:24]]
        made_of = ", ".join(shown) + (f" and {len(made_of) - 24} more" if len(made_of) > 24 else "")
    documents = f"{counts.get('documents', 0):,} documents, {counts.get('characters', 0):,} characters"
    splits = ", ".join(f"{name} {count:,}" for name, count in (counts.get("by_split") or {}).items())
    return f"source `{spec.get('source')}` ({made_of}): {documents} ({splits})"


def _scores(checkpoint: str, store: Store) -> Iterator[dict[str, Any]]:
    """Rows of every `scores` artifact of this checkpoint, the controls' own rows left out."""
    for manifest in store.list("scores"):
        if manifest.inputs.get("checkpoint") != checkpoint:
            continue
        path = store.path(manifest.id) / "scores.json"
        for row in json.loads(path.read_text(encoding="utf-8")):
            if row.get("control", "none") == "none":
                yield {**row, "artifact": manifest.id, "prompts": manifest.inputs.get("prompts", "unknown")}
