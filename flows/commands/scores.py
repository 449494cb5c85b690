"""`reread compare` and `reread rescore`: kept answers, read again without a model."""

from __future__ import annotations

from typing import Any

from flows.commands.look import whole
from flows.commands.output import document, say, table
from storage.artifacts import Store


def compare_scores(first: str, second: str, metric: str | None, json: bool) -> None:
    """Paired differences of two evaluations of the same prompts, first minus second.

    :raises SpecError: the prompts differ, or there is no such metric
    """
    from tasks.statistics import compare

    store = Store()
    a, b = (whole(store, each) for each in (first, second))
    chosen = metric or _metric(store, a)
    rows = compare(store.path(a), store.path(b), chosen)
    if json:
        document({"first": a, "second": b, "metric": chosen, "rows": rows})
        return
    table(["task", "column", "order", "control", "n", "first", "second", "difference", "95 %"],
          [[row.get("task"), row["column"], row["order"], row["control"], row["n"], f"{row['a']:.3f}", f"{row['b']:.3f}",
            f"{row['difference']:+.3f}", _interval(row)] for row in rows], right=("n", "first", "second", "difference"))
    say(f"\n{chosen}: {a} minus {b}; documents are resampled, the same for both")


def rescore_answers(scores: str, metric: str, json: bool) -> None:
    """Scores of kept answers by another metric."""
    from tasks.scores import rescore

    store = Store()
    artifact = whole(store, scores)
    rows = rescore(store.path(artifact), metric)
    if json:
        document({"scores": rows, "artifact": artifact, "metric": metric})
        return
    table(["task", "column", "order", "control", "n", "value", "95 %"],
          [[row["task"], row["column"], row["order"], row["control"], row["n"], f"{row['value']:.3f}", _interval(row)]
           for row in rows], right=("n", "value"))


def _metric(store: Store, scores: str) -> str:
    """What an evaluation scored by: the task's own metric goes before its spec's."""
    manifest = store.manifest(scores)
    prompts = manifest.inputs.get("prompts", "")
    own = store.manifest(prompts).counts.get("metric") if prompts and store.exists(prompts) else None
    return own or manifest.spec["metric"]


def _interval(row: dict[str, Any]) -> str:
    return "–" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"
