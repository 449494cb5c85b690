"""What the selects of the forms offer, read from the registries: a new mixer or eval task shows up by itself.

The names of model presets come with torch, whose import takes seconds. They are kept under REREAD_HOME, beside what they
depend on, and read from there for as long as that does not change.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import GetJsonSchemaHandler

from storage.home import local_home
from tasks.evals.base import get_task, task_names
from tasks.specs import ORDERS
from tasks.templates import CLEAN, RELEASED


class Select:
    """Metadata of a text field, or of a list of texts: the page offers these choices, and the server takes no other."""

    def __init__(self, choices: Callable[[], Iterable[str]]) -> None:
        self.choices = choices

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
        kinds[0].get("items", kinds[0])["enum"] = list(self.choices())
        return schema


@cache
def eval_tasks() -> tuple[str, ...]:
    return tuple(task_names())


@cache
def question_tasks() -> tuple[str, ...]:
    """Tasks that ask the questions of a data set."""
    return tuple(name for name in eval_tasks() if get_task(name).needs_questions)


@cache
def prompt_orders() -> tuple[str, ...]:
    """Every order in which some task can be asked, those of all tasks first."""
    return tuple(dict.fromkeys((*ORDERS, *(order for name in eval_tasks() for order in get_task(name).orders))))


def templates() -> tuple[str, ...]:
    return (CLEAN, *RELEASED)


@cache
def model_presets() -> tuple[str, ...]:
    """Names of all presets, the small ones first, those of the zoo last."""
    if "models.presets" in sys.modules:
        return _imported()
    kept, key = local_home() / "cache" / "presets.json", _fingerprint()
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["key"] == key:
            return tuple(found["names"])
    names = _imported()
    with suppress(OSError):                      # a home that cannot be written: asked again next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({"key": key, "names": names}), encoding="utf-8")
        os.replace(draft, kept)
    return names


def _imported() -> tuple[str, ...]:
    from models.presets import FAMILIES, preset_names

    return tuple(preset_names(*FAMILIES))


def _fingerprint() -> str:
    """Changes with every file of models/presets and models/mixers, which are not imported for it."""
    found = importlib.util.find_spec("models")
    digest = hashlib.sha256()
    for root in found.submodule_search_locations if found else ():
        for file in sorted(Path(root).glob("presets/*.py")) + sorted(Path(root).glob("mixers/*.py")):
            facts = file.stat()
            digest.update(f"{file} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
