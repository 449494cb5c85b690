"""Artifacts: folders named by what produced them, complete exactly when they hold `manifest.json`.

    <root>/artifacts/<id>/manifest.json   written last and atomically, before the folder gets its final name
    <root>/work/<id>/                     where a stage builds; it survives a kill, so the next attempt can resume in it
    <root>/work/<id>.lock                 held (flock) by the one producer; freed by the kernel when it dies. Its first
                                          line is the producer's pid, the others are the artifacts that it reads
    <root>/.gate                          shared by producers while they write that down, exclusive to who removes artifacts

The order of events in `Store.produce` is: build, mark as built, hash, manifest, rename. A kill between any two leaves
nothing that looks complete, and the next attempt goes on from there without building twice.
At an fsspec URL the same happens in a local cache first (see `storage/remote.py`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from storage import logs
from storage.errors import ArtifactError
from storage.home import absolute, home, is_url, local_home
from storage.identity import canonical
from storage.manifest import (
    MANIFEST,
    Manifest,
    belongs,
    check_file,
    file_sha256,
    inventory,
    parse_manifest,
    read_manifest,
    sizes,
    write_atomically,
    write_manifest,
)
from storage.provenance import git_commit, library_versions
from storage.remote import Mirror

__all__ = ["Manifest", "Store", "artifact_id", "file_sha256"]

BUILT = ".built.json"
_FULL_OR_READ_ONLY = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_UNWRITABLE = _FULL_OR_READ_ONLY | {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOENT}

log = logs.get("storage.artifacts")


def artifact_id(kind: str, spec: dict, inputs: dict[str, str], code: str) -> str:
    """`<kind>-<16 hex>`: the same for the same work, everywhere."""
    named = canonical({"kind": kind, "spec": spec, "inputs": inputs, "code": code})
    return f"{kind}-{hashlib.sha256(named.encode()).hexdigest()[:16]}"


class Store:
    """All artifacts below one root, a local folder or an fsspec URL. Opening a store touches nothing."""

    def __init__(self, root: str | os.PathLike | None = None) -> None:
        self.root = absolute(root) if root is not None else home()
        self.folder = local_home(self.root)
        self.mirror = Mirror(self.root) if is_url(self.root) else None

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    # ---------------------------------------------------------------------------------------------------- reading
    def exists(self, identifier: str) -> bool:
        """True when the artifact is complete."""
        if self.mirror:
            return self.mirror.exists(identifier)
        return os.path.isfile(self._local(identifier) / MANIFEST)

    def manifest(self, identifier: str) -> Manifest:
        """The manifest; `ArtifactError` when there is none or it cannot be read."""
        path = self._local(identifier) / MANIFEST
        if path.is_file():
            return read_manifest(path, identifier)
        if self.mirror:
            return parse_manifest(self.mirror.read_manifest(identifier), self.mirror.address(identifier), identifier)
        raise ArtifactError(f"no complete artifact {identifier} under {self.root}; `reread list` shows those there "
                            "are; run the stage that makes it, or set REREAD_HOME to where it was made")

    def path(self, identifier: str) -> Path:
        """The local folder of a complete artifact; from a URL it is fetched into the cache first.

        The folder's time of change becomes now: it tells when the artifact was last used.
        """
        folder = self._local(identifier)
        if self.mirror and not (folder / MANIFEST).is_file():
            with self._writable(), self._lock(identifier):
                if not (folder / MANIFEST).is_file():
                    self._fetch(identifier)
        self.manifest(identifier)
        with suppress(OSError):              # a store that is only read
            os.utime(folder)
        return folder

    def list(self, kind: str | None = None) -> list[Manifest]:
        """All complete artifacts, oldest first. A broken manifest is reported in the log and left out."""
        names = self.mirror.names() if self.mirror else _names(self.folder / "artifacts")
        found = []
        for name in names:
            if (kind is None or name.rpartition("-")[0] == kind) and self.exists(name):
                try:
                    found.append(self.manifest(name))
                except ArtifactError as error:
                    log.warning("%s", error)
        return sorted(found, key=lambda manifest: (manifest.created, manifest.id))

    def verify(self, identifier: str) -> None:
        """Read every file and compare it with the manifest; `ArtifactError` names the first that differs."""
        folder = self.path(identifier)
        for entry in self.manifest(identifier).files:
            check_file(folder / entry["path"], entry)

    # ---------------------------------------------------------------------------------------------------- writing
    def produce(self, kind: str, spec: dict, inputs: dict[str, str], code: str,
                build: Callable[[Path], dict | None], version: str = "1") -> str:
        """Make sure the artifact exists, by calling `build(folder)` if need be, and return its id.

        `build` works in a stable folder that may hold what an earlier, killed attempt left there, and returns counts
        (or None). Files whose name starts with "." or ends with ".partial" do not become part of the artifact. While
        another process produces the same artifact, this one waits and then adopts the result. What `build` raises is
        passed on and leaves no manifest; a full or read-only disk becomes one `ArtifactError`.
        """
        identifier = artifact_id(kind, spec, inputs, code)
        if self.exists(identifier):
            return identifier
        with self._writable(), self._lock(identifier, reads=inputs.values()):
            if self.exists(identifier):
                log.info("%s was made by another process meanwhile", identifier)
                return identifier
            final = self._local(identifier)
            if not (final / MANIFEST).is_file():
                work = self.folder / "work" / identifier
                if not self._has_valid_manifest(work, identifier):
                    built = self._build(identifier, work, build)
                    facts = {"kind": kind, "id": identifier, "spec": json.loads(canonical(spec)), "inputs": inputs,
                             "code": code, "version": version, "libraries": library_versions(),
                             "git_commit": git_commit(), "created": datetime.now(UTC).isoformat(timespec="seconds")}
                    write_manifest(work, Manifest(**facts, **built, files=inventory(work)))
                self._publish(work, final)
            if self.mirror:
                self.mirror.upload(final, self.manifest(identifier))
        return identifier

    def clean(self, older_than: float) -> list[str]:
        """Remove what attempts left in work/ that ended more than `older_than` seconds ago; returns their ids.

        Such folders stay when a stage fails for good, or when its code or spec changed before it was run again. One
        that is being worked in is locked and stays.
        """
        removed = []
        for name in _names(self.folder / "work"):
            work = self.folder / "work" / name
            with self._writable():
                newest = max((path.stat().st_mtime for path in (work, *work.rglob("*"))), default=0.0)
                if work.is_dir() and time.time() - newest > older_than:
                    with self._lock(name, wait=False) as held:
                        if held:
                            shutil.rmtree(work)
                            removed.append(name)
        return removed

    def _build(self, identifier: str, work: Path, build: Callable[[Path], dict | None]) -> dict:
        """Run `build` unless an earlier attempt finished it and was killed before its manifest."""
        work.mkdir(parents=True, exist_ok=True)
        marker = work / BUILT
        if marker.is_file():
            built = json.loads(marker.read_text())
            if built.pop("sizes") == sizes(work):
                log.info("%s was built by an attempt that died before its manifest; only that is left", identifier)
                return built
            marker.unlink()
        began = time.monotonic()
        try:
            counts = build(work) or {}
        except OSError as error:
            if error.errno in _FULL_OR_READ_ONLY:
                raise
            raise _Inner(error) from error
        built = {"counts": json.loads(canonical(counts)), "seconds": round(time.monotonic() - began, 3)}
        write_atomically(marker, canonical({**built, "sizes": sizes(work)}))
        return built

    def _has_valid_manifest(self, work: Path, identifier: str) -> bool:
        """True when an attempt was killed between its manifest and the rename, and the files are still as listed."""
        if not (work / MANIFEST).is_file():
            return False
        try:
            manifest = read_manifest(work / MANIFEST, identifier)
        except ArtifactError:
            manifest = None
        if manifest and {entry["path"]: entry["size"] for entry in manifest.files} == sizes(work):
            return True
        (work / MANIFEST).unlink()
        return False

    def _publish(self, work: Path, final: Path) -> None:
        """Give the finished folder its name. A folder of that name without manifest is debris and goes first."""
        for leftover in [path for path in work.rglob("*") if not belongs(path.relative_to(work))]:
            shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink(
                missing_ok=True)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            shutil.rmtree(final)
        os.rename(work, final)
        _sync(final.parent)

    def _fetch(self, identifier: str) -> None:
        """Bring an artifact from the URL into the cache, check every file, then give it its name."""
        work = self.folder / "work" / identifier
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        manifest = self.manifest(identifier)
        self.mirror.download(manifest, work)
        for entry in manifest.files:
            check_file(work / entry["path"], entry)
        write_manifest(work, manifest)
        self._publish(work, self._local(identifier))

    def _local(self, identifier: str) -> Path:
        if not identifier or "/" in identifier or identifier.startswith("."):
            raise ArtifactError(f"{identifier!r} is not an artifact id; ids look like 'shards-0123456789abcdef'")
        return self.folder / "artifacts" / identifier

    @contextmanager
    def _writable(self) -> Iterator[None]:
        """Turn "cannot write here" into one message; errors of `build` itself pass through untouched."""
        try:
            yield
        except _Inner as inner:
            raise inner.error from inner.error.__cause__
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            where = f" (at {error.filename})" if error.filename else ""
            raise ArtifactError(
                f"cannot write under {self.folder}: {error.strerror}{where}; free some space there or set REREAD_HOME "
                "to a folder that can be written") from error

    @contextmanager
    def gate(self, exclusive: bool = False) -> Iterator[None]:
        """Held for moments: shared to write down what a producer reads, exclusive to take artifacts away."""
        with open(self.folder / ".gate", "a") as held:
            fcntl.flock(held, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield

    @contextmanager
    def _lock(self, identifier: str, wait: bool = True, reads: Iterable[str] = ()) -> Iterator[bool]:
        """Hold work/<id>.lock, removed again while still held. If another holds it, wait, or else yield False."""
        path = self.folder / "work" / f"{identifier}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        told = 0.0
        while True:
            with open(path, "a+") as held:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not wait:
                        yield False
                        return
                    if time.monotonic() - told > 60 or not told:
                        told = time.monotonic()
                        held.seek(0)
                        log.info("waiting for %s, which process %s is making", identifier,
                                 held.readline().strip() or "?")
                    time.sleep(0.05)
                    continue
                if not _same_file(held.fileno(), path):   # its holder removed it while we waited
                    continue
                with self.gate():
                    held.truncate(0)
                    held.write("\n".join([str(os.getpid()), *reads]) + "\n")
                    held.flush()
                try:
                    yield True
                finally:
                    path.unlink(missing_ok=True)
                return


class _Inner(Exception):
    """Carries an OSError of a build past `_writable`, which speaks for the store only."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ArtifactError(f"cannot look into {folder}: {error.strerror}; set REREAD_HOME to a folder that can be read"
                            ) from error


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False
