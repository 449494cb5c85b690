"""Which artifacts and leftovers of a store can go, and taking them away so that nothing half-deleted looks complete.

An artifact stays if it is referred to, if it was made or used lately, if it is of a kind to be kept, if a stage that is
at work reads or makes it, or if anything that stays was made from it. One that goes is first given another name under
`<root>/pruned` (at a URL: loses its manifest), then deleted; what a kill leaves of that is a leftover of the next time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from storage.artifacts import Store
from storage.manifest import MANIFEST, Manifest

ID = re.compile(r"[a-z][a-z_]*-[0-9a-f]{16}(?![0-9a-f])")       # in a longer word too: what is mentioned stays
TRASH = "pruned"
ARTIFACT, WORK, DEBRIS, DELETED = "artifact", "unfinished work", "folder without manifest", "half-deleted artifact"


@dataclass(frozen=True)
class Waste:
    """Something that can go. `kind` groups it for people: the artifact's kind, or one of the constants above."""

    what: str               # ARTIFACT, WORK, DEBRIS or DELETED
    kind: str
    name: str
    bytes: int
    since: float            # made or last used [s since 1970]


def mentioned(text: str) -> set[str]:
    """Every artifact id in a text."""
    return set(ID.findall(text))


def unreferenced(store: Store, found: Collection[Manifest], referred: Collection[str], before: float,
                 kinds: Collection[str] = ()) -> list[Waste]:
    """The artifacts that can go, those made from others first.

    found    all artifacts of the store
    before   what was made or used since then stays [s since 1970]
    kinds    what is never taken
    """
    known = {one.id: one for one in found}
    used = {one.id: last_use(store, one) for one in found}
    stay = set(referred) | at_work(store) | {one.id for one in found if used[one.id] >= before or one.kind in kinds}
    waiting = list(stay)
    while waiting:
        one = known.get(waiting.pop())
        more = made_from(one) - stay if one else set()
        stay |= more
        waiting += more
    gone = [one for one in found if one.id not in stay]
    steps = _steps(known)
    return [Waste(ARTIFACT, one.kind, one.id, sum(file["size"] for file in one.files), used[one.id])
            for one in sorted(gone, key=lambda one: (-steps[one.id], one.created, one.id))]


def _steps(known: dict[str, Manifest]) -> dict[str, int]:
    """How many artifacts were made one from another until each was there; `created` tells seconds apart and no less."""
    found: dict[str, int] = {}

    def count(name: str) -> int:
        if name not in found:
            found[name] = 1 + max((count(each) for each in made_from(known[name]) if each in known), default=0)
        return found[name]

    for name in known:
        count(name)
    return found


def made_from(manifest: Manifest) -> set[str]:
    """The artifacts that one names: its inputs, and what its spec mentions."""
    return set(manifest.inputs.values()) | mentioned(json.dumps(manifest.spec))


def last_use(store: Store, manifest: Manifest) -> float:
    """When an artifact was made or, as far as this machine knows, last used [s since 1970]."""
    used = datetime.fromisoformat(manifest.created).timestamp()
    with suppress(OSError):
        used = max(used, os.stat(_place(store, manifest.id)).st_mtime)
    return used


def at_work(store: Store) -> set[str]:
    """What producers on this machine make and read at the moment."""
    found = set()
    for path in (store.folder / "work").glob("*.lock"):
        with suppress(FileNotFoundError), open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found |= {path.name.removesuffix(".lock"), *file.read().split("\n")[1:]}
    return found - {""}


def leftovers(store: Store, before: float, referred: Collection[str] = ()) -> list[Waste]:
    """What killed or failed attempts left, not touched since `before`, and all that an earlier pruning did not finish.

    referred    artifacts whose unfinished work stays: a training goes on where its folder stands
    """
    found, busy = [], at_work(store)
    for what, folder in ((WORK, "work"), (DEBRIS, "artifacts"), (DELETED, TRASH)):
        for path in _folders(store.folder / folder):
            complete = what != WORK and (path / MANIFEST).is_file()
            cached = store.mirror is not None and complete and not store.exists(path.name)
            if path.name in busy or (what == WORK and path.name in referred) or (what == DEBRIS and complete and not cached):
                continue
            octets, newest = measure(path)
            if newest < before or what == DELETED:
                found.append(Waste(what, "copy of a pruned artifact" if cached else what, path.name, octets, newest))
    if store.mirror:
        found += [Waste(DEBRIS, "unfinished upload", *facts) for facts in store.mirror.leftovers(before)]
    return found


def remove(store: Store, waste: Iterable[Waste]) -> Iterator[Waste]:
    """Take away one after the other; yields those that went. What came into use meanwhile stays."""
    for one in waste:
        if one.what == WORK:
            with store._lock(one.name, wait=False) as held:
                gone = held and _delete(_aside(store, store.folder / "work" / one.name))
        elif one.what == DELETED:
            gone = _delete(store.folder / TRASH / one.name)
        else:
            gone = _withdraw(store, one)
        if gone:
            yield one
    with suppress(OSError):
        (store.folder / TRASH).rmdir()


def _withdraw(store: Store, one: Waste) -> bool:
    """Take away an artifact, or what is left of one, unless it is in use by now; False where it stays or went before."""
    place = _place(store, one.name)
    with store.gate(exclusive=True):
        if one.name in at_work(store):
            return False
        with suppress(OSError):
            if one.what == ARTIFACT and os.stat(place).st_mtime > one.since:
                return False
        aside = _aside(store, place)
    here = _delete(aside)
    there = store.mirror is not None and store.mirror.remove(one.name)
    return there if store.mirror and one.what == ARTIFACT else here or store.mirror is not None


def _aside(store: Store, place: Path) -> Path | None:
    """Where a folder lies after it was renamed; None where there is none any more."""
    aside = store.folder / TRASH / f"{place.name}.{uuid.uuid4().hex[:8]}"
    aside.parent.mkdir(exist_ok=True)
    try:
        os.rename(place, aside)
    except FileNotFoundError:
        return None
    return aside


def _delete(folder: Path | None) -> bool:
    if folder is None:
        return False
    if folder.is_symlink():
        folder.unlink()                                     # what it shows is not ours
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def measure(path: Path) -> tuple[int, float]:
    """Bytes below a folder, and when anything in it last changed [s since 1970]."""
    octets, newest = 0, 0.0
    for each in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            facts = each.lstat()
            newest = max(newest, facts.st_mtime)
            octets += facts.st_size if not each.is_dir() else 0
    return octets, newest


def _place(store: Store, identifier: str) -> Path:
    return store.folder / "artifacts" / identifier


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
