"""What killed commands left outside the store: notes of flow runs, Ray's folders of dead sessions, half-written exports."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.home import local_home
from storage.pruning import Waste, measure

EXPORT = re.compile(r"\.(?P<target>.+)\.[a-z0-9_]{8}\.(?P<end>partial|old)")      # as models.adapters.folders names them
SETTLED = 3600.0         # nothing younger is touched: it may be in use, and nothing here is locked
OURS = {"config.json", "model.safetensors", "metadata.json", "tokenizer", "was"}      # not README.md, which anybody writes
NOTES, RAY, HALF = "notes of a dead flow run", "Ray's folder of a dead session", "half-written export"


def left_behind(before: float, here: Path | None = None) -> list[Waste]:
    """Not touched since `before` [s since 1970]. `name` is the whole path.

    here: where half-written exports are looked for, one level deep; None = the working directory
    """
    found = [(NOTES, path) for path in _folders(local_home() / "notes")]
    found += [(RAY, path) for path in _dead_sessions()]
    found += [(HALF, path) for path in _folders(here or Path.cwd()) if _half_written(path)]
    before = min(before, time.time() - SETTLED)
    measured = [(kind, path, *measure(path)) for kind, path in found]
    return [Waste(kind, kind, str(path), octets, newest) for kind, path, octets, newest in measured
            if newest < before or kind == RAY]


def remove_left_behind(waste: Iterable[Waste]) -> Iterator[Waste]:
    """Removes them; yields those that went. Ray's folders go with their sessions, see `end_sessions`."""
    for one in waste:
        if one.what != RAY:
            shutil.rmtree(one.name, ignore_errors=True)
        yield one


def end_sessions() -> None:
    """End the processes of dead sessions of this home, and remove Ray's folders of them."""
    from flows.running.ray_runner import clean_up

    clean_up()


def _dead_sessions() -> Iterator[Path]:
    from flows.services.processes import ProcessId

    for path in (local_home() / "services").glob("session-*.json"):
        try:
            data = json.loads(path.read_text())
            alive = ProcessId(*data["driver"]).alive
            folder = Path(data["ray"]) if data.get("ray") else None
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if not alive and folder is not None and folder.name.startswith("session_") and folder.is_dir():
            yield folder


def _half_written(path: Path) -> bool:
    """A folder as exports make beside their target, with nothing in it that an export would not write. One that holds
    what stood at the target before is left alone unless something stands there again."""
    parts = EXPORT.fullmatch(path.name)
    if parts is None or path.is_symlink():
        return False
    held = {each.name for each in path.iterdir()}
    if held and not held & OURS:
        return False
    return parts["end"] == "partial" or path.with_name(parts["target"]).exists() or not held


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []
