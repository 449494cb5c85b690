"""What the source of one module says, without importing it: its code, its imports, its definitions."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from storage.errors import ConfigError

ATTEMPTS = 5
COMPOUND = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If, ast.For, ast.AsyncFor, ast.While, ast.With,
            ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)          # statements that hold statements
Target = tuple[str, str | None]      # (module, name in it); None stands for the module itself, or `*`


@dataclass(frozen=True)
class Source:
    """Facts about one file."""

    hash: str                                            # sha256 of `code_lines`
    imports: list[Target]                                # all of them, function-level ones too
    passes_on: dict[str, list[Target]]                   # names bound by imports that run at import


@dataclass(frozen=True)
class Definition:
    """A top-level class, function or assignment."""

    hash: str                                            # sha256 of its part of `code_lines`
    names: frozenset[str]                                # all it mentions, as a name or as a text that could be one


def read_source(path: Path, module: str) -> Source:
    """Parse a file, once per process and modification. `ConfigError` names the line of a syntax error."""
    facts = path.stat()
    return _read(str(path), module, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4096)
def _read(path: str, module: str, modified: int, size: int) -> Source:
    source, tree = _parse(path)
    package = module if path.endswith("/__init__.py") else module.rpartition(".")[0]
    imports: list[Target] = []
    passes_on: dict[str, list[Target]] = {}
    for statement, top in _statements(tree.body, True):
        for bound, target in _imported(statement, package):
            imports.append(target)
            if top:
                passes_on.setdefault(bound, []).append(target)
    return Source(_hash(code_lines(source, tree)), imports, passes_on)


def read_definitions(path: Path) -> dict[str, Definition]:
    """Top-level definitions by name. A statement that is none, such as a call, belongs to each of them."""
    facts = path.stat()
    return _read_definitions(str(path), facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=64)
def _read_definitions(path: str, modified: int, size: int) -> dict[str, Definition]:
    source, tree = _parse(path)
    lines = code_lines(source, tree)
    parts: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            for name in _bound(statement) or [""]:
                parts.setdefault(name, []).append(statement)
    common = parts.pop("", [])
    return {name: Definition(_hash({number: line for number, line in lines.items()
                                    if any(first <= number <= last for first, last in map(_span, [*own, *common]))}),
                             frozenset(word for statement in [*own, *common] for word in _words(statement)))
            for name, own in parts.items()}


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [statement.name]
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return [name.id for target in targets if target is not None for name in ast.walk(target)
            if isinstance(name, ast.Name)]


def _span(statement: ast.stmt) -> tuple[int, int]:
    first = min([statement.lineno, *(decorator.lineno for decorator in getattr(statement, "decorator_list", ()))])
    return first, statement.end_lineno


def _words(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def _parse(path: str) -> tuple[bytes, ast.Module]:
    source = Path(path).read_bytes()
    try:
        return source, _tree(source, path)
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}: {error.msg}; its code cannot be hashed") from error


def _tree(source: bytes, path: str) -> ast.Module:
    """`ast.parse`, again where CPython 3.11 stumbles: it counts the depth of all threads that parse in one place, and
    Prefect parses beside us."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return ast.parse(source, filename=path)
        except SystemError:
            if not left:
                raise
    raise AssertionError


def _hash(lines: dict[int, bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines.values())).hexdigest()


def _statements(body: list[ast.stmt], top: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement that can run, and whether it runs at import; expressions hold none, so they are not entered."""
    for statement in body:
        yield statement, top
        if not isinstance(statement, COMPOUND):
            continue
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


def code_lines(source: bytes, tree: ast.Module) -> dict[int, bytes]:
    """Line number -> line, without docstrings, blank lines and comments.

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
                first, last = _span(statement)
                if isinstance(statement, COMPOUND):
                    waiting.append(statement)
                    last = max((part.end_lineno for part in ast.iter_child_nodes(statement)
                                if isinstance(part, ast.expr)), default=first)
                else:
                    rest = lines[last - 1][statement.end_col_offset:].lstrip()
                    if rest.startswith(b"#"):
                        lines[last - 1] = lines[last - 1][:statement.end_col_offset]
                if last > first:
                    fixed.update(range(first, last + 1))
    return {number: line.rstrip() for number, line in enumerate(lines, 1)
            if number in fixed or (line.strip() and not line.lstrip().startswith(b"#"))}


def _docstring(node: ast.AST, lines: list[bytes]) -> ast.Expr | None:
    """The docstring of a module, class or function, if it has lines of its own."""
    if not isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or not node.body:
        return None
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        if not lines[first.lineno - 1][:first.col_offset].strip():
            return first
    return None
