"""A person sets when nights are."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]


def test_somebody_sets_the_nightly_schedule_and_sees_three_future_runs(page, prefect, shot):
    from playwright.sync_api import expect

    prefect.deployment("nightly-evaluation")
    switch = page.get_by_role("switch", name=re.compile("^toggle"))
    expect(switch).not_to_be_checked()
    shot("switched off", whole=True)
    switch.click()
    expect(switch).to_be_checked()
    shot("switched on")
    page.get_by_role("tab", name="Upcoming").click()
    runs = page.get_by_role("tabpanel", name="Upcoming").get_by_text(re.compile(r"02:00:00 AM|2:00 AM"))
    expect(runs.nth(2)).to_be_visible()
    shot("three nights to come", whole=True)
    page.get_by_role("tab", name="Description").click()
    expect(page.get_by_role("tabpanel", name="Description")).to_contain_text("registered model")
    shot("what it says of itself", whole=True)
    switch.click()                                  # no night begins in the middle of another test
    expect(switch).not_to_be_checked()
