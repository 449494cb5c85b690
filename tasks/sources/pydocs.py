"""Docstrings of installed Python distributions: text that every machine with this project has.

Modules are parsed, never imported. Test folders are left out. A document is one docstring of a module, class or
function, dedented; its source reads `<distribution>/<path of the file>`.
"""

from __future__ import annotations

import ast
import gc
import importlib.metadata
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial

from storage import logs
from storage.errors import CorpusError
from storage.progress import progress
from tasks.parallel import parallel_map
from tasks.specs import CorpusSpec

# Read when `packages` is empty, as far as they are installed. The first line writes most `name : type` lines.
DEFAULT_PACKAGES = (
    "numpy", "scipy", "pandas", "scikit-learn", "sympy", "matplotlib", "networkx", "beartype", "pyarrow", "joblib",
    "torch", "transformers", "datasets", "huggingface-hub", "tokenizers", "deepspeed", "ray", "prefect", "mlflow",
    "sqlalchemy", "fsspec", "pydantic", "fonttools", "redis", "docker", "setuptools", "aiohttp", "flask", "werkzeug",
)
FILES_PER_GROUP = 48
TEST_FOLDERS = {"test", "tests", "testing", "_tests", "conftest.py"}

log = logs.get("tasks.sources.pydocs")


def resolve(spec: CorpusSpec) -> dict:
    """{distribution: version} of all that will be read; the held-out distributions are read too.

    Raises CorpusError for a distribution that was asked for and is not installed.
    """
    wanted = {_canonical(name): name for name in (*spec.packages, *spec.held_out_packages)}
    optional = {} if spec.packages else {_canonical(name): name for name in DEFAULT_PACKAGES}
    found, missing = {}, []
    for key, name in sorted({**optional, **wanted}.items()):
        try:
            found[key] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    absent = [name for name in missing if _canonical(name) in wanted]
    if absent:
        raise CorpusError(f"not installed: {', '.join(absent)}; pip install them or take them out of `packages` and "
                          "`held_out_packages`")
    if missing:
        log.info("left out of the built-in list, not installed: %s", ", ".join(missing))
    return {"packages": found}


def is_held_out(source: str, spec: CorpusSpec) -> bool:
    """Whether the document of this source belongs to a held-out distribution."""
    return source.partition("/")[0] in {_canonical(name) for name in spec.held_out_packages}


def read(spec: CorpusSpec, tally: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield (source, docstring); `tally` counts files, files that do not parse, and docstrings that are too short."""
    groups = []
    for package in resolve(spec)["packages"]:
        files = _python_files(package)
        groups += [(package, files[k : k + FILES_PER_GROUP]) for k in range(0, len(files), FILES_PER_GROUP)]
    work = partial(_read_group, minimum_characters=spec.minimum_characters)
    with progress(len(groups), "read docstrings", "groups of files") as bar:
        for documents, counts in parallel_map(work, groups, describe="read docstrings"):
            tally.update(counts)
            yield from documents
            bar.advance()


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _python_files(package: str) -> list[tuple[str, str]]:
    """(path inside the installation, absolute path) of each module of a distribution, tests left out, sorted."""
    distribution = importlib.metadata.distribution(package)
    names = sorted(file for file in distribution.files or [] if file.suffix == ".py" and ".." not in file.parts)
    if not names:
        log.warning("%s lists no Python files (installed in editable mode?); it adds nothing to the corpus", package)
    return [(file.as_posix(), str(distribution.locate_file(file))) for file in names
            if not TEST_FOLDERS & set(file.parts)]


def _read_group(group: tuple[str, list[tuple[str, str]]], minimum_characters: int) -> tuple[list, Counter]:
    package, files = group
    documents, tally = [], Counter({"read: files": len(files)})
    collecting = gc.isenabled()
    gc.disable()                       # trees are millions of small objects without cycles
    try:
        for name, path in files:
            try:
                with open(path, "rb") as file:
                    found = docstrings(file.read())
            except (SyntaxError, ValueError, RecursionError, OSError):
                tally["files_that_do_not_parse"] += 1
                continue
            for text in found:
                text = normalise(text)
                if len(text) >= minimum_characters:
                    documents.append((f"{package}/{name}", text))
                else:
                    tally["too_short"] += 1
    finally:
        if collecting:
            gc.enable()
    return documents, tally


def docstrings(code: bytes) -> list[str]:
    """The dedented docstrings of a module, in the order of the file. Raises SyntaxError or ValueError if unparsable."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
    found: list[str] = []
    _collect(tree, found)
    return found


def _collect(node: ast.AST, found: list[str]) -> None:
    """Walk statements only: a docstring cannot stand inside an expression."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            found.append(inspect.cleandoc(first.value.value))
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        children = getattr(node, field, None)
        if isinstance(children, list):
            for child in children:
                _collect(child, found)


def normalise(text: str) -> str:
    """One kind of line end, no white space at line ends, no blank lines around."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")
