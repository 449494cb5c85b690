"""Artifacts at an fsspec URL. Files go up first, the manifest last, so that a reader sees all or nothing.

    <url>/artifacts/<id>/manifest.json
    <url>/artifacts/<id>/<upload>/<file>     one folder per upload: two machines that upload the same artifact at once
                                             never mix their files; the manifest names the folder that counts
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ArtifactError

if TYPE_CHECKING:
    from storage.manifest import Manifest


class Mirror:
    """The remote side of a store. Holds no connection until one is needed, so it can be sent to workers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: Any = None

    def __getstate__(self) -> dict:
        return {"url": self.url, "_opened": None}

    def address(self, identifier: str) -> str:
        return f"{self.url}/artifacts/{identifier}/manifest.json"

    def exists(self, identifier: str) -> bool:
        files, root = self._open()
        return files.exists(f"{root}/{identifier}/manifest.json")

    def names(self) -> list[str]:
        files, root = self._open()
        if not files.exists(root):
            return []
        return sorted(os.path.basename(path.rstrip("/")) for path in files.ls(root, detail=False))

    def read_manifest(self, identifier: str) -> bytes:
        files, root = self._open()
        try:
            return files.cat_file(f"{root}/{identifier}/manifest.json")
        except FileNotFoundError as error:
            raise ArtifactError(f"no complete artifact {identifier} at {self.url}; run the stage that makes it, or set "
                                "REREAD_HOME to where it was made") from error

    def upload(self, folder: Path, manifest: Manifest) -> None:
        """Copy the files of a complete local artifact, then its manifest."""
        files, root = self._open()
        target = f"{root}/{manifest.id}"
        upload = uuid.uuid4().hex[:8]
        for entry in manifest.files:
            place = f"{target}/{upload}/{entry['path']}"
            files.makedirs(os.path.dirname(place), exist_ok=True)
            files.put_file(str(folder / entry["path"]), place)
        files.makedirs(target, exist_ok=True)
        partial = f"{target}/{upload}-manifest.partial"
        files.pipe_file(partial, manifest.model_copy(update={"folder": upload}).model_dump_json(indent=1).encode())
        files.mv(partial, f"{target}/manifest.json")

    def leftovers(self, before: float) -> list[tuple[str, int, float]]:
        """(name, bytes, last change) of folders without manifest, to which nothing was added since `before` [s since 1970].
        Where the file system keeps no times, none: an upload under way looks the same."""
        files, root = self._open()
        found = []
        for name in self.names():
            if self.exists(name):
                continue
            entries = files.find(f"{root}/{name}", detail=True).values()
            times = [_time(entry) for entry in entries]
            if times and all(time is not None and time < before for time in times):
                found.append((name, sum(entry.get("size") or 0 for entry in entries), max(times)))
        return found

    def remove(self, identifier: str) -> bool:
        """Take an artifact away, its manifest first, so that whoever looks meanwhile finds all of it or none; False where
        there was no manifest, or somebody else was faster."""
        files, root = self._open()
        place = f"{root}/{identifier}"
        removed = False
        with suppress(FileNotFoundError):
            files.rm(f"{place}/manifest.json")
            removed = True
        with suppress(FileNotFoundError):
            files.rm(place, recursive=True)
        return removed

    def download(self, manifest: Manifest, folder: Path) -> None:
        files, root = self._open()
        for entry in manifest.files:
            local = folder / entry["path"]
            local.parent.mkdir(parents=True, exist_ok=True)
            source = "/".join(part for part in (root, manifest.id, manifest.folder, entry["path"]) if part)
            try:
                files.get_file(source, str(local))
            except FileNotFoundError as error:
                raise ArtifactError(f"{self.url}/artifacts/{manifest.id} lacks {entry['path']} though its manifest "
                                    "lists it; delete it and run the stage again") from error

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            import fsspec

            try:
                files, root = fsspec.url_to_fs(f"{self.url}/artifacts", use_listings_cache=False)
            except (ValueError, ImportError) as error:
                raise ArtifactError(f"REREAD_HOME {self.url!r} cannot be opened: {error}; use a folder or a URL that "
                                    "an installed fsspec driver knows") from error
            self._opened = (files, root.rstrip("/"))
        return self._opened


def _time(entry: dict[str, Any]) -> float | None:
    """When a file was written [s since 1970], under the names that file systems have for it."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = entry.get(name)
        if hasattr(value, "timestamp"):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    return None
