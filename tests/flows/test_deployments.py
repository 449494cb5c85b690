"""Forms and entrypoints, without a server."""

from __future__ import annotations

import importlib
import logging
import re
from types import SimpleNamespace
from typing import get_type_hints

import pytest
import yaml
from prefect.utilities.callables import parameter_schema

from flows import deployments, single
from flows.nightly import nightly_evaluation
from flows.running import runner
from flows.study import study
from tests.conftest import ROOT

FLOWS = {flow.name: flow for flow in (study, *single.ALL, nightly_evaluation)}

NEED_A_CHECKPOINT = ("evaluate", "perplexity", "extrapolation", "deploy")


def test_one_deployment_a_flow_by_module_path():
    """A file entrypoint would load the flow under another name, which Ray workers cannot unpickle."""
    found = {one.name: one.entrypoint for one in deployments.deployments()}
    assert found == {name: f"{flow.fn.__module__}.{flow.fn.__name__}" for name, flow in FLOWS.items()}


def test_prefect_yaml_names_flows_that_exist():
    written = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert [one["name"] for one in written] == list(FLOWS)
    for one in written:
        module, name = one["entrypoint"].rsplit(".", 1)
        assert getattr(importlib.import_module(module), name) is FLOWS[one["name"]]
        for parameters in (one.get("parameters"), *(each.get("parameters") for each in one.get("schedules", ()))):
            form = get_type_hints(FLOWS[one["name"]].fn)["request"]
            given = {"checkpoint": "checkpoint-01"} if one["name"] in NEED_A_CHECKPOINT else {}
            form.model_validate(given | (parameters or {}).get("request", {}))


def test_only_nights_have_a_schedule():
    written = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert [one["name"] for one in written if one.get("schedules")] == ["nightly-evaluation"]
    assert [one.name for one in deployments.deployments() if one.schedules] == ["nightly-evaluation"]


def test_runs_over_a_limit_wait_on_the_server_and_are_found_by_tag():
    """With a limit on tasks they would hold a core or a GPU meanwhile; both ways to deploy agree."""
    written = {one["name"]: one for one in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]}
    for one in deployments.deployments():
        assert one.concurrency_options.collision_strategy.value == "ENQUEUE"
        assert written[one.name]["concurrency_limit"] == {"limit": one.concurrency_limit, "collision_strategy": "ENQUEUE"}
        assert written[one.name]["tags"] == one.tags and one.tags[0] == "reread" and len(one.tags) > 1


@pytest.mark.parametrize("name", FLOWS)
def test_a_description_has_an_example_and_no_signature(name):
    about, schema = FLOWS[name].description, parameter_schema(FLOWS[name])
    assert "Example" in about + schema.properties["request"]["description"] and len(about) > 80
    if name != "nightly-evaluation":
        assert "**Example:**" in about and "Args:" not in about


@pytest.mark.parametrize("name", FLOWS)
def test_every_field_of_every_form_is_explained(name):
    schema = parameter_schema(FLOWS[name])
    assert set(schema.properties) == {"request"} and schema.properties["request"]["description"]
    unexplained = []
    for model, definition in schema.definitions.items():
        assert definition["additionalProperties"] is False, f"{model} would swallow a misspelt field"
        unexplained += [f"{model}.{field}" for field, facts in definition.get("properties", {}).items()
                        if not facts.get("description") and "$ref" not in str(facts) and "const" not in facts]
    assert unexplained == []


@pytest.mark.parametrize("name", FLOWS)
def test_no_explanation_loses_words_on_the_page(name):
    """Prefect shows them as Markdown: what stands in angle brackets outside backticks is taken for a tag and vanishes.
    And whoever fills a form has no notes of ours beside it."""
    lost = []
    for model, definition in parameter_schema(FLOWS[name]).definitions.items():
        for field, facts in {"": definition, **definition.get("properties", {})}.items():
            said = re.sub(r"`[^`]*`", "", facts.get("description", ""))
            if re.search(r"<\w|contract \d|\w\.md\b", said):
                lost.append((model, field, said))
    assert lost == []


def test_a_run_with_nothing_to_do_says_so(caplog, monkeypatch):
    """Its page would otherwise show a beginning and an end, and not what there is."""
    monkeypatch.setattr(runner, "get_run_logger", lambda: logging.getLogger("page"))
    finished = SimpleNamespace(finished=True, stages={}, goal=SimpleNamespace(artifact="scores-0123"))
    with caplog.at_level(logging.INFO, "page"):
        assert runner.Runner(finished, store=None).run()["stages"] == {}
    assert "scores-0123" in caplog.text and "nothing to do" in caplog.text
