"""Somebody reads the report of a study: from a disk, and in the frame in which MLflow shows a page."""

from __future__ import annotations

import pytest

from tasks.reporting.html import page as report

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
FRAME = '<iframe src="report.html" sandbox="allow-scripts" width="900" height="700"></iframe>'
TEXT = "# Study\n\n" + "".join(f"## Part {number}\n\n" + "words\n\n" * 40 for number in range(5))
LISTED = "No link to a run opens"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "report.md").write_text(TEXT, encoding="utf-8")
    (tmp_path / "report.html").write_text(report(tmp_path, "Study", {"a run": "http://127.0.0.1:1/"}), encoding="utf-8")
    (tmp_path / "framed.html").write_text(FRAME, encoding="utf-8")
    return tmp_path


def test_a_report_is_read_in_the_frame_of_mlflow(page, folder, shot):
    """Which has no address of its own to go to a heading with."""
    from playwright.sync_api import expect

    page.route("**/report.html", lambda route: route.fulfill(
        body=(folder / "report.html").read_text(encoding="utf-8").replace("<head>", '<head><base href="http://127.0.0.1:1/">'),
        content_type="text/html"))
    page.goto((folder / "framed.html").as_uri())
    frame = page.frame_locator("iframe")
    expect(frame.get_by_text(LISTED)).to_be_visible()
    frame.get_by_role("link", name="Part 3").click()
    expect(frame.get_by_role("heading", name="Part 3")).to_be_in_viewport()
    shot("in a frame")


def test_a_report_is_read_from_a_disk(page, folder):
    from playwright.sync_api import expect

    page.goto((folder / "report.html").as_uri())
    page.get_by_role("link", name="Part 3").click()
    expect(page.get_by_role("heading", name="Part 3")).to_be_in_viewport()
    expect(page.get_by_text(LISTED)).to_be_hidden()
