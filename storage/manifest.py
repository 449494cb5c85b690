"""The manifest of an artifact, and the checks of files against it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import ArtifactError

MANIFEST = "manifest.json"


class Manifest(BaseModel):
    """What an artifact is, where it came from and which bytes it has."""

    model_config = ConfigDict(extra="allow")

    kind: str
    id: str
    spec: dict[str, Any]
    inputs: dict[str, str]              # role -> artifact id
    code: str                           # storage.identity.code_hash of the stage
    version: str                        # of the stage, for people
    libraries: dict[str, str]           # distribution -> version
    git_commit: str | None              # of the source tree; "+changes" when it had uncommitted ones
    files: list[dict[str, Any]]         # {path, size [bytes], sha256}
    counts: dict[str, Any]
    seconds: float                      # wall time of the attempt that finished the build
    created: str                        # UTC, ISO 8601
    folder: str = ""                    # at a URL: where the files lie below the artifact (one folder per upload)


def read_manifest(path: Path, identifier: str | None = None) -> Manifest:
    """Parse one manifest file; `ArtifactError` names the file and what to do."""
    return parse_manifest(path.read_bytes(), str(path), identifier)


def parse_manifest(content: bytes, where: str, identifier: str | None) -> Manifest:
    """Like `read_manifest`, of bytes from `where`."""
    remedy = "the artifact cannot be trusted: delete its folder and run the stage again"
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ArtifactError(f"{where} is damaged ({place + ': ' if place else ''}{first['msg']}); {remedy}") from error
    if identifier is not None and manifest.id != identifier:
        raise ArtifactError(f"{where} belongs to {manifest.id}, not to {identifier}; {remedy}")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it in one step; the folder counts as complete from then on."""
    write_atomically(folder / MANIFEST, manifest.model_dump_json(indent=1))


def file_sha256(path: str | os.PathLike) -> str:
    """sha256 (hex) of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, entry: dict[str, Any]) -> None:
    """Compare a file with its manifest entry {path, size, sha256}; `ArtifactError` says how it differs."""
    if not path.is_file():
        raise ArtifactError(f"{path} is missing though its manifest lists it; delete the artifact and run it again")
    if path.stat().st_size != entry["size"]:
        raise ArtifactError(f"{path} has {path.stat().st_size} bytes, its manifest says {entry['size']}; delete the "
                            "artifact and run it again")
    found = file_sha256(path)
    if found != entry["sha256"]:
        raise ArtifactError(f"{path} has sha256 {found}, its manifest says {entry['sha256']}; delete the artifact and "
                            "run it again")


def inventory(folder: Path) -> list[dict[str, Any]]:
    """Manifest entries {path, size, sha256} of a finished folder, its bytes forced to disk."""
    files = []
    for name, size in sorted(sizes(folder).items()):
        with open(folder / name, "rb") as file:
            os.fsync(file.fileno())
            files.append({"path": name, "size": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()})
    return files


def sizes(folder: Path) -> dict[str, int]:
    """Relative path -> bytes of every file that belongs to the artifact, the manifest left out."""
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*")
            if path.is_file() and belongs(path.relative_to(folder)) and path.relative_to(folder) != Path(MANIFEST)}


def belongs(path: Path) -> bool:
    """False for scratch files: a name that starts with "." or ends with ".partial"."""
    return not any(part.startswith(".") or part.endswith(".partial") for part in path.parts)


def write_atomically(path: Path, text: str) -> None:
    """All of the text or none of it, whatever happens meanwhile."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
