"""Replies of language models that were paid for, kept so that none is paid for twice.

One SQLite file in WAL mode below the store's local folder, chosen because it needs nothing that Python does not bring,
because a reply is there once `put` returns, whatever is killed afterwards, and because several processes of one machine
may read and write it at once. Rows are only ever added. A power cut may cost the last of them, never the file. Processes on other machines must not open it (WAL needs shared
memory): the one that started them writes their replies down. Nothing depends on the cache but the bill: the manifest
of an artifact says what was made, and deleting the file costs money, never a result.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.errors import ArtifactError
from storage.home import local_home, make_folder

FILE = "replies.sqlite"
TABLE = ("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, about TEXT, content TEXT, finish TEXT, "
         "tokens_in INTEGER, tokens_out INTEGER, made TEXT)")
PATIENCE = 60.0      # longest wait for another process that writes [seconds]


@dataclass(frozen=True)
class Reply:
    """What a model said, as it came.

    finish                 why it stopped: stop, length (of the limit), content_filter; or malformed (no reply at all)
    tokens_in, tokens_out  as the server counts them; 0 where it does not
    """

    content: str
    finish: str = "stop"
    tokens_in: int = 0
    tokens_out: int = 0


def folder_of(home: Path | None = None) -> Path:
    """`cache/rewriting` of a store's local folder (`Store.folder`); None = of the home of artifacts."""
    return (local_home() if home is None else home) / "cache" / "rewriting"


class ReplyCache:
    """Replies by key. One object may be used from several threads. Raises ArtifactError where the file is no use."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_folder(Path(folder))
        self.path = self.folder / FILE
        self._lock = threading.Lock()
        self._database = self._guarded(self._open)

    def get(self, key: str) -> Reply | None:
        """The reply kept under a key."""
        rows = self._run("SELECT content, finish, tokens_in, tokens_out FROM replies WHERE key = ?", key)
        return Reply(*rows[0]) if rows else None

    def get_many(self, keys: Iterable[str]) -> dict[str, Reply]:
        """Those of the keys that are kept, with their replies."""
        return {key: reply for key in keys if (reply := self.get(key)) is not None}

    def put(self, key: str, reply: Reply, about: str = "") -> None:
        """Keep a reply for good; what is there already stays. `about`: model and instruction, for people who look."""
        made = datetime.now(UTC).isoformat(timespec="seconds")
        self._run("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?)", key, about, reply.content, reply.finish,
                  reply.tokens_in, reply.tokens_out, made)

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Hold the right to ask for a key; False while another task, thread or process of this machine holds it.

        The kernel frees it when its holder dies.
        """
        path = self.folder / f"{key}.lock"
        with open(path, "a") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if not _names(path, held.fileno()):      # its last holder removed it between our two calls
                yield False
                return
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _run(self, statement: str, *values: Any) -> list[tuple]:
        with self._lock:
            return self._guarded(lambda: self._database.execute(statement, values).fetchall())

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        began = time.monotonic()
        while True:                                  # SQLite does not wait by itself while the mode is switched
            try:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")      # a busy disk takes 40 ms and more to sync
                database.execute(TABLE)
                return database
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() - began > PATIENCE:
                    database.close()
                    raise
                time.sleep(0.02)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except sqlite3.Error as error:
            raise ArtifactError(
                f"the cache of replies {self.path} cannot be used: {error}; free some space or set REREAD_HOME to a "
                "local folder that can be written, or, if the file is damaged, delete it: no result is lost with it, "
                "the replies in it are asked for again") from error


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.fstat(descriptor).st_ino == os.stat(path).st_ino
    except FileNotFoundError:
        return False
