"""Names that follow from content: canonical JSON and the hash of the source that a stage runs.

`code_hash` reads source files, it never imports them. From the modules given it follows every first-party import
(relative and function-level ones too, `if TYPE_CHECKING` excepted) and hashes each file reached. Choices:

* Docstrings, comments and blank lines do not count, so rewording them keeps results valid (`code_lines`).
* A package's `__init__` that only passes names on does not pull in all it re-exports: `from models import Layout`
  follows the one import that binds `Layout`. A name that cannot be traced pulls in everything the package imports.
* Of `tasks.specs` a stage sees only the definitions it imports and those that they use, so that a new option of one
  stage does not rename the artifacts of all others.
* One operation of `kernels/` is one unit: reaching any of its files takes its whole folder, since backends are chosen
  at run time.
* What a package's `__init__` does beyond passing names on counts only if something defined there is imported.
* Named models (`RESOLVED`) do not count: the config that a name stands for is in the spec, whole.
* Of `storage/` only `shards` counts (it fixes the bytes of an artifact); tracking, logging and the like cannot change
  a result. What is imported by a computed name (`models.mixers.*`) is passed explicitly by the caller.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from storage.errors import ConfigError, SpecError
from storage.source import read_definitions, read_source

PACKAGES = ("flows", "tasks", "models", "kernels", "storage")
STORAGE = "storage.shards"          # the one part of storage that decides the bytes of an artifact
RESOLVED = ("models.presets", "models.sizing")      # what they give out stands in the spec
SLICED = {"tasks.specs"}            # modules of independent definitions, of which only those used count


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces, the same text for the same value everywhere.

    Pydantic models, paths, tuples, sets of strings and numpy scalars are accepted. NaN and infinity are refused with
    `SpecError`, because JSON has no word for them.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False,
                          default=_plain)
    except (TypeError, ValueError) as error:
        raise SpecError(f"cannot be part of an identity: {error} (in {value!r:.200})") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no canonical JSON")


def code_hash(modules: Iterable[str]) -> str:
    """sha256 (hex) over these modules and the first-party modules they import. `ConfigError` for an unknown module."""
    digest = hashlib.sha256()
    for name, content in sorted(reached(modules).items()):
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def reached(modules: Iterable[str]) -> dict[str, str]:
    """`module`, or `module:definition` of a sliced one, -> hash of its code, for everything `code_hash` covers."""
    found: dict[str, str] = {}
    for asked in (_source, _targets, _operation):          # files may have come and gone since the last call
        asked.cache_clear()
    waiting = list(modules)
    for module in waiting:
        if _source(module) is None:
            raise ConfigError(f"no source found for module {module!r}; give dotted names such as 'tasks.tokenise'")
    while waiting:
        entry = waiting.pop()
        module, _, name = entry.partition(":")
        path = _source(module)
        if entry in found or path is None or not _counts(module):
            continue
        source = read_source(path, module)
        if name:
            definition = read_definitions(path)[name]
            found[entry] = definition.hash
            waiting += [used for word in definition.names for used in _named(module, word)]
        else:
            found[entry] = source.hash
            waiting += [used for target in source.imports for used in _targets(*target)]
            waiting += _unit(module)
    return found


def _counts(module: str) -> bool:
    package = module.partition(".")[0]
    if any(f"{module}.".startswith(f"{resolved}.") for resolved in RESOLVED):
        return False
    return package in PACKAGES and (package != "storage" or f"{module}.".startswith(f"{STORAGE}."))


@lru_cache(maxsize=4096)
def _source(module: str) -> Path | None:
    """The file of a first-party module, by path joins below its top-level package or in a folder that its own package
    was given; None if there is none."""
    package, _, rest = module.partition(".")
    if package not in PACKAGES:
        return None
    for folder in _folders(package):
        base = os.path.join(folder, *rest.split(".")) if rest else folder
        for path in (os.path.join(base, "__init__.py"), f"{base}.py"):     # no Path until there is one: asked very often
            if os.path.isfile(path):
                return Path(path)
    parent, _, name = module.rpartition(".")
    for folder in getattr(sys.modules.get(parent), "__path__", ()):      # one that was added, as for somebody's mixers
        if (path := Path(folder, f"{name}.py")).is_file():
            return path
    return None


@lru_cache
def _folders(package: str) -> tuple[str, ...]:
    spec = importlib.util.find_spec(package)   # a top-level name: nothing is imported
    return tuple(spec.submodule_search_locations or ()) if spec else ()


def _unit(module: str) -> list[str]:
    """All modules of the operation that `module` belongs to, if it belongs to one."""
    parts = module.split(".")
    if parts[0] != "kernels" or len(parts) < 2:
        return []
    return _operation(".".join(parts[:2]))


@cache
def _operation(operation: str) -> list[str]:
    path = _source(operation)
    if path is None or path.name != "__init__.py":
        return []
    return [operation, *(f"{operation}.{file.stem}" for file in path.parent.glob("*.py") if file.stem != "__init__")]


@cache
def _targets(module: str, name: str | None) -> tuple[str, ...]:
    """The modules that `import module` (name None) or `from module import name` makes part of the code."""
    return tuple(_traced(module, name))


def _traced(module: str, name: str | None) -> Iterator[str]:
    if not _counts(module) and module not in PACKAGES:
        return
    if name is not None and _source(f"{module}.{name}") is not None:
        yield f"{module}.{name}"
        return
    path = _source(module)
    if path is None:
        return
    if name is None or (path.name != "__init__.py" and module not in SLICED):
        yield module
        return
    if module in SLICED:
        yield from _named(module, name)
        return
    passes_on = read_source(path, module).passes_on
    for target in passes_on.get(name, ()):
        yield from _targets(*target)
    if name not in passes_on:
        yield module


def _named(module: str, name: str) -> Iterator[str]:
    """What a name of a sliced module stands for: one of its definitions, or something it imports; else nothing."""
    path = _source(module)
    for target in read_source(path, module).passes_on.get(name, ()):
        yield from _targets(*target)
    if name in read_definitions(path):
        yield f"{module}:{name}"
