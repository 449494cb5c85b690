"""A person evaluates a model: the form, the run, its result, and from there to MLflow's tables and plots."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(3600)]


def test_somebody_evaluates_a_model_and_looks_at_what_came_of_it(page, prefect, mlflow, stack, shot):
    from playwright.sync_api import expect

    page.goto(prefect.start)
    page.get_by_role("link", name="nightly-evaluation").first.wait_for()
    shot("deployments", whole=True)
    form = prefect.custom_run("evaluate")
    form.write("Checkpoint", stack.checkpoint[:16])                   # its first letters are enough
    form.choose("Task", "disjoint")
    form.choose("Prompt orders", "small_first", "large_first")
    form.number("Documents", 6)
    shot("the form filled", whole=True)
    prefect.submit()
    shot("the run begins")
    assert prefect.until("Completed", "Failed", "Crashed") == "Completed"
    expect(page.get_by_label("breadcrumb")).to_contain_text(re.compile("evaluate jrt-tiny on disjoint, 2 orders"))
    shot("the run completed", whole=True)

    prefect.tab("Artifacts").get_by_role("link", name=re.compile("evaluate-result")).first.wait_for()
    shot("artifacts")
    page.get_by_role("link", name=re.compile(r"evaluate-result\b(?!-mlflow)")).first.click()
    table = page.get_by_role("table").first
    expect(table).to_contain_text("small_first")
    expect(table).to_contain_text("recall")
    shot("the result", whole=True)
    there = prefect.follow(page.get_by_role("link", name=re.compile("^all runs of evaluate")).first)
    _look_around(type(mlflow)(there), lambda name, whole=False: shot(name, whole, there))


def _look_around(mlflow, shot) -> None:
    from playwright.sync_api import expect

    mlflow.undisturbed()
    expect(mlflow.page.get_by_role("columnheader", name="recall").first).to_be_visible()
    shot("runs by recall")
    expect(mlflow.link(1)).to_be_visible()
    best_first = mlflow.addresses(2)
    mlflow.sort("recall", descending=False)
    expect(mlflow.link(0)).to_have_attribute("href", best_first[1])
    assert mlflow.addresses(2) == best_first[::-1]
    shot("least recall first")

    mlflow.link(0).click()
    mlflow.page.get_by_role("heading", name=re.compile("^evaluate")).wait_for()
    shot("a run", whole=True)
    mlflow.tab("Model metrics")
    expect(mlflow.page.locator(".js-plotly-plot").first).to_be_visible()
    shot("plots", whole=True)
    mlflow.tab("Artifacts")
    mlflow.page.get_by_text("predictions", exact=True).click()
    mlflow.page.get_by_text("all.json", exact=True).click()
    for column in ("prediction", "gold", "correct", "error"):
        expect(mlflow.page.get_by_role("columnheader", name=column).first).to_be_visible()
    shot("predictions")
