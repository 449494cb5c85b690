"""Names that follow from content: canonical JSON and the hash of the source that a stage runs.

`code_hash` reads source files, it never imports them. From the modules given it follows every first-party import
(relative and function-level ones too, `if TYPE_CHECKING` excepted) and hashes each file reached. Choices:

* Docstrings, comments and blank lines do not count, so rewording them keeps results valid (`code_lines`).
* A package's `__init__` that only passes names on does not pull in all it re-exports: `from models import Layout`
  follows the one import that binds `Layout`. A name that cannot be traced pulls in everything the package imports.
* One operation of `kernels/` is one unit: reaching any of its files takes its whole folder, since backends are chosen
  at run time.
* What a package's `__init__` does beyond passing names on counts only if something defined there is imported.
* Of `storage/` only `shards` counts (it fixes the bytes of an artifact); tracking, logging and the like cannot change
  a result. What is imported by a computed name (`models.mixers.*`) is passed explicitly by the caller.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from storage.errors import ConfigError, SpecError

PACKAGES = ("flows", "tasks", "models", "kernels", "storage")
STORAGE = "storage.shards"          # the one part of storage that decides the bytes of an artifact


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
    """Module name -> hash of its content, for everything `code_hash` covers."""
    found: dict[str, str] = {}
    waiting = list(modules)
    for module in waiting:
        if _source(module) is None:
            raise ConfigError(f"no source found for module {module!r}; give dotted names such as 'tasks.tokenise'")
    while waiting:
        module = waiting.pop()
        if module in found or not _counts(module):
            continue
        path = _source(module)
        if path is None:
            continue
        facts = _facts(str(path), module, path.name == "__init__.py", path.stat().st_mtime_ns, path.stat().st_size)
        found[module] = facts["hash"]
        waiting += [name for wanted in facts["imports"] for name in _targets(*wanted)]
        waiting += _unit(module)
    return found


def _counts(module: str) -> bool:
    package = module.partition(".")[0]
    return package in PACKAGES and (package != "storage" or f"{module}.".startswith(f"{STORAGE}."))


def _source(module: str) -> Path | None:
    """The file of a first-party module, by path joins below its top-level package; None if there is none."""
    package, _, rest = module.partition(".")
    if package not in PACKAGES:
        return None
    for folder in _folders(package):
        base = Path(folder, *rest.split(".")) if rest else Path(folder)
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
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
    operation = ".".join(parts[:2])
    path = _source(operation)
    if path is None or path.name != "__init__.py":
        return []
    return [operation, *(f"{operation}.{file.stem}" for file in path.parent.glob("*.py") if file.stem != "__init__")]


def _targets(module: str, name: str | None) -> Iterator[str]:
    """The modules that `import module` (name None) or `from module import name` makes part of the code."""
    if not _counts(module) and module not in PACKAGES:
        return
    if name is not None and _source(f"{module}.{name}") is not None:
        yield f"{module}.{name}"
        return
    path = _source(module)
    if path is None:
        return
    if name is None or path.name != "__init__.py":
        yield module
        return
    facts = _facts(str(path), module, True, path.stat().st_mtime_ns, path.stat().st_size)
    for target in facts["passes_on"].get(name, ()):
        yield from _targets(*target)
    if name not in facts["passes_on"]:
        yield module


@lru_cache(maxsize=4096)
def _facts(path: str, module: str, is_package: bool, modified: int, size: int) -> dict[str, Any]:
    """What one file contributes: hash of its code, imports as (module, name), and top-level names it passes on."""
    source = Path(path).read_bytes()
    try:
        tree = ast.parse(source, filename=path)
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}; its code cannot be hashed") from error
    package = module if is_package else module.rpartition(".")[0]
    imports: list[tuple[str, str | None]] = []
    passes_on: dict[str, list[tuple[str, str | None]]] = {}
    for statement, top in _statements(tree.body, True):
        for bound, target in _imported(statement, package):
            imports.append(target)
            if top:
                passes_on.setdefault(bound, []).append(target)
    return {"hash": hashlib.sha256(code_lines(source, tree)).hexdigest(), "imports": imports, "passes_on": passes_on}


def _statements(body: list[ast.stmt], top: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement that can run, and whether it runs at import; expressions hold none, so they are not entered."""
    for statement in body:
        yield statement, top
        inner = top and isinstance(statement, (ast.If, ast.Try))
        for part in _bodies(statement):
            if isinstance(statement, ast.If) and part is statement.body and _for_type_checkers(statement.test):
                continue
            yield from _statements(part, inner)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statement lists directly below a statement."""
    for field in ("body", "orelse", "finalbody"):
        found = getattr(node, field, None)
        if isinstance(found, list):
            yield found
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _for_type_checkers(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"


def _imported(statement: ast.stmt, package: str) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """(name bound, (module, name in it)) of an import statement; name None stands for the module itself or `*`."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0], (alias.name, None)
    elif isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        if statement.level:
            parts = package.split(".")
            base = parts[: len(parts) - statement.level + 1]
            module = ".".join([*base, module] if module else base)
        for alias in statement.names:
            yield alias.asname or alias.name, (module, None if alias.name == "*" else alias.name)


def code_lines(source: bytes, tree: ast.Module) -> bytes:
    """The source without docstrings, blank lines and comments.

    Lines rather than the dumped tree: five times quicker, and the same under every Python version. A comment within a
    statement of several lines, or behind a header such as `if x:`, stays: it cannot be told from a string by lines.
    """
    lines = source.splitlines()
    fixed: set[int] = set()             # line numbers where a blank or a "#" may be part of a string
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        docstring = _docstring(node, lines)
        if docstring:
            lines[docstring.lineno - 1:docstring.end_lineno] = [b""] * (docstring.end_lineno - docstring.lineno + 1)
        for body in _bodies(node):
            for statement in body:
                if statement is docstring:
                    continue
                waiting.append(statement)
                first, last = statement.lineno, statement.end_lineno
                if next(_bodies(statement), None) is not None:
                    first = min([first, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))])
                    last = max((part.end_lineno for part in ast.iter_child_nodes(statement)
                                if isinstance(part, ast.expr)), default=first)
                else:
                    rest = lines[last - 1][statement.end_col_offset:].lstrip()
                    if rest.startswith(b"#"):
                        lines[last - 1] = lines[last - 1][:statement.end_col_offset]
                if last > first:
                    fixed.update(range(first, last + 1))
    kept = [line.rstrip() for number, line in enumerate(lines, 1)
            if number in fixed or (line.strip() and not line.lstrip().startswith(b"#"))]
    return b"\n".join(kept)


def _docstring(node: ast.AST, lines: list[bytes]) -> ast.Expr | None:
    """The docstring of a module, class or function, if it has lines of its own."""
    if not isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or not node.body:
        return None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        if not lines[first.lineno - 1][:first.col_offset].strip():
            return first
    return None
