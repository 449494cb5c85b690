"""Finds the operations: every file of tasks/benchmarks/operations. Nothing is listed by hand."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from storage.errors import SpecError
from tasks.benchmarks import operations
from tasks.benchmarks.operation import Operation


def modules() -> list[str]:
    """Names of the files, for an identity; nothing is imported."""
    return [f"{operations.__name__}.{name}" for name in
            sorted(info.name for info in pkgutil.iter_modules(operations.__path__))]


@lru_cache
def every() -> dict[str, Operation]:
    """Operations of this build by name, attention first: it is what the others are compared with."""
    found = [operation for module in modules() for operation in importlib.import_module(module).OPERATIONS]
    return {one.name: one for one in sorted(found, key=lambda one: (one.name != "sdpa", one.name)) if one.here}


def choose(names: tuple[str, ...]) -> list[Operation]:
    """Those of `names` that are here, in that order."""
    here = every()
    return [here[name] for name in names if name in here]


def is_peer(op: str, backend: str) -> bool:
    """Whether a row's implementation is another package's."""
    operation = every().get(op)
    return operation is not None and any(form.name == backend and not form.ours for form in operation.implementations)


def check(names: tuple[str, ...]) -> None:
    """SpecError for a name that no file defines in this build."""
    unknown = [name for name in names if name not in every()]
    if unknown:
        raise SpecError(f"operations: got {', '.join(unknown)}, expected some of {', '.join(every())}")
