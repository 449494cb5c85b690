"""`reread compare`: kept answers of two or more evaluations or trainings, and what the trainings have different."""

from __future__ import annotations

import json as json_format
import re
from dataclasses import dataclass
from typing import Any

from flows.commands.look import whole
from flows.commands.output import document, interval, say, table
from flows.overrides import flat
from storage.artifacts import Manifest, Store
from storage.errors import SpecError

RUN = re.compile(r"[0-9a-f]{4,32}")
ALPHA = 0.05
PLENTY = 20_000            # resamples at most, where many differences are judged together
SUMMARY = "summary.json"
NO_RESULT = ("architecture", "model", "seed", "processor", "torch", "notes")       # of a summary: settings and circumstances


@dataclass(frozen=True)
class Compared:
    """The rows of one comparison, first minus second."""

    first: str
    second: str
    metric: str
    rows: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second, "metric": self.metric, "rows": self.rows}


def compare_runs(given: list[str], metric: str | None, json: bool) -> None:
    """Each against the first. Evaluations by their answers; trainings by settings, final figures and their evaluations.

    :raises SpecError: fewer than two, of kinds that cannot be compared, or asked other prompts
    """
    if len(given) < 2:
        raise SpecError("compare needs two or more: scores artifacts, checkpoints, or ids of their runs in MLflow")
    store = Store()
    found = [resolve(store, each) for each in given]
    twice = [one for number, one in enumerate(found) if one in found[:number]]
    if twice:
        raise SpecError(f"{twice[0]} is named twice; give different ones")
    manifests = [store.manifest(one) for one in found]
    if all(one.kind == "checkpoint" for one in manifests):
        _trainings(store, manifests, metric, json)
        return
    scores = _scores(store, manifests)
    pairs = judged(store, [(scores[0], other) for other in scores[1:]], metric)
    if not json:
        _tell(pairs)
    elif len(pairs) == 1:
        document({"first": scores[0], "second": scores[1], "metric": pairs[0].metric,
                  "rows": [{key: value for key, value in row.items() if key != "holds"} for row in pairs[0].rows]})
    else:
        document({"first": scores[0], "metric": pairs[0].metric, "note": note(pairs),
                  "comparisons": [{"second": pair.second, "rows": pair.rows} for pair in pairs]})


def resolve(store: Store, given: str) -> str:
    """The artifact that is meant: its id or first letters, a run's id in MLflow or its first letters, `models:/NAME/3`.

    :raises ArtifactError: there is none
    :raises TrackingError: there is no such run or model
    :raises SpecError: an artifact that is neither scores nor a checkpoint
    """
    artifact = given
    if RUN.fullmatch(given):
        artifact = _of_run(given)
    elif given.startswith("models:/"):
        from storage.tracking.registry import Registry

        artifact = Registry().version(given).tags.get("checkpoint", given)
    artifact = whole(store, artifact)
    kind = store.manifest(artifact).kind
    if kind not in ("scores", "checkpoint"):
        raise SpecError(f"{given} is a {kind} artifact{'' if artifact == given else f' ({artifact})'}; compare takes scores, "
                        "checkpoints, or ids of their runs in MLflow")
    return artifact


def _of_run(start: str) -> str:
    from storage.tracking.references import run_by_id

    run = run_by_id(start)
    if "artifact" not in run.tags:
        raise SpecError(f"run {run.id} ({run.name}) has no tag `artifact`, so it is no evaluation or training of reread")
    return run.tags["artifact"]


# ----------------------------------------------------------------------------------------------------------- evaluations
def _scores(store: Store, manifests: list[Manifest]) -> list[str]:
    """Scores as they are; a checkpoint stands for its answers to the prompts that the scores given were asked."""
    asked = {one.inputs.get("prompts") for one in manifests if one.kind == "scores"}
    found = []
    for one in manifests:
        if one.kind == "scores":
            found.append(one.id)
            continue
        own = [each.id for each in evaluations(store, one.id) if each.inputs.get("prompts") in asked]
        if len(own) != 1:
            raise SpecError(f"{one.id} has {'no' if not own else 'several'} scores of the prompts {', '.join(map(str, asked))}"
                            + (f" ({', '.join(own)}); name one of them" if own else
                               f"; make them with reread evaluate --checkpoint {one.id} --prompts {next(iter(asked))}"))
        found += own
    return found


def evaluations(store: Store, checkpoint: str) -> list[Manifest]:
    """The scores of a checkpoint, oldest first."""
    return [one for one in store.list("scores") if one.inputs.get("checkpoint") == checkpoint]


def judged(store: Store, pairs: list[tuple[str, str]], metric: str | None) -> list[Compared]:
    """Every comparison; `holds` tells of each difference whether its interval excludes zero at a level so high that all
    of them together are wrong at most one time in twenty (Bonferroni)."""
    from tasks.statistics import compare

    found = [Compared(first, second, metric or metric_of(store, first), compare(
        store.path(first), store.path(second), metric or metric_of(store, first))) for first, second in pairs]
    number = sum(len(one.rows) for one in found)
    for one in found:
        again = one.rows if number == 1 else compare(
            store.path(one.first), store.path(one.second), one.metric, level=1 - ALPHA / number,
            resamples=min(PLENTY, max(2000, 200 * number)))
        for row, wide in zip(one.rows, again):
            row["holds"] = wide["low"] is not None and (wide["low"] > 0 or wide["high"] < 0)
    return found


def metric_of(store: Store, scores: str) -> str:
    """What an evaluation scored by: the task's own metric goes before its spec's."""
    manifest = store.manifest(scores)
    prompts = manifest.inputs.get("prompts", "")
    own = store.manifest(prompts).counts.get("metric") if prompts and store.exists(prompts) else None
    return own or manifest.spec["metric"]


def note(pairs: list[Compared]) -> str:
    """What many intervals mean together."""
    number = sum(len(pair.rows) for pair in pairs)
    held = sum(row["holds"] for pair in pairs for row in pair.rows)
    return (f"{number} differences, each with a 95 % interval of its own: among 20 that are not real one will seem to be. "
            f"{held} exclude{'s' if held == 1 else ''} zero when all are judged together (Bonferroni, 5 %)")


def _tell(pairs: list[Compared]) -> None:
    for number, pair in enumerate(pairs):
        say() if number else None
        table(["task", "column", "order", "control", "n", "first", "second", "difference", "95 %",
               *(["holds"] if len(pairs) > 1 else [])],
              [[row.get("task"), row["column"], row["order"], row["control"], row["n"], f"{row['a']:.3f}", f"{row['b']:.3f}",
                f"{row['difference']:+.3f}", interval(row, signed=True),
                *(["yes" if row["holds"] else "no"] if len(pairs) > 1 else [])] for row in pair.rows],
              right=("n", "first", "second", "difference"))
        say(f"\n{pair.metric}: {pair.first} minus {pair.second}; documents are resampled, the same for both")
    if sum(len(pair.rows) for pair in pairs) > 1:
        say(note(pairs))


# ------------------------------------------------------------------------------------------------------------- trainings
def _trainings(store: Store, manifests: list[Manifest], metric: str | None, json: bool) -> None:
    names = [one.id for one in manifests]
    settings = differing([flat({**one.spec, "input": one.inputs, "code": one.code[:16], "commit": one.git_commit})
                          for one in manifests])
    results = _results(store, manifests)
    pairs = judged(store, _common(store, manifests), metric)
    if json:
        document({"checkpoints": names, "settings": settings, "results": results,
                  "comparisons": [pair.as_dict() for pair in pairs], "note": note(pairs) if pairs else None})
        return
    for number, one in enumerate(manifests, 1):
        say(f"{number}  {one.id}  {one.spec.get('architecture', '')} seed {one.spec.get('seed', '–')}")
    columns = [str(number) for number in range(1, len(names) + 1)]
    say()
    table(["setting that differs", *columns], [[row["name"], *map(_shown, row["values"])] for row in settings]
          or [["none", *("" for _ in names)]])
    say()
    table(["final figure", *columns], [[row["name"], *map(_shown, row["values"])] for row in results], right=tuple(columns))
    say()
    if pairs:
        _tell(pairs)
    else:
        say("no prompts were asked of all of them in the same way; reread evaluate makes scores to compare")


def _common(store: Store, manifests: list[Manifest]) -> list[tuple[str, str]]:
    """(first's scores, another's) over the same prompts and asked in the same way."""
    found = []
    own = {one.id: {(each.inputs.get("prompts"), json_format.dumps(each.spec, sort_keys=True)): each.id
                    for each in evaluations(store, one.id)} for one in manifests}
    first, *others = (own[one.id] for one in manifests)
    for asked, scores in first.items():
        if all(asked in other for other in others):
            found += [(scores, other[asked]) for other in others]
    return found


def _results(store: Store, manifests: list[Manifest]) -> list[dict[str, Any]]:
    """Final figures side by side, those that at least one of them has."""
    found = []
    for one in manifests:
        path = store.path(one.id) / SUMMARY
        summary = json_format.loads(path.read_text(encoding="utf-8")) if path.is_file() else one.counts
        found.append({name: value for name, value in summary.items() if isinstance(value, (int, float))
                      and not isinstance(value, bool) and name not in NO_RESULT})
    return [{"name": name, "values": [each.get(name) for each in found]} for name in dict.fromkeys(
        name for each in found for name in each)]


def differing(several: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """{name, values} of what is not the same in all; None where one has no such field."""
    names = sorted({name for each in several for name in each})
    rows = [{"name": name, "values": [each.get(name) for each in several]} for name in names]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else (
        value if isinstance(value, str) else json_format.dumps(value))


