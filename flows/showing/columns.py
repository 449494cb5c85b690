"""What the table of a result has in its columns, on a terminal as on the page of a run."""

from __future__ import annotations

from typing import Any

MEASURED = {      # kind -> columns of its table; the artifact has more
    "perplexity": ("slice", "kind", "from", "to", "n", "perplexity", "low", "high", "bits_per_byte"),
    "extrapolation": ("protocol", "window", "length", "from", "to", "n", "perplexity", "low", "high", "state_bytes",
                      "tokens_per_second", "cannot"),
    "deploy": ("length", "ttft_ms", "tokens_per_s", "state_bytes", "peak_bytes", "error", "contended", "reason"),
}


def with_controls(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a score, its controls beside it: {task, order, strategy, n, value, low, high, controls, ...}."""
    same = ("task", "column", "order", "strategy")
    controls: dict[tuple, dict[str, float]] = {}
    for row in rows:
        if row["control"] != "none":
            controls.setdefault(tuple(row.get(name) for name in same), {})[row["control"]] = row["value"]
    return [{**{name: value for name, value in row.items() if name != "control"},
             "controls": controls.get(tuple(row.get(name) for name in same), {})}
            for row in rows if row["control"] == "none"]
