"""What ran: versions of the libraries that can change a result, and the commit of our own source tree."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = ("torch", "triton", "numpy", "pyarrow", "ray", "prefect", "mlflow", "deepspeed", "tokenizers",
                 "tiktoken", "transformers", "datasets", "safetensors", "pydantic")
SOURCE = Path(__file__).resolve().parent.parent


def library_versions() -> dict[str, str]:
    """Distribution -> installed version, without importing any; those not installed are left out."""
    return dict(_versions())


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for name in DISTRIBUTIONS:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


@lru_cache(maxsize=1)
def git_commit() -> str | None:
    """Commit of the tree this file is tracked in, with "+changes" if tracked files differ from it; None without git.

    An image without a repository says it by `REREAD_COMMIT`."""
    if _git("ls-files", "--error-unmatch", __file__) is None:   # a copy inside somebody else's repository is not ours
        return os.environ.get("REREAD_COMMIT") or None
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(SOURCE), *arguments], capture_output=True, text=True, timeout=20,
                              check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
