"""The hash of a stage's source: what changes it, what does not, and how fast it is.

Trees are real files in a temporary folder; each is hashed by a fresh interpreter that has it first on its path.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from storage import source
from storage.errors import ConfigError, SpecError
from storage.identity import canonical, code_hash, reached

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, pathlib, sys
from storage import source
from storage.identity import code_hash, reached
root, modules, edits = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
hashes = [code_hash(modules)]
for name, text in edits:
    path = root / name
    before = path.read_text() if path.exists() else None
    path.write_text(text)
    hashes.append(code_hash(modules))
    path.unlink() if before is None else path.write_text(before)
print(json.dumps({"hashes": hashes, "reached": sorted(reached(modules)), "imported": sorted(sys.modules)}))
"""


def hashed(root: Path, modules: list[str], edits: list[tuple[str, str]] = ()) -> dict:
    """Hash `modules` of the tree at `root`, then once more under each edit (file, new text), each undone after."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(root), json.dumps(modules), json.dumps(list(edits))],
                          env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def tree(tmp_path):
    """A small tree with every kind of import."""
    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    for name in ("__init__", "errors", "identity", "source"):
        shutil.copy(REPOSITORY / "storage" / f"{name}.py", _made(tmp_path / "storage") / f"{name}.py")
    for name in ("__init__", "errors"):
        shutil.copy(REPOSITORY / "kernels" / f"{name}.py", _made(tmp_path / "kernels") / f"{name}.py")
    write("storage/tracking.py", "x = 1\n")
    write("tasks/__init__.py", "")
    write("tasks/stage.py", '''
        """Docstring."""
        import json
        from typing import TYPE_CHECKING
        import models.plain
        from models import Model
        from storage import tracking
        if TYPE_CHECKING:
            from tasks.types import Type

        def run():
            from .inner import work        # a comment behind code
            return work()
        ''')
    write("tasks/inner.py", "def work():\n    return 1\n")
    write("tasks/types.py", "Type = int\n")
    write("models/__init__.py", "from models.model import Model\nfrom models.unused import Other\n")
    write("models/model.py", "from kernels.op import op\nclass Model:\n    pass\n")
    write("models/unused.py", "class Other:\n    pass\n")
    write("models/plain.py", "TEXT = '''a\n# not a comment\n\nb'''\n")
    write("kernels/op/__init__.py", "def op(backend):\n    return __import__('kernels.op.' + backend)\n")
    write("kernels/op/naive.py", "x = 1\n")
    return tmp_path


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_reaches_relative_function_level_and_passed_on_imports(tree):
    assert hashed(tree, ["tasks.stage"])["reached"] == [
        "kernels.op", "kernels.op.naive", "models.model", "models.plain", "tasks.inner", "tasks.stage"]


def test_imports_nothing_it_hashes(tree):
    imported = hashed(tree, ["tasks.stage"])["imported"]
    assert not [name for name in imported if name.split(".")[0] in ("tasks", "models")]


def changed(tree: Path, name: str, text: str) -> bool:
    before, after = hashed(tree, ["tasks.stage"], [(name, text)])["hashes"]
    return before != after


@pytest.mark.parametrize("name", ["tasks/stage.py", "tasks/inner.py", "models/model.py", "kernels/op/__init__.py",
                                  "kernels/op/naive.py"])
def test_editing_code_that_runs_changes_the_hash(tree, name):
    assert changed(tree, name, (tree / name).read_text() + "\nvalue = 2\n")


def test_a_new_backend_of_an_operation_changes_the_hash(tree):
    assert changed(tree, "kernels/op/triton.py", "x = 2\n")


def test_a_module_that_appears_changes_the_hash(tree):
    (tree / "tasks/inner.py").write_text("import tasks.optional\n")
    assert changed(tree, "tasks/optional.py", "x = 1\n")


@pytest.mark.parametrize("name", ["tasks/types.py", "models/__init__.py", "models/unused.py", "storage/tracking.py",
                                  "storage/errors.py", "kernels/errors.py", "tasks/other.py"])
def test_editing_what_the_stage_does_not_use_keeps_the_hash(tree, name):
    before = (tree / name).read_text() if (tree / name).exists() else ""
    assert not changed(tree, name, before + "\nvalue = 2\n")


@pytest.mark.parametrize("old, new", [
    ('"""Docstring."""', '"""Another,\n\nof several lines."""'),
    ('"""Docstring."""\n', ""),
    ("  # a comment behind code", ""),
    ("def run():\n", "\n\n# a comment\ndef run():\n    # and one inside\n"),
    ("def run():\n", 'def run():\n    """With a docstring."""\n\n'),
])
def test_words_for_people_keep_the_hash(tree, old, new):
    text = (tree / "tasks/stage.py").read_text()
    assert old in text
    assert not changed(tree, "tasks/stage.py", text.replace(old, new))


@pytest.mark.parametrize("old, new", [("# not a comment\n", "# another text\n"), ("\n\nb", "\nb"), ("'''a", "'''A")])
def test_what_only_looks_like_a_comment_counts(tree, old, new):
    text = (tree / "models/plain.py").read_text()
    assert old in text
    assert changed(tree, "models/plain.py", text.replace(old, new))


def test_a_package_that_cannot_be_traced_counts_whole(tree):
    (tree / "models/__init__.py").write_text("from models.model import *\nfrom models.unused import Other\n")
    assert {"models", "models.model", "models.unused"} <= set(hashed(tree, ["tasks.stage"])["reached"])


def test_both_sides_of_a_fallback_count(tree):
    (tree / "models/__init__.py").write_text(
        "try:\n    from models.model import Model\nexcept ImportError:\n    from models.unused import Other as Model\n")
    assert {"models.model", "models.unused"} <= set(hashed(tree, ["tasks.stage"])["reached"])


def test_two_copies_of_a_tree_agree(tree, tmp_path_factory):
    copy = tmp_path_factory.mktemp("elsewhere") / "tree"
    shutil.copytree(tree, copy)
    assert hashed(tree, ["tasks.stage"])["hashes"] == hashed(copy, ["tasks.stage"])["hashes"]


def test_an_edited_mixer_is_new_and_edited_tracking_is_not(tmp_path):
    for package in ("flows", "tasks", "models", "kernels", "storage"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    mixer = tmp_path / "models/mixers/example.py"
    mixer.write_text("from kernels import layout\n\nGAIN = 1.0\n")
    modules = [f"models.{path.stem}" for path in sorted((tmp_path / "models").glob("*.py")) if path.stem != "__init__"]
    modules.append("models.mixers.example")
    same = ["storage/tracking/writer.py", "storage/logs.py", "storage/artifacts.py"]
    edits = [(path, (tmp_path / path).read_text() + "\nEDITED = 1\n")
             for path in (mixer.relative_to(tmp_path).as_posix(), *same)]
    original, edited, *others = hashed(tmp_path, modules, edits)["hashes"]
    assert edited != original
    assert others == [original] * len(same)


def test_the_whole_tree_is_hashed_about_as_fast_as_it_is_parsed():
    """Seconds depend on who else uses the machine: 0.1 s for 10,000 lines on an idle core, of which parsing is half."""
    paths = [path for package in ("tasks", "models", "kernels") for path in (REPOSITORY / package).rglob("*.py")]
    modules = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in paths
               if path.name != "__init__.py"]

    def seconds(function, *arguments):
        began = time.process_time()
        function(*arguments)
        return time.process_time() - began

    def parse():
        for path in paths:
            ast.parse(path.read_bytes())

    def cold():
        source._read.cache_clear()
        code_hash(modules)

    parsing = min(seconds(parse) for _ in range(3))
    assert min(seconds(cold) for _ in range(3)) < 4 * parsing
    assert min(seconds(code_hash, modules) for _ in range(3)) < parsing


def test_unknown_module_and_syntax_errors_are_named(tree):
    with pytest.raises(ConfigError, match="tasks.nowhere"):
        code_hash(["tasks.nowhere"])
    (tree / "tasks/inner.py").write_text("def work(:\n")
    with pytest.raises(AssertionError, match=r"inner.py:1: .*cannot be hashed"):
        hashed(tree, ["tasks.stage"])


SPECS = """
from models.model import Model
Order = str

class Spec:
    pass

class Corpus(Spec):
    order: Order

class Train(Spec):
    corpus: "Corpus"
    model: Model

def unused():
    return 1
"""


@pytest.mark.parametrize("imported, expected", [
    ("Corpus", {"Corpus", "Spec", "Order"}), ("Train", {"Train", "Corpus", "Spec", "Order", "models.model"}),
    ("Order", {"Order"})])
def test_only_the_specs_a_stage_uses_count(tree, imported, expected):
    (tree / "tasks/specs.py").write_text(SPECS)
    (tree / "tasks/inner.py").write_text(f"from tasks.specs import {imported}\n")
    found = {name.partition(":")[2] or name for name in hashed(tree, ["tasks.inner"])["reached"]}
    assert found - {"tasks.inner", "kernels.op", "kernels.op.naive"} == expected


@pytest.mark.parametrize("old, new, changes", [
    ("    pass", "    x: int = 1", True), ("Order = str", "Order = int", True), ("return 1", "return 2", False),
    ("model: Model", "model: int", False), ("class Corpus(Spec):\n", 'class Corpus(Spec):\n    """Words."""\n', False),
    ("def unused", "register(Corpus)\ndef unused", True)])
def test_an_edit_of_specs_changes_the_stages_that_use_it(tree, old, new, changes):
    (tree / "tasks/specs.py").write_text(SPECS)
    (tree / "tasks/inner.py").write_text("from tasks.specs import Corpus\n")
    assert old in SPECS
    before, after = hashed(tree, ["tasks.inner"], [("tasks/specs.py", SPECS.replace(old, new, 1))])["hashes"]
    assert (before != after) is changes


def test_storage_counts_by_its_shards_only():
    assert set(reached(["storage.shards", "storage.artifacts"])) == {
        f"storage.shards{part}" for part in ("", ".reader", ".writer", ".verification")}


def test_named_models_are_in_the_spec_and_do_not_count():
    found = reached(["tasks.pretrain"])
    assert "models.language_model" in found
    assert not [module for module in found if module.startswith(("models.presets", "models.sizing"))]


def test_canonical_json_is_one_text_for_one_value():
    assert canonical({"b": (1, 2.5), "a": {"d", "c"}, "p": Path("/x"), "ü": None}) == (
        '{"a":["c","d"],"b":[1,2.5],"p":"/x","ü":null}')
    with pytest.raises(SpecError, match="identity"):
        canonical({"a": float("nan")})
    with pytest.raises(SpecError, match="object"):
        canonical({"a": object()})


def test_a_parser_that_stumbles_over_another_thread_is_asked_again(tmp_path, monkeypatch):
    import ast

    from storage import source

    path, parse, calls = tmp_path / "one.py", ast.parse, []
    path.write_text("X = 1\n")

    def stumble(*arguments, **options):
        calls.append(1)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=90, after=74)")
        return parse(*arguments, **options)

    monkeypatch.setattr(source.ast, "parse", stumble)
    assert source.read_source(path, "one") and len(calls) == 3
    monkeypatch.setattr(source.ast, "parse", lambda *_, **__: (_ for _ in ()).throw(SystemError("for ever")))
    with pytest.raises(SystemError, match="for ever"):
        source._tree(b"", "two.py")
