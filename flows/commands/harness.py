"""`reread lm-eval`, and prompts and scores in the forms of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.commands.look import whole
from flows.commands.output import document, say, table
from storage.artifacts import Store
from storage.errors import ConfigError


def run_lm_eval(arguments: Sequence[str]) -> int:
    """lm_eval's own command line with the model `reread` in its list; its exit status."""
    from tasks.harness.run import main

    return main(arguments)


def export_prompts_command(prompts: str, target: str, json: bool = False) -> None:
    """A `prompts` artifact as a task folder, written whole or not at all."""
    from models.adapters.folders import whole_folder
    from tasks.harness.export import export_prompts

    folder = Path(target).absolute()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not empty; choose another folder")
    store = Store()
    identifier = whole(store, prompts)
    with whole_folder(folder) as work:
        tasks = export_prompts(store, identifier, work)
    if json:
        document({"prompts": identifier, "folder": str(folder), "tasks": tasks})
        return
    table(["task", "prompts"], [[name, count] for name, count in tasks.items()], right=("prompts",))
    say(f"\n{folder}")


def export_samples_command(scores: str, target: str, force: bool = False, json: bool = False) -> None:
    """A `scores` artifact as per-sample JSONL."""
    from tasks.harness.samples import export_samples

    file = Path(target).absolute()
    if file.is_dir() or (file.exists() and not force):
        raise ConfigError(f"{file} is there already; give another file" + ("" if file.is_dir() else ", or --force"))
    store = Store()
    identifier = whole(store, scores)
    count = export_samples(store, identifier, file)
    if json:
        document({"scores": identifier, "file": str(file), "samples": count})
        return
    say(f"{count:,} samples of {identifier}\n{file}")
