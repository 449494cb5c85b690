"""The same clozes, bill, bound and failures when the requests are spread over Ray's workers, and rows through Ray Data."""

import json
import threading

import pytest

from storage.errors import ConfigError
from tasks.rewriting import endpoint_asking, vllm_batch
from tasks.rewriting.cache import ReplyCache
from tasks.rewriting.endpoint import Endpoint
from tasks.rewriting.endpoint_client import Sending
from tasks.rewriting.endpoint_prompts import ask_for
from tasks.rewriting.vllm_batch import Engines, after, before, settings
from tests.tasks.rewriting.model_server import Say, cloze_for, clozes, good, last_turn, records, serving, spec

pytestmark = pytest.mark.services
KEY = "sk-ray-71c0"


@pytest.fixture(scope="module")
def ray_here():
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REWRITER_TEST_KEY", KEY)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        yield ray
        ray.shutdown()


def test_the_same_clozes_within_the_bound_from_several_workers(ray_here, tmp_path):
    four = threading.Barrier(4, timeout=60)      # more than one worker sends at once

    def script(number, body):
        if number <= 24:
            four.wait()
        return Say(good(number, body), seconds=0.5 if number <= 24 else 0.0)

    with serving(script) as server:
        endpoint = Endpoint(spec(server.url, concurrency=6, timeout=90), tmp_path)
        assert endpoint_asking._workers(6) == 2 and endpoint_asking._workers(5) == 1
        assert list(endpoint.clozes(records(100))) == clozes(records(100))
    assert 4 <= server.most_at_once <= 6
    assert (endpoint.bill["requests"], endpoint.bill["tokens_in"]) == (100, 20000) and len(server.questions) == 100
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_server_that_dies_half_way(ray_here, tmp_path):
    with serving(lambda number, body: Say(hang_up=True) if number > 30 else good(number, body)) as server:
        with pytest.raises(ConfigError, match="no connection to .*30 of the 80 replies wanted so far are kept"):
            list(Endpoint(spec(server.url, tries=2), tmp_path, first_wait=0.01).clozes(records(80)))
    with serving(good) as second:
        assert list(Endpoint(spec(second.url), tmp_path).clozes(records(80))) == clozes(records(80))
    assert len(second.questions) == 50


def test_a_worker_without_the_key_says_so(ray_here, tmp_path, monkeypatch):
    monkeypatch.setenv("ONLY_HERE", KEY)
    with serving(good) as server, pytest.raises(ConfigError, match="a worker has no ONLY_HERE in its environment"):
        list(Endpoint(spec(server.url, key_variable="ONLY_HERE"), tmp_path).clozes(records(3)))
    assert not server.questions


def test_a_worker_of_another_machine_leaves_the_cache_to_its_caller(tmp_path, monkeypatch):
    """A worker that does not find the caller's file, as on another machine: its replies come back, nothing is opened."""
    with serving(good) as server:
        sending = Sending.of(spec(server.url), 0.01)
        asks = [ask_for(spec(server.url), record) for record in records(5)]
        cache = ReplyCache(tmp_path / "here")
        place = endpoint_asking._place(cache.folder)
        answered, failure = endpoint_asking._chunk(sending, 2, str(tmp_path / "there"), place, asks)
        assert [each.key for each in answered] == [ask.key for ask in asks] and failure is None
        assert not (tmp_path / "there").exists() and not cache.get_many(ask.key for ask in asks)
        answered, _ = endpoint_asking._chunk(sending, 2, str(cache.folder), place, asks)
        assert set(cache.get_many(ask.key for ask in asks)) == {each.key for each in answered}


# ------------------------------------------------------------------------------------------------------ Ray Data
def answering(spec, engines):
    """Stands where the engine stands: Ray Data's own map with the columns that its vLLM stage documents."""
    def say(row):
        question, answer = last_turn({"messages": before(row)["messages"]})
        said = {"generated_text": f"{cloze_for(question)} {answer}", "num_input_tokens": 50, "num_generated_tokens": 6}
        return after({**row, **said})

    return lambda dataset: dataset.map(say)


def test_through_ray_data_and_not_twice(ray_here, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("asked again")

    monkeypatch.setattr(vllm_batch, "installed", lambda: True)
    monkeypatch.setattr(vllm_batch, "processor", answering)
    endpoint = Endpoint(spec("vllm:"), tmp_path)
    assert list(endpoint.clozes(records(20))) == clozes(records(20))
    assert (endpoint.bill["requests"], endpoint.bill["tokens_in"], endpoint.bill["tokens_out"]) == (20, 1000, 120)
    monkeypatch.setattr(vllm_batch, "processor", refuse)
    again = Endpoint(spec("vllm:"), tmp_path)
    assert list(again.clozes(records(20))) == clozes(records(20)) and again.bill["cached"] == 20


def test_an_engine_that_fails_and_too_few_gpus(ray_here, tmp_path, monkeypatch):
    def failing(spec, engines):
        def fail(row):
            raise RuntimeError("engine is dead")

        return lambda dataset: dataset.map(fail)

    monkeypatch.setattr(vllm_batch, "installed", lambda: True)
    monkeypatch.setattr(vllm_batch, "processor", failing)
    with pytest.raises(ConfigError, match="vLLM with 'tiny' failed: .*engine is dead.*0 of the 2 replies wanted so far are kept"):
        list(Endpoint(spec("vllm:"), tmp_path).clozes(records(2)))
    monkeypatch.undo()
    monkeypatch.setattr(vllm_batch, "installed", lambda: True)
    with pytest.raises(ConfigError, match="'vllm:2x4' needs 8 GPUs, the Ray cluster has 0"):
        list(Endpoint(spec("vllm:2x4"), tmp_path).clozes(records(2)))


def test_ray_takes_the_settings_of_an_engine():
    from ray.data.llm import vLLMEngineProcessorConfig

    config = vLLMEngineProcessorConfig(**settings(spec("vllm:", model="big"), Engines(1, 2)))
    assert config.model_source == "big" and json.dumps(config.engine_kwargs)
