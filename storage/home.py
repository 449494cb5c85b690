"""Where everything that is kept lives: `REREAD_HOME`, a folder or any fsspec URL (default `.reread`)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from storage.errors import ArtifactError

DEFAULT = ".reread"


def home() -> str:
    """`REREAD_HOME`, or `.reread` in the working directory: an absolute path, or an fsspec URL left as it is."""
    return absolute(os.environ.get("REREAD_HOME") or DEFAULT)


def absolute(root: str | os.PathLike) -> str:
    """A root without trailing slash; local ones absolute, so that a worker in another folder means the same place."""
    root = os.fspath(root)
    if is_url(root):
        return root.rstrip("/") if not root.endswith("://") else root
    try:
        return os.path.abspath(os.path.expanduser(root))
    except FileNotFoundError as error:
        raise ArtifactError(f"the folder that this was started in is gone, so {root} means no place; go to another folder, or "
                            "set REREAD_HOME to an absolute path") from error


def is_url(root: str) -> bool:
    """True for `scheme://…`, which fsspec opens; False for a local path."""
    return "://" in root


def make_folder(folder: Path) -> Path:
    """A folder below the home, made if it is not there. `ArtifactError` when that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot make the folder {folder}: {error.strerror}; set REREAD_HOME to a folder that can "
                            "be written") from error
    return folder


def local_home(root: str | None = None) -> Path:
    """A local folder for what cannot live at a URL (databases, spools, downloaded copies).

    For a local root the root itself; for a URL `REREAD_CACHE`, or a folder of `~/.cache/reread` named after the URL.
    """
    root = absolute(root) if root else home()
    if not is_url(root):
        return Path(root)
    cache = os.environ.get("REREAD_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "reread")
    return Path(cache).absolute() / hashlib.sha256(root.encode()).hexdigest()[:12]
