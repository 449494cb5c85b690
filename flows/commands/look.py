"""`reread show`, `reread list`: artifacts."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from flows.commands.output import document, say, size, table
from storage.artifacts import Store
from storage.errors import ArtifactError, ConfigError


def show_artifact(artifact: str, json: bool) -> None:
    store = Store()
    artifact = whole(store, artifact)
    manifest = store.manifest(artifact)
    if json:
        document(manifest.model_dump(mode="json", exclude={"folder"}))
        return
    say(f"{manifest.id}\n")
    rows = [["kind", manifest.kind], ["made", f"{manifest.created} in {manifest.seconds:.1f} s"],
            ["git commit", manifest.git_commit or "not from a repository"], ["code", manifest.code[:16]],
            ["folder", store.path(artifact)]]
    rows += [[f"from {role}", identifier] for role, identifier in manifest.inputs.items()]
    rows += [[name, value if isinstance(value, (str, int, float)) else json_format.dumps(value, ensure_ascii=False)]
             for name, value in manifest.counts.items()]
    table(["what", "value"], rows)
    say()
    table(["file", "size", "sha256"], [[one["path"], size(one["size"]), one["sha256"][:16]] for one in manifest.files],
          right=("size",))
    say(f"\nThe whole spec: reread show {manifest.id} --json")


def whole(store: Store, artifact: str) -> str:
    """The id that begins with what was given.

    :raises ArtifactError: none does, or several
    """
    if store.exists(artifact):
        return artifact
    found = [manifest.id for manifest in store.list() if manifest.id.startswith(artifact)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ArtifactError(f"{artifact} could be {', '.join(found[:8])}{' or others' if len(found) > 8 else ''}; "
                            "give more of it")
    raise ArtifactError(f"no artifact {artifact} under {store.root}; `reread list` shows those there are")


def check_ours(folder: Path, instead: str) -> None:
    """ConfigError for a model folder in transformers' format. instead: what to do with such a model."""
    from models.adapters.weight_files import read_config
    from tasks.external import exported

    kind = read_config(folder).get("model_type")
    if kind == "reread":
        raise ConfigError(exported(folder))
    if kind is not None:
        raise ConfigError(f"{folder} holds a {kind} model of transformers; {instead}")


def list_artifacts(kind: str | None, json: bool) -> None:
    found = Store().list(kind)
    if json:
        document([{"id": one.id, "kind": one.kind, "created": one.created, "seconds": one.seconds,
                   "bytes": sum(file["size"] for file in one.files), "inputs": one.inputs} for one in found])
        return
    table(["artifact", "made", "took", "size", "from"],
          [[one.id, one.created[:19].replace("T", " "), f"{one.seconds:.1f} s",
            size(sum(file["size"] for file in one.files)), ", ".join(sorted(one.inputs))[:60]] for one in found],
          right=("took", "size"))
