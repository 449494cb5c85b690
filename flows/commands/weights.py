"""`reread export`, `reread import`: checkpoints to transformers' format and back."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from flows.commands.lineage import package_version, provenance
from flows.commands.look import check_ours, whole
from flows.commands.output import document, say, size
from models.adapters.card import Provenance
from storage import logs
from storage.artifacts import Manifest, Store
from storage.errors import ArtifactError, ConfigError
from storage.manifest import MANIFEST, read_manifest

TOKENIZER, CARD = "tokenizer", "README.md"

log = logs.get("flows.weights")


def export_weights(checkpoint: str, target: str, force: bool, json: bool) -> None:
    from models.adapters.folders import check_free, whole_folder

    check_free(Path(target).absolute(), force)
    store = Store()
    folder, manifest = _found(checkpoint, store)
    _check_apart(folder, Path(target))
    with whole_folder(target, force) as work:
        known = write_folder(folder, manifest, store, work)
    _tell(Path(target).absolute(), {"checkpoint": known.name, "scores": len(known.scores),
                                    "tokenizer": known.tokenizer}, json)


def write_folder(folder: Path, manifest: Manifest | None, store: Store, work: Path, weights: bool = True) -> Provenance:
    """The checkpoint in `folder` as a folder for transformers: weights, tokenizer and card, or the card alone."""
    from models import load_model
    from models.adapters.card import model_card
    from models.adapters.export import export_model
    from tasks.hub_tokenizer import hub_form

    model = load_model(folder)
    ours, hub = hub_form(folder / TOKENIZER) if (folder / TOKENIZER).is_dir() else (None, None)
    known = provenance(manifest.id if manifest else folder.name, folder, manifest, store, ours)
    if weights:
        export_model(model, work, hub, package_version())
        if ours is not None:
            ours.save(work / TOKENIZER)
    (work / CARD).write_text(model_card(model, known), encoding="utf-8")
    return known


def import_weights(path: str, target: str | None, preset: str | None, tokenizer: str | None, force: bool, json: bool) -> None:
    from models.adapters.folders import check_free, whole_folder
    from tasks.import_weights import SUMMARY, run, write

    source = Path(path).absolute()
    if target is not None:
        check_free(Path(target).absolute(), force)
        _check_apart(source, Path(target))
        with whole_folder(target, force) as work:
            facts = write(source, work, preset, tokenizer)
        folder = Path(target).absolute()
    else:
        store = Store()
        identifier = run(source, store, preset, tokenizer)
        folder = store.path(identifier)
        facts = {"checkpoint": identifier, **json_format.loads((folder / SUMMARY).read_text(encoding="utf-8"))}
    for note in facts["notes"]:
        log.warning("%s", note)
    if facts["tokenizer"] is None and tokenizer is None:
        log.warning("no tokenizer lies beside these weights, so evaluate cannot read text with them; --tokenizer NAME adds one")
    _tell(folder, facts if json else {name: value for name, value in facts.items() if name not in ("notes", "seed")}, json)


def _check_apart(source: Path, target: Path) -> None:
    """ConfigError where writing `target` would delete what is read, which --force must not do."""
    if source.resolve().is_relative_to(target.resolve()):
        raise ConfigError(f"{target} holds what is read, {source}, and would replace it; choose another folder")


def _found(checkpoint: str, store: Store) -> tuple[Path, Manifest | None]:
    """Folder and manifest of a checkpoint artifact, its bytes checked, or of a plain model folder.

    :raises ArtifactError: neither, or an artifact of another kind
    """
    folder = Path(checkpoint)
    if folder.is_dir():
        check_ours(folder, f"export takes a checkpoint of reread, and `reread import {folder}` makes a Mamba one")
        return folder, read_manifest(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    identifier = whole(store, checkpoint)
    manifest = store.manifest(identifier)
    if manifest.kind != "checkpoint":
        raise ArtifactError(f"{identifier} is a {manifest.kind} artifact, expected a checkpoint; "
                            "`reread list --kind checkpoint` shows those there are")
    store.verify(identifier)
    return store.path(identifier), manifest


def _tell(folder: Path, facts: dict[str, object], json: bool) -> None:
    files = [{"path": path.relative_to(folder).as_posix(), "size": path.stat().st_size}
             for path in sorted(folder.rglob("*")) if path.is_file()]
    if json:
        document({**facts, "folder": str(folder), "files": files})
        return
    for name, value in facts.items():
        say(f"{name:20} {'none' if value is None else value}")
    for one in files:
        say(f"{one['path']:30} {size(one['size']):>10}")
    say(f"\n{folder}")
