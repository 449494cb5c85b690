"""`reread rescore`: kept answers, scored again without a model."""

from __future__ import annotations

from flows.commands.look import whole
from flows.commands.output import document, interval, table
from storage.artifacts import Store


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
          [[row["task"], row["column"], row["order"], row["control"], row["n"], f"{row['value']:.3f}", interval(row)]
           for row in rows], right=("n", "value"))
