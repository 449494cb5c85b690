"""A person cancels a training that would take minutes."""

from __future__ import annotations

import time

import psutil
import pytest

from flows.services.processes import ProcessId

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1800)]

FREE = 10.0        # seconds


def test_somebody_cancels_a_training_and_nothing_of_it_is_left(page, prefect, stack, shot):
    form = prefect.custom_run("pretrain")
    shot("the form", whole=True)
    form.tab("Set intersection")
    form.number("Batches", 1200)
    shot("the form filled", whole=True)
    prefect.submit()
    prefect.until("Running")
    page.get_by_role("tab", name="Task Runs").click()
    page.get_by_role("link", name="pretrain jrt").first.wait_for(timeout=300_000)
    shot("it trains")
    family = [ProcessId.of(one) for one in psutil.Process(stack.deployments).children(recursive=True)]
    assert len(family) > 3, "the run, and Ray"
    page.get_by_role("tab", name="Logs").click()
    prefect.cancel()
    shot("it is cancelled")
    prefect.until("Cancelled")
    seen = time.monotonic()
    while left := [one for one in family if one.alive]:
        assert time.monotonic() - seen < FREE, left
        time.sleep(0.2)
    shot("cancelled", whole=True)
    assert psutil.pid_exists(stack.deployments)
