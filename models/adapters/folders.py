"""A folder that is written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.errors import ConfigError

CONFIG = "config.json"     # what tells a model folder from any other


@contextmanager
def whole_folder(target: str | Path, force: bool = False, marker: str = CONFIG, what: str = "model") -> Iterator[Path]:
    """A temporary folder beside `target`, which gets that name when the block ends without an error.

    Until then `target` is untouched, and after an error nothing is left. An empty folder is taken; one with files only
    with `force`, and only if it holds a `what`, known by its file `marker`, so that a slip of the hand deletes no other
    work. Raises ConfigError before anything is written.
    """
    target = Path(os.path.abspath(target))
    check_free(target, force, marker, what)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror}); choose another folder") from error
    try:
        yield work
        work.chmod(0o777 & ~_umask())
        for path in work.rglob("*"):
            if path.is_file():
                path.chmod(0o666 & ~_umask())
        _exchange(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def check_free(target: Path, force: bool, marker: str = CONFIG, what: str = "model") -> None:
    """ConfigError unless `target` may be written: absent, empty, or a folder with `marker` in it and `force`."""
    if target.is_dir():
        held = sorted(path.name for path in target.iterdir())
        if held and not force:
            raise ConfigError(f"{target} is not empty (it holds {', '.join(held[:3])}); choose another folder, or "
                              f"--force to replace the {what} in it")
        if held and marker not in held:
            raise ConfigError(f"{target} holds {', '.join(held[:3])} and no {marker}: it is no {what} folder, so it is "
                              "not replaced; choose another folder")
    elif target.exists() or target.is_symlink():
        raise ConfigError(f"{target} is not a folder; choose another name")


def _exchange(work: Path, target: Path) -> None:
    """Give `work` the name `target`; what stood there is moved aside first and put back if that fails."""
    if not target.exists():
        os.rename(work, target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    os.rename(target, aside / "was")
    try:
        os.rename(work, target)
    except BaseException:
        os.rename(aside / "was", target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
