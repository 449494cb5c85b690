"""Comparing files with the checksums in the manifest of their artifact, each once per process and modification."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from storage.errors import ShardError
from storage.manifest import MANIFEST, Manifest, file_sha256, read_manifest

REMEDY = "delete its artifact folder and run the stage again"


def verify_folder(folder: Path) -> None:
    """Check all `.arrow` files of a folder, and that none that the manifest lists is missing."""
    found = _manifest(folder)
    if found:
        root, manifest = found
        for entry in manifest.files:
            path = root / entry["path"]
            if path.parent == folder.absolute() and path.suffix == ".arrow" and not path.is_file():
                raise ShardError(f"{path} is missing though {root / MANIFEST} lists it; {REMEDY}")
    verify_files(sorted(folder.glob("*.arrow")))


def verify_files(files: Iterable[Path]) -> None:
    """`ShardError` names the first file whose bytes differ; files that no manifest lists pass."""
    for path in files:
        entry = _recorded(path)
        if entry is None:
            continue
        facts = path.stat()
        found = _checksum(str(path), facts.st_ino, facts.st_mtime_ns, facts.st_size)
        if found != entry["sha256"]:
            raise ShardError(f"{path} is damaged: expected sha256 {entry['sha256']} ({entry['size']} bytes), found "
                             f"{found} ({facts.st_size} bytes); {REMEDY}")


@lru_cache(maxsize=4096)
def _checksum(path: str, inode: int, modified: int, size: int) -> str:
    return file_sha256(path)


def _recorded(path: Path) -> dict[str, Any] | None:
    found = _manifest(path.parent)
    if found is None:
        return None
    root, manifest = found
    name = path.absolute().relative_to(root).as_posix()
    return next((entry for entry in manifest.files if entry["path"] == name), None)


def _manifest(folder: Path) -> tuple[Path, Manifest] | None:
    """The artifact that a folder belongs to: its own manifest, or that of one of the two folders above."""
    folder = folder.absolute()
    for root in (folder, *folder.parents[:2]):
        if (root / MANIFEST).is_file():
            facts = (root / MANIFEST).stat()
            return root, _parsed(str(root / MANIFEST), facts.st_mtime_ns, facts.st_size)
    return None


@lru_cache(maxsize=64)
def _parsed(path: str, modified: int, size: int) -> Manifest:
    return read_manifest(Path(path))
