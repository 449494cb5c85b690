"""Progress: plain lines off a terminal, bars on one, never on stdout."""

import os
import pty
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from storage import progress as module
from storage.progress import progress

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def clock(monkeypatch):
    """Time that moves when told."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_come_every_ten_seconds_to_stderr(capsys, clock):
    with progress(9000, "tokenise", "documents") as bar:
        for _ in range(25):
            clock[0] += 1.0
            bar.advance(100)
        bar.note("shard 3")
        clock[0] += 10.0
        bar.advance(6500)
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.splitlines() == [
        "tokenise: 1,000/9,000 documents (11 %), 100/s, 1:20 left",
        "tokenise: 2,000/9,000 documents (22 %), 100/s, 1:10 left",
        "tokenise: 9,000/9,000 documents (100 %), 257/s, 0:35 in all, shard 3"]


def test_the_end_of_long_work_is_shown(capsys, clock):
    with progress(20, "train", "steps") as bar:
        clock[0] += 11.0
        bar.advance(19)
        clock[0] += 1.0
        bar.advance(1)
    assert capsys.readouterr().err.splitlines()[1:] == ["train: 20/20 steps (100 %), 1.7/s, 0:12 in all"]


def test_short_work_says_nothing(capsys, clock):
    with progress(10, "quick", "rows") as bar:
        clock[0] += 9.0
        bar.advance(10)
    assert capsys.readouterr().err == ""


def test_an_unknown_total_shows_count_and_rate(capsys, clock):
    with progress(None, "read", "rows") as bar:
        clock[0] += 3700.0
        bar.advance(50)
    assert capsys.readouterr().err.splitlines() == ["read: 50 rows, 0.014/s"]


def test_threads_lose_no_step():
    with progress(8000, "threads", "steps") as bar:
        threads = [threading.Thread(target=lambda: [bar.advance() for _ in range(1000)]) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert bar.done == 8000


def test_an_error_inside_passes_through():
    with pytest.raises(KeyError), progress(3, "fails", "rows"):
        raise KeyError


def test_bars_on_a_terminal_nest_and_leave_stdout_and_logs_alone():
    script = textwrap.dedent("""
        import threading
        from storage.logs import configure_logging, get
        from storage.progress import progress
        configure_logging("INFO")
        with progress(2, "outer", "parts") as outer:
            for part in range(2):
                with progress(100, f"inner {part}", "rows") as inner:
                    inner.advance(50)
                    get("test").info("a line between %d", part)
                    inner.note("half way")
                    inner.advance(50)
                outer.advance()
            outer.bars.refresh()
            print('{"json": true}')
        """)
    terminal, end = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stderr=end, stdout=subprocess.PIPE,
                               env={**os.environ, "TERM": "xterm", "COLUMNS": "120"})
    os.close(end)
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:            # the other end is closed
            break
        if not piece:
            break
        shown += piece
    assert process.communicate()[0] == b'{"json": true}\n' and process.returncode == 0
    text = shown.decode()
    assert "outer" in text and "2/2" in text
    assert text.count("a line between") == 2 and "Traceback" not in text
