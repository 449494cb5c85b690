"""MLflow's pages as we serve them: which choices a browser starts with."""

import json
import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from storage.tracking import first_visit

PAGE = "<!doctype html><html><head><title>MLflow</title><script defer src='main.js'></script></head><body></body></html>"


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    app.get("/")(lambda: "its own")
    app.get("/health")(lambda: "OK")
    return app


def test_the_first_page_chooses_model_training_before_mlflow_looks(app, tmp_path):
    (tmp_path / "index.html").write_text(PAGE)
    first_visit.serve_first_page(app, tmp_path / "index.html")
    found = TestClient(app).get("/")
    assert found.headers["content-type"].startswith("text/html") and "etag" not in found.headers
    assert found.text.index("machine_learning") < found.text.index("main.js") and found.text.startswith("<!doctype html>")
    choices = json.loads(re.search(r"entries\((\{.*?\})\)", found.text)[1])
    assert choices == first_visit.REMEMBERED and "=== null" in found.text           # a person's choice stays
    assert re.sub(r"<script>.*?</script>", "", found.text) == PAGE
    assert TestClient(app).get("/health").json() == "OK"


def test_without_a_page_mlflow_answers_itself(app, tmp_path):
    first_visit.serve_first_page(app, tmp_path / "index.html")
    assert TestClient(app).get("/").json() == "its own"


def test_the_names_are_those_that_this_mlflow_knows():
    """A browser's memory is MLflow's own affair: with another version this says that the names have to be looked up."""
    from mlflow import server

    scripts = [path.read_text(encoding="utf-8", errors="replace") for path in
               (first_visit.Path(server.__file__).parent / "js/build/static/js").glob("*.js")]
    assert scripts
    for name in first_visit.REMEMBERED:
        key, _, version = name.rpartition("_v")
        assert any(re.search(rf'key:"{re.escape(key)}",version:{version}\b', text) for text in scripts), name
