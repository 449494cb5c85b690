"""The report of a night in Markdown: what is new, what got worse, which alias moved, and how many comparisons that took."""

from __future__ import annotations

from collections.abc import Iterable

from flows.nights.night import Report, already
from flows.nights.outcome import UNKNOWN, Outcome, Verdict, shown

SIDE = 0.025            # chance that one 95 % interval lies below zero where nothing has changed


def markdown(report: Report, pages: str = "") -> str:
    """pages: address of MLflow's server, for links; "" = none."""
    lines = [f"# Night of {report.due:%Y-%m-%d %H:%M} UTC", "", f"**{report.headline()}**", ""]
    if report.regressions:
        lines += ["## Worse than before", ""]
        lines += [f"* **{one.name}** ({_who(one)}) on {_what(verdict)} against {verdict.against}: "
                  f"{shown(verdict.difference, signed=True)}" for one, verdict in report.regressions]
        lines.append("")
    if report.failed:
        lines += ["## Not evaluated: an error", "", *(f"* **{one.name}**: {one.failure}" for one in report.failed), "",
                  "They are tried again the next night.", ""]
    done = [one for one in report.everything if not one.failure]
    if done:
        lines += ["## Evaluated", "", *_table(done), "",
                  f"Scores are the mean over columns, in the order that the suite compares, with 95 % intervals over "
                  f"documents. {_counted(report)}", ""]
        noted = [f"* {one.name}: {one.alias_note}" for one in done if one.alias_note]
        lines += ["## Alias of the best", "", *noted, ""] if noted else []
        lines += ["## Comparisons", "", *_comparisons(done), ""]
    if report.not_asked:
        lines += ["## Not asked", "", *(f"* {name}: {why}" for name, why in sorted(report.not_asked.items())), ""]
    if report.carried:
        lines += [f"{len(report.carried)} of these were found by a night that was stopped before its report.", ""]
    lines += [f"Suite {report.suite}, version {report.suite_version}. {already(report.up_to_date)}. "
              f"{report.seconds:.0f} s."]
    if pages and report.link:
        there = "scores as metrics, trend plots under Artifacts" if report.work else "nothing was evaluated"
        lines += ["", f"[This night in MLflow]({pages}{report.link}): {there}."]
    return "\n".join(lines) + "\n"


def _table(done: list[Outcome]) -> list[str]:
    labels = list(dict.fromkeys(label for one in done for label in one.tasks))
    rows = [["model", "version", "architecture", "size", "why", *labels, "suite"]]
    rows += [[one.model, one.version, one.architecture, one.size, one.reason,
              *(shown(one.tasks.get(label)) for label in labels), shown(one.suite)] for one in done]
    return _markdown(rows)


def _comparisons(done: Iterable[Outcome]) -> list[str]:
    rows = [["version", "against", "on", "difference (95 %)", "verdict"]]
    rows += [[one.name, verdict.against, _what(verdict) + (", for the alias" if verdict.kind == "alias" else ""),
              shown(verdict.difference, signed=True), _verdict(verdict)]
             for one in done for verdict in one.verdicts]
    return _markdown(rows) if len(rows) > 1 else ["There was nothing to compare with."]


def _counted(report: Report) -> str:
    unknown = sum(verdict.result == UNKNOWN for one in report.everything for verdict in one.verdicts)
    many = "1 paired comparison was" if report.comparisons == 1 else f"{report.comparisons} paired comparisons were"
    text = (f"{many} made at 95 %, with no correction for their number: where nothing "
            f"has changed, about {SIDE * report.comparisons:.2g} of them look worse by chance alone, and as many better."
            if report.comparisons else "No paired comparison was made.")
    return text + (f" {unknown} could not be made and are said to be not comparable." if unknown else "")


def _verdict(verdict: Verdict) -> str:
    text = f"**{verdict.result}**" if verdict.regression else verdict.result
    return f"{text}: {verdict.reason}" if verdict.reason else text


def _what(verdict: Verdict) -> str:
    return "the whole suite" if verdict.what == "suite" else verdict.what


def _who(one: Outcome) -> str:
    return " ".join(word for word in (one.architecture, one.size, f"seed {one.seed}" if one.seed else "") if word)


def _markdown(rows: list[list[str]]) -> list[str]:
    """A table; cells must not end it early."""
    lines = ["| " + " | ".join(str(cell).replace("|", "/").replace("\n", " ") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]
