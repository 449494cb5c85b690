"""What is recorded about the code that ran."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from storage.provenance import git_commit, library_versions

REPOSITORY = Path(__file__).resolve().parents[2]


def test_versions_are_those_installed_and_nothing_is_imported_for_them():
    assert library_versions()["torch"] == metadata.version("torch")
    script = "import sys; from storage.provenance import library_versions as v; v(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert done.stdout.strip() == "False"


def test_the_commit_is_that_of_our_tree_with_a_mark_for_changes(tmp_path):
    if git_commit() is None:
        pytest.skip("this source tree is not under git")

    def git(*arguments):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True,
                              capture_output=True, text=True).stdout.strip()

    def seen(**environment):
        done = subprocess.run([sys.executable, "-c", "from storage.provenance import git_commit; print(git_commit())"],
                              cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path), **environment},
                              capture_output=True, text=True, check=True)
        return done.stdout.strip()

    (tmp_path / "storage").mkdir()
    for name in ("__init__.py", "provenance.py"):
        shutil.copy(REPOSITORY / "storage" / name, tmp_path / "storage" / name)
    assert seen() == "None"
    assert seen(REREAD_COMMIT="abc123") == "abc123"          # an image says what it was built from
    git("init", "-q")
    assert seen() == "None"                  # inside a repository, but not tracked by it
    git("add", "storage")
    git("commit", "-qm", "x")
    assert seen(REREAD_COMMIT="abc123") == git("rev-parse", "HEAD")
    (tmp_path / "storage" / "__init__.py").write_text("changed = 1\n")
    assert seen() == git("rev-parse", "HEAD") + "+changes"
