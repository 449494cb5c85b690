"""Answers as tables that can be browsed: what tells right from wrong first, the long texts last.

Views: `all` answers, the `wrong` ones, and one a control, of rows spread evenly over columns, orders and classes of
errors. A prompt is shown by its end, which asks the question.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from storage.artifacts import Store
from storage.shards import RowTable

ROWS = 400              # of one table
PROMPT_END = 240        # characters of a prompt that are shown
ANSWER = 200            # characters of a prediction or of the right answers
CELL = ("column", "order", "control", "error")
RIGHT = ""


def answer_tables(store: Store, folder: Path) -> tuple[dict[str, list[dict[str, Any]]], int, int]:
    """(view -> rows, how many answers are shown, how many there are). folder: of a `scores` artifact."""
    rows = RowTable(folder / "predictions.arrow").table.to_pylist()
    texts = _texts(store, store.manifest(folder.name).inputs["prompts"], len(rows))
    asked = [row | {"text": text} for row, text in zip(rows, texts)]
    plain = [row for row in asked if row["control"] == "none"]
    views = {"all": plain, "wrong": [row for row in plain if row["error"] != RIGHT]}
    for control in dict.fromkeys(row["control"] for row in asked if row["control"] != "none"):
        views[f"control_{control}"] = [row for row in asked if row["control"] == control]
    chosen = {name: spread(found) for name, found in views.items()}
    shown = {id(row) for found in chosen.values() for row in found}
    return {name: [shown_row(row) for row in found] for name, found in chosen.items() if found}, len(shown), len(rows)


def spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most ROWS of them in their own order, as evenly over the cells as these are filled."""
    if len(rows) <= ROWS:
        return rows
    wanted = Counter(tuple(row[name] for name in CELL) for row in rows)
    share = _level(sorted(wanted.values()))
    taken: Counter[tuple] = Counter()
    found = []
    for row in rows:
        cell = tuple(row[name] for name in CELL)
        if taken[cell] < share:
            taken[cell] += 1
            found.append(row)
    return found[:ROWS]


def _level(sizes: list[int]) -> int:
    """The most that every cell may give so that all together give at most ROWS, at least one."""
    left, cells = ROWS, len(sizes)
    for size in sizes:
        if size * cells >= left:
            return max(1, left // cells)
        left, cells = left - size, cells - 1
    return max(sizes, default=1)


def shown_row(row: dict[str, Any]) -> dict[str, Any]:
    """One line of a table."""
    return {"id": row["item"], "correct": row["correct"], "error": row["error"] or "right",
            "gold": _short(" | ".join(row["answers"])), "prediction": _short(row["prediction"]), "order": row["order"],
            "column": row["column"], "truncated": row["truncated"], "tokens": row["tokens"], "document": row["document"],
            "prompt": ending(row["text"])}


def ending(text: str) -> str:
    """The end of a prompt, which asks, with how much stands before it."""
    left = len(text) - PROMPT_END
    return text if left <= 0 else f"[{left:,} characters] …{text[left:]}"


def _short(text: str) -> str:
    return text if len(text) <= ANSWER else text[:ANSWER] + "…"


def _texts(store: Store, prompts: str, count: int) -> list[str]:
    """Prompts in the order of the answers; empty where they are no longer here."""
    if not store.exists(prompts):
        return [""] * count
    return [str(text) for text in RowTable(store.path(prompts) / "prompts.arrow").column("prompt")]
