"""The empty database of a Prefect server, migrated once per environment instead of once per home.

Prefect builds its SQLite file by some hundred migrations, which took 16 of the 30 seconds of a first start on two cores.
`make env` runs them once (`python -m flows.services.prefect_database`); a new home gets a copy, in which Prefect finds
nothing left to do. Without that file, or with another release of Prefect, the server migrates as it always did.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

ELSEWHERE = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_SERVER_DATABASE_HOST",
             "PREFECT_API_DATABASE_HOST")
FILE = "prefect.db"


def template() -> Path:
    """Where this environment's migrated, empty database lies, for this release of Prefect."""
    return Path(sys.prefix) / "share" / "reread" / f"prefect-{version('prefect')}.db"


def provide(home: Path) -> bool:
    """Put a copy into Prefect's home, unless it has a database or Prefect is told of another one. Whether it did."""
    try:
        if (home / FILE).exists() or any(os.environ.get(name) for name in ELSEWHERE) or not template().exists():
            return False
        home.mkdir(parents=True, exist_ok=True)
        _copy(template(), home / FILE)
    except (OSError, sqlite3.Error):       # whatever it is, Prefect will meet it too, and tell it
        return False
    return True


def make(place: Path | None = None) -> Path:
    """Let Prefect migrate an empty database and keep it as the template; one that is there stays.

    :raises subprocess.CalledProcessError: the migrations failed
    """
    place = place or template()
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        subprocess.run([sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"], check=True,
                       env=environment | {"PREFECT_HOME": home}, stdout=subprocess.DEVNULL,
                       cwd=home)            # a file of settings in this folder, such as .env, may name somebody's database
        _copy(Path(home) / FILE, place)
    return place


def _copy(source: Path, target: Path) -> None:
    """All at once, and never over a file that is there; what a write-ahead log still holds comes along, and the copy has
    none, so that it can be read where nothing can be written."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as read, closing(sqlite3.connect(draft)) as write:
            read.backup(write)
            write.execute("pragma journal_mode=delete")
        try:
            os.link(draft, target)
        except FileExistsError:
            pass
        except OSError:                     # no hard links on this file system
            if not target.exists():
                os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


if __name__ == "__main__":
    make()
