"""The command line is an interface: its options, JSON forms and exit codes are frozen here."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import typer

from flows import cli, studies

# command -> its options and arguments. A change here is a change of the interface: say so in CHANGELOG.md.
FROZEN = {
    "": ["--debug", "--home"],
    "ask": ["--cloze", "--document", "--json", "--max-tokens", "--order", "--question", "--strategy", "--tokenizer",
            "CHECKPOINT"],
    "bench": ["--dry-run", "--flow", "--json", "--list", "--preset", "--set"],
    "claims check": ["--json"],
    "claims list": ["--json", "WORDS"],
    "claims show": ["--json", "CLAIM"],
    "cloze": ["--dry-run", "--flow", "--json", "--limit", "--order", "--questions", "--set", "--shots", "--source",
              "--task", "--template", "--tokenizer"],
    "compare": ["--json", "--metric", "RUN RUN..."],
    "deploy": ["--checkpoint", "--dry-run", "--flow", "--json", "--set"],
    "doctor": ["--json"],
    "down": [],
    "evaluate": ["--checkpoint", "--dry-run", "--flow", "--json", "--prompts", "--questions", "--set", "--strategy",
                 "--task"],
    "export": ["--force", "--format", "--json", "--set", "FOLDER", "WHAT"],
    "extrapolate": ["--books", "--checkpoint", "--dry-run", "--flow", "--json", "--set"],
    "harness-task": ["--json", "FOLDER", "PROMPTS"],
    "import": ["--force", "--json", "--preset", "--tokenizer", "FOLDER", "PATH"],
    "list": ["--json", "--kind"],
    "lm-eval": [],
    "models": ["--json", "--only"],
    "models mixers": ["--json"],
    "models show": ["--json", "NAME"],
    "nightly run": ["--dry-run", "--fail-on-regression", "--flow", "--if-due", "--json", "--suite"],
    "nightly show": ["--json", "--suite"],
    "nightly trend": ["--json", "--suite", "--task", "--to", "[MODEL]"],
    "perplexity": ["--checkpoint", "--dry-run", "--flow", "--json", "--set"],
    "pretrain": ["--dry-run", "--flow", "--json", "--model", "--seed", "--set"],
    "prune": ["--dry-run", "--json", "--keep", "--older-than", "--without-tracking", "--yes"],
    "rescore": ["--json", "--metric", "SCORES"],
    "samples": ["--force", "--json", "FILE", "SCORES"],
    "show": ["--json", "ARTIFACT"],
    "status": ["--json"],
    "study list": ["--json"],
    "study run": ["--dry-run", "--json", "--only", "--set", "STUDY"],
    "study show": ["--json", "--set", "STUDY"],
    "tokenise": ["--dry-run", "--flow", "--json", "--set", "--source", "--tokenizer"],
    "up": ["--detach"],
}


def walk(command, name: str = ""):
    if getattr(command, "commands", None):
        if not name or command.invoke_without_command:
            yield name, command
        for key, child in command.commands.items():
            yield from walk(child, f"{name} {key}".strip())
    else:
        yield name, command


def commands() -> dict:
    return dict(walk(typer.main.get_command(cli.app)))


def test_commands_and_options_are_frozen():
    found = {name: sorted((option.opts[0] if option.opts[0].startswith("-") else option.metavar)
                          for option in command.params if option.name != "help")
             for name, command in commands().items()}
    assert found == FROZEN


@pytest.mark.parametrize("name", [name for name in FROZEN if name])
def test_every_command_has_an_example_that_it_accepts(name):
    """The example in the help names the command itself and options that it has."""
    command = commands()[name]
    examples = [" ".join(part.split()) for part in command.help.split("\n\n") if part.strip().startswith("Example:")]
    assert examples, f"{name} has no example"
    for example in examples:
        assert example.startswith(f"Example: reread {name}")
        known = {text for option in command.params for text in option.opts}
        passes_on = command.context_settings.get("ignore_unknown_options")
        assert passes_on or {word for word in example.split() if word.startswith("--")} <= known


def test_help_imports_nothing_heavy():
    code = ("import sys; from flows import cli; cli.run(['--help']); cli.run(['study', 'run', '--help']); "
            "print('HEAVY', sorted(set(sys.modules) & {'torch', 'ray', 'prefect', 'mlflow', 'pyarrow', 'numpy', "
            "'transformers', 'deepspeed', 'datasets', 'matplotlib', 'pandas'}))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "HEAVY []"


EMPTY = """
import time, typer
app = typer.Typer()
@app.command()
def one(name: str): 'Do it.'
try: app(['--help'])
except SystemExit: print(time.process_time())
"""
OURS = "import time; from flows import cli; cli.run(['--help']); print(time.process_time())"


def test_help_costs_little_more_than_that_of_an_empty_program():
    """Processor time, least of three each, one after the other: others share the cores and the caches."""
    def seconds(code: str) -> float:
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()[-1])

    empty, ours = map(min, zip(*[(seconds(EMPTY), seconds(OURS)) for _ in range(3)]))
    print(f"reread --help {ours:.2f} s, an empty program of the same library {empty:.2f} s")
    assert ours < 2 * empty


@pytest.mark.parametrize("arguments, words", [
    (["study", "run", "qiuck"], ["did you mean quick"]),
    (["study", "run", "quick", "--set", "train.stepz=1"], ["did you mean steps"]),
    (["study", "run", "quick", "--set", "train.steps=x"], ["workloads.pydocs.train.steps", "'x'"]),
    (["study", "run", "none.yaml"], ["no study file none.yaml"]),
    (["pretrain"], ["--model"]),
    (["pretrain", "--model", "jrt-huge", "--dry-run"], ["jrt-huge", "jrt-tiny"]),
    (["pretrain", "--model", "jrt-tiny", "--seed", "-3"], ["seed", "-3"]),
    (["bench", "--preset", "slow"], ["slow"]),
    (["bench", "--dry-run", "--set", "lengths=[512, -4]"], ["lengths.1", "-4", "greater than or equal to 1"]),
    (["bench", "--dry-run", "--set", "lengths=0"], ["lengths.0", "greater than or equal to 1"]),
    (["bench", "--dry-run", "--set", "seed=99999999999999"], ["seed", "less than 2147483648"]),
    (["bench", "--dry-run", "--preset", "gate", "--set", "operations=prefix,lavo", "--set", "lengths=131073,700"],
     ["preset gate times 512", "131072", "131073"]),
    (["bench", "--dry-run", "--preset", "gate", "--set", "operations=prefix", "--set", "lengths=131072"],
     ["times none of prefix at 131072", "prefix at 512, 1024, 2048, 4096, 8192"]),
    (["nonsense"], ["nonsense"]),
    (["study", "run", "quick", "--colour"], ["--colour"]),
    (["show", "checkpoint-ffff"], ["checkpoint-ffff", "reread list"]),
    (["evaluate", "--checkpoint", "checkpoint-ffff", "--task", "lookup"], ["checkpoint-ffff"]),
    (["evaluate", "--checkpoint", "checkpoint-ffff"], ["prompts"]),
    (["cloze", "--task", "squd", "--dry-run"], ["squd", "lookup"]),
    (["cloze", "--task", "lookup", "--source", "none.txt"], ["none.txt"]),
])
def test_a_mistake_is_one_message_and_exit_code_2(reread, arguments, words):
    answer = reread(*arguments)
    assert answer.code == 2
    assert answer.out == "" and "Traceback" not in answer.err
    for word in words:
        assert word in answer.err


def test_a_dry_run_says_what_this_machine_lacks(reread, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = reread("bench", "--dry-run", "--json", "--set", "device=cuda")
    assert answer.code == 0 and answer.json["artifacts"] and "no CUDA device" in answer.err
    assert "CUDA" not in reread("bench", "--dry-run", "--set", "lengths=").err


def test_debug_shows_the_traceback(reread):
    answer = reread("--debug", "study", "run", "qiuck")
    assert answer.code == 2 and "Traceback" in answer.err and answer.err.count("error: ") == 1


def test_an_unexpected_error_is_code_1_without_a_traceback(reread, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("oh")
    monkeypatch.setattr("flows.commands.study.list_studies", broken)
    answer = reread("study", "list")
    assert answer.code == 1 and "ZeroDivisionError: oh" in answer.err and "Traceback" not in answer.err


def test_an_interruption_is_code_130(reread, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr("flows.commands.study.list_studies", interrupted)
    answer = reread("study", "list")
    assert answer.code == 130 and "interrupted" in answer.err


# ---------------------------------------------------------------------------------------------------------- JSON forms
def test_json_of_study_list(reread):
    found = reread("study", "list", "--json").json
    assert [study["name"] for study in found] == list(studies.shipped())
    assert [study["name"] for study in found][:5] == ["quick", "evening", "zoo", "fda", "jrt-table2"]
    assert all(set(study) == {"name", "about", "architectures", "tasks", "estimated_minutes"} for study in found)
    assert found[0]["architectures"] == ["based", "jrt", "transformer"]
    assert found[0]["tasks"] == ["disjoint", "lookup", "pydocs"]


def test_json_of_a_dry_run(reread):
    facts = reread("study", "run", "quick", "--dry-run", "--json").json
    assert set(facts) == {"artifacts", "parameters", "tokens", "state_bytes", "disk_bytes"}
    assert all(set(one) == {"id", "kind", "exists"} for one in facts["artifacts"])
    assert {one["kind"] for one in facts["artifacts"]} == {"corpus", "shards", "rows", "prompts", "checkpoint", "scores",
                                                           "timings", "report"}
    assert not any(one["exists"] for one in facts["artifacts"])
    assert facts["parameters"]["pydocs/jrt"] == 419_840 and set(facts["state_bytes"]) == set(facts["parameters"])
    assert facts["state_bytes"]["pydocs/transformer"] > facts["state_bytes"]["pydocs/jrt"]
    assert facts["tokens"] > 3 * 3_900_000 and facts["disk_bytes"] > 0


def test_json_of_models(reread):
    found = {model["name"]: model for model in reread("models", "--json").json}
    assert all(set(model) == {"name", "parameters", "flops_per_token", "state_bytes", "mixers", "abilities", "family",
                              "published"} for model in found.values())
    assert found["jrt-360m"]["parameters"] == 356_578_304
    jrt, transformer = found["jrt-tiny"], found["transformer-tiny"]
    assert set(jrt["state_bytes"]) == {"2048", "32768"} and jrt["state_bytes"]["2048"] == jrt["state_bytes"]["32768"]
    assert transformer["state_bytes"]["32768"] == pytest.approx(16 * transformer["state_bytes"]["2048"], rel=1e-4)
    assert jrt["abilities"]["prefix"] is True and transformer["abilities"]["prefix"] is False


def test_json_of_doctor(reread):
    answer = reread("doctor", "--json")
    facts = answer.json
    assert set(facts) == {"ok", "versions", "devices", "known_bad", "toolchain", "paths", "ports", "services"}
    assert facts["ok"] is (answer.code == 0) and facts["ok"] is (not facts["known_bad"])
    assert facts["versions"]["torch"] and facts["devices"]["cores"] >= 1
    assert all(set(one) == {"problem", "remedy"} for one in facts["known_bad"])


def test_json_of_a_cloze_preview(reread, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("The parameters of a call, as they are documented.\n\nParameters\n----------\n"
                    "axis : int, optional\n    Along which axis.\nname : str\n    What it is called.\n" + "More words. " * 20)
    found = reread("cloze", "--task", "pydocs", "--source", str(path), "--order", "default", "--order", "twice",
                   "--limit", "2", "--tokenizer", "bytes", "--set", "document_tokens=600", "--set", "total_tokens=4000",
                   "--json").json
    assert set(found) == {"prompts", "rejected"}
    assert len(found["prompts"]) == 2
    assert all(set(one) == {"id", "prompt", "answers", "tokens"} for one in found["prompts"])
    assert found["prompts"][0]["answers"][0] in ("int, optional", "str")


def test_json_of_lists_and_services_without_anything(reread):
    assert reread("list", "--json").json == []
    status = reread("status", "--json")
    assert status.code == 0 and [one["running"] for one in status.json["services"]] == [False, False, False]
    assert reread("down").out == "nothing was running\n"


def test_a_shown_study_can_be_run_again(reread, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(reread("study", "show", "smoke", "--set", "train.steps=3").out)
    assert reread("study", "show", str(path), "--json").json == reread(
        "study", "show", "smoke", "--set", "train.steps=3", "--json").json


def test_home_decides_where_things_are(reread, tmp_path):
    assert str(tmp_path / "elsewhere") in reread("--home", str(tmp_path / "elsewhere"), "doctor", "--json").out


def test_a_score_of_one_document_is_told_without_an_interval(home, capsys):
    """One document has nothing to resample: its interval is empty."""
    from types import SimpleNamespace

    from flows.commands.single import tell
    from storage.artifacts import Store
    from storage.errors import ArtifactError
    from tasks.evaluate import score_rows
    from tasks.specs import EvaluateSpec

    rows = [{"task": "lookup", "column": "list", "uncommon": False, "order": "default", "control": control, "item": "a",
             "document": "a", "correct": control == "none", "seconds": 0.1} for control in ("none", "empty")]
    scores = score_rows(rows, EvaluateSpec(bootstrap=100))
    assert scores[0]["low"] is None

    def build(folder):
        (folder / "scores.json").write_text(json.dumps(scores))

    store = Store()
    artifact = store.produce("scores", {}, {}, "code", build)
    tell("evaluate", SimpleNamespace(goal=SimpleNamespace(artifact=artifact)), store, json=False, did=1)
    assert "1.000  –" in capsys.readouterr().out
    (store.path(artifact) / "scores.json").write_text("[]")
    with pytest.raises(ArtifactError, match="scores.json"):
        tell("evaluate", SimpleNamespace(goal=SimpleNamespace(artifact=artifact)), store, json=False, did=0)


@pytest.mark.parametrize("arguments", [["list"], ["show", "corpus-0"], ["study", "run", "smoke"], ["up", "--detach"]])
def test_a_home_that_is_no_folder_is_a_mistake(reread, tmp_path, arguments):
    place = tmp_path / "file"
    place.touch()
    answer = reread("--home", str(place), *arguments)
    assert answer.code == 2 and answer.out == ""
    assert str(place) in answer.err and "set REREAD_HOME to a folder" in answer.err
    assert f"{place} is not a folder" in reread("--home", str(place), "doctor").out


def test_a_single_stage_runs_here_and_is_not_done_twice(reread):
    """Prompts of a task that brings its own data: no corpus, no server, no Ray."""
    arguments = ("cloze", "--task", "disjoint", "--limit", "2", "--set", "task_options.sizes=[[4, 8]]", "--json")
    first, began = reread(*arguments).json, time.time()
    second = reread(*arguments).json
    assert first["did"] == 1 and second["did"] == 0 and first["artifact"] == second["artifact"]
    assert time.time() - began < 30
    manifest = reread("show", first["artifact"][:12], "--json").json
    assert manifest["id"] == first["artifact"] and {"kind", "spec", "inputs", "code", "files", "counts"} <= set(manifest)
    assert [one["id"] for one in reread("list", "--kind", "prompts", "--json").json] == [first["artifact"]]
    assert json.dumps(manifest["spec"])
