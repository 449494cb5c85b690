"""`reread bench`: the tables of a run, and the list of what can be timed."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Any

from flows.commands.output import document, say, table
from storage.errors import StageFailed


def show_timings(rows: list[dict[str, Any]], folder: Path) -> None:
    """One table a measure, then the published figures that have a counterpart, then what is not here."""
    from tasks.bench import NOTES
    from tasks.benchmarks import notes, page, refusals

    for one in page.tables(rows):
        table(one.columns, one.rows, right=tuple(one.columns[2:]), title=one.title)
        say(one.note)
        say()
    beside = page.compared(rows)
    if beside.rows:
        table(beside.columns, beside.rows, right=("n", "x SDPA here", "x FA2 published"), title=beside.title)
        say(beside.note)
    absent = json_format.loads((folder / NOTES).read_text(encoding="utf-8"))["absent"]
    for sentence in absent:
        say(f"not here: {sentence}")
    for row in rows:
        if row["ms"] is None:
            say(f"{'refused' if refusals.ran(row) else 'no result'}: {place(row)}: {refusals.reason(row)}")
    contended = notes.contention(rows)
    if contended:
        say(contended)


def place(row: dict[str, Any]) -> str:
    """Which row that is."""
    return f"{row['op']} ({row['backend']}), {row['measure']}, n {row['n']:,}"


def check_timings(folder: Path) -> None:
    """StageFailed, hence exit code 1, when something of ours has no time. A peer may fail, and memory may be short."""
    from tasks.bench import FILE
    from tasks.benchmarks import refusals

    broken = refusals.broken(json_format.loads((folder / FILE).read_text(encoding="utf-8")))
    if broken:
        first = broken[0]
        raise StageFailed(f"{len(broken)} of this project's own rows have no time, for example {place(first)}: "
                          f"{refusals.reason(first)}. All rows are kept")


def warn(device: str) -> None:
    """Say on stderr what this machine lacks for what is planned."""
    from tasks.benchmarks import machine

    if lacking := machine.lacking(device):
        sys.stderr.write(f"{lacking}\n")


def list_bench(json: bool) -> None:
    """Presets with their sections, operations with their implementations and whether each runs here."""
    from tasks.benchmarks import presets, registry
    from tasks.benchmarks.operation import Setting

    found = {name: {"about": one.about, "takes": one.takes, "needs": "a CUDA GPU" if one.cuda else None,
                    "sections": [section.about() for section in one.sections]}
             for name, one in presets.presets("cpu").items()}
    here = Setting(2048)
    operations = {operation.name: {"about": operation.about, "implementations": [form.name for form in operation.implementations],
                                   "here": [form.name for form in operation.running(here, peers=True)],
                                   "decode": operation.step is not None}
                  for operation in registry.every().values()}
    if json:
        document({"presets": found, "operations": operations})
        return
    table(["preset", "takes", "what"], [[name, one["takes"], one["about"]] for name, one in found.items()],
          title="Presets, as on a CPU")
    say()
    for name, one in found.items():
        if name != "full":
            say(f"{name}:")
            for section in one["sections"]:
                say(f"  {section}")
    say()
    table(["operation", "what", "here, at 2,048 tokens", "elsewhere"],
          [[name, one["about"], ", ".join(one["here"]), ", ".join(sorted(set(one["implementations"]) - set(one["here"])))]
           for name, one in operations.items()], title="Operations")
