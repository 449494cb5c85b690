"""What a person reads who filled a form wrongly, or asked for what cannot be had."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]


def test_an_impossible_value_is_told_beside_its_box(page, prefect, stack, shot):
    form = prefect.custom_run("evaluate")
    form.write("Checkpoint", stack.checkpoint)
    box = form.number("Documents", -5)
    page.get_by_role("button", name="Submit").click()
    assert box.evaluate("box => box.validationMessage") == "Value must be greater than or equal to 0."
    assert "/run" in page.url, "nothing was started"
    shot("a negative number")


def test_fields_that_do_not_fit_fail_with_the_sentence_that_helps(page, prefect, stack, shot):
    form = prefect.custom_run("evaluate")
    form.write("Checkpoint", stack.checkpoint)
    form.choose("Task", "fda")                      # asks the questions of a data set, and none is given
    prefect.submit()
    assert prefect.until("Failed", "Completed", "Crashed") == "Failed"
    _cause_and_remedy(page, prefect, shot, "fill in Question files")


def test_a_failed_run_shows_cause_and_remedy(page, prefect, shot):
    form = prefect.custom_run("evaluate")
    form.write("Checkpoint", "checkpoint-ffffffffffffffff")
    prefect.submit()
    assert prefect.until("Failed", "Completed", "Crashed") == "Failed"
    _cause_and_remedy(page, prefect, shot, "checkpoint-ffffffffffffffff")


def _cause_and_remedy(page, prefect, shot, cause: str) -> None:
    from playwright.sync_api import expect

    page.reload()                                   # the page of a run that has ended asks for no more of its log
    expect(page.get_by_role("main")).to_contain_text(cause)
    shot("failed", whole=True)
    prefect.tab("Artifacts").get_by_role("link", name=re.compile("failure")).first.click()
    expect(page.get_by_role("heading", name=re.compile("failed")).first).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text(cause)
    expect(page.get_by_role("main")).to_contain_text("What to do:")
    shot("cause and remedy", whole=True)
