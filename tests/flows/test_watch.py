from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time

from flows.commands.study import overhead
from flows.planning.plan import Plan, Stage
from flows.showing import notes, watch
from tests.conftest import ROOT
from tests.flows.tiny_stages import TinySpec


def stages() -> Plan:
    make = {key: Stage(key, "corpus", f"make {key}", TinySpec(name=key), {}, f"tiny-{key}", key == "old")
            for key in ("old", "new")}
    return Plan("tiny", make, make["new"])


def test_lines_tell_what_starts_and_ends(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    plan = stages()
    with watch.Watch(plan, tmp_path) as shown:
        shown.started(plan.stages["new"])
        shown.finished(plan.stages["new"], 2.5)
    text = sys.stderr.getvalue()
    assert "1 of 2 stages to do" in text and "start   make new" in text and "done    make new in 2.5 s: tiny-new" in text


def test_now_and_then_a_line_says_what_a_running_stage_does(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(watch, "LINE_SECONDS", 0.0)
    plan = stages()
    with watch.Watch(plan, tmp_path) as shown:
        shown.started(plan.stages["new"])
        shown.note_path(plan.stages["new"]).write_text('{"note": "step 7"}')
        time.sleep(0.01)
        shown.tick()
    assert "step 7" in sys.stderr.getvalue()


def test_the_live_table_has_a_row_a_stage(monkeypatch):
    plan = stages()
    shown = watch.Watch(plan, None)
    shown.state["new"], shown.times["new"] = "running", time.time() - 65
    table = shown.table()
    assert table.row_count == 2 and "1/2" in table.title


def test_the_last_line_on_stderr_becomes_the_note(monkeypatch, tmp_path):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(notes, "EVERY_SECONDS", 0.0)
    path = tmp_path / "deep" / "note.json"
    with notes.noting(path):
        sys.stderr.write("12:00:00 I reread.tasks.x: train: 1/9 st")
        sys.stderr.write("eps\n\n\x1b[33m  2/9 steps\x1b[0m\rhalf a li")
        assert notes.read(path)["note"] == "2/9 steps"
        sys.stderr.write("12:00:01 I reread.tasks.x: saved\n")
        assert notes.read(path)["note"] == "half a li12:00:01 I reread.tasks.x: saved"
        sys.stderr.write("12:00:02 I reread.tasks.x: saved again\n")
        assert notes.read(path)["note"] == "saved again"
    assert sys.stderr is stream and "2/9 steps" in stream.getvalue()
    assert notes.read(tmp_path / "none.json") == {}


def test_overhead_is_wall_time_without_a_stage_at_work():
    stages = {"a": {"began": 10.0, "ended": 20.0}, "b": {"began": 12.0, "ended": 22.0}, "c": {"began": 30.0, "ended": 31.0}}
    assert overhead(stages, 25.0) == 25.0 - 12.0 - 1.0
    assert overhead({}, 3.0) == 3.0


def test_clock():
    assert [watch.clock(s) for s in (0.04, 59.94, 61, 3723)] == ["0.0 s", "59.9 s", "1:01", "1:02:03"]


def test_a_terminal_gets_the_live_table(tmp_path):
    """A real pseudo-terminal: the table is drawn, redrawn, and left as it ended."""
    import os
    import pty

    code = """
from tests.flows.test_watch import stages
from flows.showing.watch import Watch
plan = stages()
with Watch(plan, None) as shown:
    shown.started(plan.stages["new"])
    shown.finished(plan.stages["new"], 75)
"""
    main, side = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=side, stdout=subprocess.PIPE, cwd=ROOT,
                               env={**os.environ, "COLUMNS": "100", "TERM": "xterm"})
    os.close(side)
    said = b""
    with contextlib.suppress(OSError):                  # the other side closes
        while chunk := os.read(main, 4096):
            said += chunk
    assert process.wait(30) == 0 and process.stdout.read() == b""
    text = said.decode()
    assert "2/2" in text and "make new" in text and "1:15" in text and "was there" in text
