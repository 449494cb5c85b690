"""Views of an experiment's runs that are there from the start: chosen columns, order, filter, and what charts show.

MLflow keeps a view that somebody shared as a tag of the experiment, `mlflow.sharedViewState.<key>`, JSON of what its
page knows (3.17: the search, the selected columns, one axis for all line charts), and opens it for `viewStateShareKey=<key>`
in the address. Keys of ours are words, those of people are hashes, so that they never meet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

TAG = "mlflow.sharedViewState."
NOTE = "mlflow.note.content"
START = "recall"                        # the view that links open

ABOUT = ("architecture", "model", "corpus", "seed")


def view(title: str, kind: str, sort: str, ascending: bool, metrics: Sequence[str] = (),
         parameters: Sequence[str] = (), tags: Sequence[str] = (), tokens: bool = False) -> dict[str, Any]:
    """One view.

    kind        value of the tag `kind` of the runs shown; empty = all
    sort        the metric that orders them
    ascending   the least first
    tokens      line charts go by tokens, not by steps
    """
    columns = [f"{group}.`{name}`" for group, names in (("metrics", metrics), ("params", parameters), ("tags", tags))
               for name in names]
    state: dict[str, Any] = {
        "orderByKey": f"metrics.`{sort}`", "orderByAsc": ascending, "selectedColumns": columns, "columnOrder": columns,
        "hideEmptyCharts": True, "title": title,
        "searchFilter": f"tags.kind = '{kind}'" if kind else ""}
    if tokens:
        state["globalLineChartConfig"] = {"xAxisKey": "metric", "selectedXAxisMetricKey": "tokens", "lineSmoothness": 0}
    return state


VIEWS: dict[str, dict[str, Any]] = {
    "recall": view("Evaluations by recall", "evaluation", "recall", False,
                   ("recall", "recall/low", "recall/high", "parameters", "state_bytes", "tokens"),
                   ("architecture", "model", "corpus", "task", "order", "strategy", "seed"), ("suite",)),
    "training": view("Training by bits per byte, charts over tokens", "training", "bits_per_byte", True,
                     ("bits_per_byte", "loss", "tokens", "tokens_per_second", "parameters", "state_bytes"),
                     ABOUT, ("device", "git_commit"), tokens=True),
    "reading": view("Readings of text by bits per byte", "reading", "bits_per_byte", True,
                    ("bits_per_byte", "loss", "parameters", "state_bytes", "tokens"), ABOUT, ("stage", "git_commit")),
    "speed": view("Timings", "timing", "tokens_per_second", False,
                  ("tokens_per_second", "parameters", "state_bytes"), ("architecture", "model"),
                  ("stage", "device", "git_commit")),
    "all": view("All runs", "", "recall", False, ("recall", "bits_per_byte", "tokens_per_second"), ABOUT,
                ("stage", "git_commit")),
}


def tags() -> dict[str, str]:
    """The views as tags of an experiment."""
    return {TAG + key: json.dumps(state, sort_keys=True) for key, state in VIEWS.items()}


def note(experiment: str) -> str:
    """Markdown for the top of an experiment's page: a link to each view. experiment: its id."""
    address = f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey="
    return "Views: " + " · ".join(f"[{state['title']}]({address}{key})" for key, state in VIEWS.items())
