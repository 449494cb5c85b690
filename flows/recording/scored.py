"""What an evaluation found, as people look at it: one number with its interval, metrics to sort runs by, one table, a few
words.

MLflow draws a chart for every metric, grouped by what stands before the last slash, the groups by name and what has none
last. So the headline is a group, the first, beside the short name `recall`; then each order is a group with a chart a
column. Controls, other measures and shares of mistakes are columns of the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.suite_scores import Part, Parts, above_controls, mean

MAIN = "default"                # the order whose recall is the headline, where it was asked
REPEATED = "uncommon"           # a column that repeats items of another: no column of its own in a mean
NONE = "none"
CLOSE = 1e-6                    # the mean of the answers is the mean of the scores, but for rounding
LINES = 12                      # of the table among the words, and columns named before it
GAP = "&emsp;"                  # MLflow sets the cells of such a table without any space between them
DIGITS = 4                      # after the point, in the table


def main_order(rows: list[dict[str, Any]]) -> str:
    """The default order, or where that was not asked the first one."""
    orders = [row["order"] for row in rows]
    return MAIN if MAIN in orders or not orders else orders[0]


def headline(rows: list[dict[str, Any]], order: str) -> tuple[float | None, list[str]]:
    """The mean over the columns of an order, without control, each counting the same; and which columns these are."""
    chosen = {row["column"]: row["value"] for row in rows if row["order"] == order and row["control"] == NONE
              and row["column"] != REPEATED and row.get("value") is not None}
    return (sum(chosen.values()) / len(chosen) if chosen else None), list(chosen)


def headline_metrics(folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """`recall` and, again, `recall/mean`, with `recall/low`, `recall/high` (95 %) and `recall/above_controls`, the paired
    difference to the control that leaves less. folder: of the scores."""
    order = main_order(rows)
    value, _ = headline(rows, order)
    if value is None:
        return {}
    parts: Parts = {"": Part(folder, order)}
    whole, above = mean(parts), above_controls(parts)
    found = {"recall": value, "recall/mean": value}
    if whole.value is not None and abs(whole.value - value) < CLOSE:
        found |= {"recall/low": whole.low, "recall/high": whole.high}
    if above is not None:
        found["recall/above_controls"] = above.value
    return {name: number for name, number in found.items() if number is not None}


def score_metrics(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Every score without control, as `recall/<order>/<column>`."""
    return {f"recall/{row['order']}/{row['column'].replace('/', '_')}": row["value"] for row in rows
            if row["control"] == NONE and row.get("value") is not None}


def score_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a column and order: the score, its interval and its controls first, how it was asked last. MLflow's view of
    tables beside each other begins by matching the first column and comparing the second."""
    lines = []
    for row in rows:
        if row["control"] != NONE:
            continue
        above = row.get("above_controls") or {}
        line = {"score": f"{row['column']}, {row['order']}", "recall": row["value"], "low": row.get("low"), "high": row.get("high"),
                "highest_control": _highest(row), "above_controls": above.get("difference"), "above_low": above.get("low"),
                "above_high": above.get("high"), "n": row.get("n"), "documents": row.get("documents"),
                "column": row["column"], "order": row["order"]}
        line |= {f"control_{name}": control.get("value") for name, control in (row.get("controls") or {}).items()}
        line |= {f"share_{name}": share for name, share in (row.get("errors") or {}).items()}
        line |= {name: score.get("value") for name, score in (row.get("also") or {}).items() if name != row.get("metric")}
        line |= {name: row.get(name) for name in ("task", "metric", "strategy", "keep_out", "examples_per_second")}
        lines.append({name: round(value, DIGITS) if isinstance(value, float) else value for name, value in line.items()})
    return lines


def words(rows: list[dict[str, Any]], found: dict[str, float], links: str) -> str:
    """Markdown: the headline in a sentence, links, then the first lines of the table; MLflow shows about four lines of it and
    the rest after a click. found: `headline_metrics`."""
    order = main_order(rows)
    columns = [_line(column) for column in headline(rows, order)[1]]
    named = ", ".join(columns[:LINES]) + (f" and {len(columns) - LINES} more" if len(columns) > LINES else "")
    table = score_table(rows)
    shown = [("column", "order", "recall", "95 %", "highest control", "above controls", "n"), ("---",) * 7]
    for row in table[:LINES]:
        shown.append((_line(row["column"]).replace("|", "\\|"), row["order"], _number(row["recall"]),
                      _interval(row["low"], row["high"]).strip() or "–", _number(row["highest_control"]),
                      f"{_number(row['above_controls'])}{_interval(row['above_low'], row['above_high'])}", str(row["n"])))
    lines = ["| " + f"{GAP if cells[0] != '---' else ''} | ".join(cells) + " |" for cells in shown]
    if len(table) > LINES:
        lines.append(f"\n{len(table) - LINES} more in `scores.json`.")
    return "\n".join((f"**recall {_number(found.get('recall'))}**{_interval(found.get('recall/low'), found.get('recall/high'))}, mean "
                      f"over {named or 'no column'} in the order {order}.", "", links, "", *lines))


def _highest(row: dict[str, Any]) -> float | None:
    values = [control.get("value") for control in (row.get("controls") or {}).values()]
    return max((value for value in values if value is not None), default=None)


def _line(text: str) -> str:
    return " ".join(text.split())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
