"""What a person sees while a study runs: a live table on a terminal, plain lines elsewhere. Always stderr."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from flows.planning.plan import Plan, Stage
from flows.showing import notes

LINE_SECONDS = 30.0


class Watch:
    """Told by the study which stages start and end; reads their notes itself."""

    def __init__(self, plan: Plan, folder: Path | None) -> None:
        self.title = f"study {plan.name}" if plan.study else plan.goal.title
        self.stages, self.folder = list(plan.stages.values()), folder
        self.began = time.time()
        self.state = {stage.key: "was there" if stage.exists else "waiting" for stage in self.stages}
        self.times: dict[str, float] = {}
        self.live = None
        self.last_line = time.monotonic()

    def note_path(self, stage: Stage) -> Path | None:
        return self.folder / f"{stage.key.replace('/', '.')}.json" if self.folder else None

    def note(self, stage: Stage) -> str:
        path = self.note_path(stage)
        return notes.read(path).get("note", "") if path else ""

    def __enter__(self) -> Watch:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(get_renderable=self.table, console=Console(stderr=True), refresh_per_second=2,
                             redirect_stdout=False, redirect_stderr=True)
            self.live.start()
        else:
            missing = sum(not stage.exists for stage in self.stages)
            self.line(f"{self.title}: {missing} of {len(self.stages)} stages to do")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.refresh()
            self.live.stop()

    def line(self, text: str) -> None:
        if self.live is None:
            sys.stderr.write(f"[{clock(time.time() - self.began):>7}] {text}\n")
            sys.stderr.flush()

    def started(self, stage: Stage) -> None:
        self.state[stage.key] = "running"
        self.times[stage.key] = time.time()
        self.line(f"start   {stage.title}")

    def finished(self, stage: Stage, seconds: float) -> None:
        self.state[stage.key] = "done"
        self.times[stage.key] = seconds
        self.line(f"done    {stage.title} in {clock(seconds)}: {stage.artifact}")

    def failed(self, stage: Stage) -> None:
        self.state[stage.key] = "failed"
        self.times[stage.key] = time.time() - self.times[stage.key]
        self.line(f"FAILED  {stage.title}")

    def tick(self) -> None:
        """Now and then, without a terminal: what the running stages say."""
        if self.live is None and time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            for stage in self.stages:
                if self.state[stage.key] == "running":
                    self.line(f"        {stage.title} ({clock(self.elapsed(stage))}): {self.note(stage) or '...'}")

    def elapsed(self, stage: Stage) -> float:
        value = self.times.get(stage.key, 0.0)
        return time.time() - value if self.state[stage.key] == "running" else value

    def table(self):
        """The live view: finished stages shrink to a line when there are many."""
        from rich.table import Table
        from rich.text import Text

        styles = {"done": "green", "was there": "dim", "running": "bold cyan", "waiting": "dim", "failed": "bold red"}
        finished = sum(self.state[stage.key] in ("done", "was there") for stage in self.stages)
        table = Table(title=f"{self.title}  {finished}/{len(self.stages)}  {clock(time.time() - self.began)}",
                      title_justify="left", box=None, pad_edge=False)
        for name in ("stage", "state", "time", "note"):
            table.add_column(name, justify="right" if name == "time" else "left", no_wrap=True, overflow="ellipsis")
        for stage in self.stages:
            state = self.state[stage.key]
            note = self.note(stage) if state == "running" else ""
            table.add_row(Text(stage.title, styles[state]), Text(state, styles[state]),
                          clock(self.elapsed(stage)) if self.times.get(stage.key) else "", Text(note, "dim"))
        return table


def clock(seconds: float) -> str:
    """1:02:03, 2:03 or 3.4 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
