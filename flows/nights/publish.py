"""What a night leaves for people: its page and trend plots, on disk and in its MLflow run."""

from __future__ import annotations

from pathlib import Path

from flows.nights import trend
from flows.nights.night import Night, Report
from flows.nights.page import markdown
from storage import logs
from storage.home import local_home, make_folder

log = logs.get("flows.nightly")


def folder(suite: str) -> Path:
    return local_home() / "nights" / suite


def publish(night: Night, report: Report, pages: str = "") -> str:
    """Write the page and draw the trend, hand both to MLflow, and end the night; returns the page's Markdown.

    pages: address of MLflow's server, for links
    """
    text = markdown(report, pages)
    place = make_folder(folder(report.suite))
    (place / "night.md").write_text(text, encoding="utf-8")
    night.ledger.keep(place / "night.md")
    if report.work:
        try:
            nights = night.ledger.nights(report.suite)
            for plot in trend.draw(nights, place / "trend", under_way=night.ledger.run):
                night.ledger.keep(plot, "trend")
        except Exception as error:  # noqa: BLE001 - a plot that cannot be drawn must not lose the night
            log.warning("the trend could not be drawn: %s", error)
    night.end(report)
    return text
