"""The registry of models, on a real SQLite MLflow."""

import time

import pytest

from storage.errors import TrackingError
from storage.tracking import Tracking
from storage.tracking.registry import Registry


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Registry, list[str]]:
    """A registry with two models: `quick-pydocs` in two versions, `it-s` in one; and the runs behind them."""
    home = tmp_path_factory.mktemp("registry")
    (home / "weights").write_text("w")
    tracking = Tracking(f"sqlite:///{home}/mlflow.db", spool=home / "spool")
    runs = []
    for name, artifact in (("quick-pydocs", "a"), ("it's", "b"), ("quick-pydocs", "c")):
        runs.append(tracking.start(tracking.experiment("quick"), artifact))
        tracking.artifacts(runs[-1], home / "weights", "model")
        tracking.register(name, runs[-1], "model", {"checkpoint": artifact, "size": "tiny"})
        time.sleep(0.002)                # the store orders by milliseconds
    tracking.close()
    return Registry(tracking.uri), runs


@pytest.fixture
def registry(made) -> Registry:
    return made[0]


def test_versions_come_oldest_first_with_what_is_known_of_them(made):
    registry, runs = made
    assert registry.names() == ["it-s", "quick-pydocs"]
    found = registry.versions()
    assert [(one.name, one.number, one.run_id, one.tags["checkpoint"]) for one in found] == [
        ("quick-pydocs", "1", runs[0], "a"), ("it-s", "1", runs[1], "b"), ("quick-pydocs", "2", runs[2], "c")]
    assert found[0].reference == "models:/quick-pydocs/1" and abs(found[0].created - time.time()) < 600
    assert [one.number for one in registry.versions("quick-pydocs")] == ["1", "2"]
    assert registry.versions("nothing") == [] and registry.aliases("nothing") == {}


def test_more_versions_than_one_answer_holds_all_come(registry, monkeypatch):
    monkeypatch.setattr("storage.tracking.asking.PAGE", 1)
    assert len(registry.versions()) == 3 and len(registry.names()) == 2


def test_an_alias_is_found_and_moves(registry):
    registry.move("quick-pydocs", "best-tiny", "1")
    registry.move("quick-pydocs", "first", "1")
    assert registry.version("models:/quick-pydocs@best-tiny").number == "1"
    assert registry.version("models:/quick-pydocs/1").aliases == ("best-tiny", "first")
    registry.move("quick-pydocs", "best-tiny", "2")
    assert registry.aliases("quick-pydocs") == {"best-tiny": "2", "first": "1"}
    assert [one.aliases for one in registry.versions("quick-pydocs")] == [("first",), ("best-tiny",)]
    assert registry.version("models:/quick-pydocs@best-tiny").tags["checkpoint"] == "c"
    with pytest.raises(TrackingError, match="refuses: .*version=7. not found"):
        registry.move("quick-pydocs", "best-tiny", "7")
    assert registry.aliases("quick-pydocs")["best-tiny"] == "2"


def test_tags_are_added_and_replaced(registry):
    version = registry.version("models:/it-s/1")
    registry.tag(version, {"recall": 0.25, "size": "small"})
    assert registry.version("models:/it-s/1").tags == {"checkpoint": "b", "recall": "0.25", "size": "small"}


def test_a_tag_of_many_evaluations_comes_back_whole(registry):
    version, long = registry.version("models:/it-s/1"), "x" * 20_000
    registry.tag(version, {"suite.large": long})
    assert registry.version("models:/it-s/1").tags["suite.large"] == long


@pytest.mark.parametrize("reference, message", [
    ("models:/quick-pydocs/9", "refuses: .*version=9. not found"),
    ("models:/quick-pydocs@worst", "refuses: .*worst"),
    ("models:/quick-pydocs", "expected models:/NAME/3 or models:/NAME@alias"),
    ("quick-pydocs/1", "expected models:/NAME/3 or models:/NAME@alias"),
])
def test_what_is_not_there_is_told(registry, reference, message):
    with pytest.raises(TrackingError, match=message):
        registry.version(reference)
    with pytest.raises(TrackingError, match="quote"):
        registry.versions("it's")


def test_a_store_that_is_away_is_told_in_one_sentence(tmp_path):
    (tmp_path / "store").write_text("in the way")
    with pytest.raises(TrackingError, match="does not answer .*reread up") as raised:
        Registry(f"sqlite:///{tmp_path}/store/mlflow.db").names()
    assert "\n" not in str(raised.value)
