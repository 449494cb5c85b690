"""vLLM on the cluster's GPUs, without a GPU: the rows that go in and come out, the settings, the refusals. The way through Ray Data is in
test_endpoint_ray.py.
"""

import importlib.util

import pytest

from storage.errors import ConfigError, SpecError
from tasks.rewriting.endpoint import Endpoint
from tasks.rewriting.endpoint_prompts import ask_for
from tasks.rewriting.vllm_batch import Engines, VllmBatch, after, before, read_row, row_of, settings
from tests.tasks.rewriting.model_server import records, spec


def test_without_vllm_it_is_refused_before_any_work(tmp_path):
    if importlib.util.find_spec("vllm"):
        pytest.skip("vllm is installed here")
    with pytest.raises(ConfigError, match="'vllm:' runs the model in vLLM .* vllm is not installed here: install "
                                          r"'ray\[llm\]'"):
        Endpoint(spec("vllm:"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("url, engines", [("vllm:", Engines(1, 1)), ("vllm:2x4", Engines(2, 4)), ("vllm:12x1", Engines(12, 1))])
def test_engines_of_an_address(url, engines):
    assert Engines.of(url) == engines


@pytest.mark.parametrize("url", ["vllm:0x1", "vllm:2", "vllm:2x", "vllm:http://host/v1", "vllm:2x4 "])
def test_an_address_that_says_something_else(url):
    with pytest.raises(SpecError, match="rewriter.url: got 'vllm:.*expected vllm: or vllm:<engines>x<GPUs of each>"):
        VllmBatch(spec(url))


def test_rows_in_and_out():
    ask = ask_for(spec("vllm:", temperature=0.2, maximum_tokens=9), records(1)[0])
    row = row_of(ask)
    assert set(row) == {"key", "request"} and before(row) == {
        "messages": ask.body["messages"], "sampling_params": {"temperature": 0.2, "max_tokens": 9}}
    out = after({**row, "generated_text": "So it is", "num_input_tokens": 7, "num_generated_tokens": 8, "prompt": "x"})
    answered = read_row(out, 9)
    assert (answered.key, answered.reply.content, answered.reply.finish) == (ask.key, "So it is", "stop")
    assert (answered.reply.tokens_in, answered.reply.tokens_out, answered.tries) == (7, 8, 1)
    assert read_row(out | {"tokens_out": 9}, 9).reply.finish == "length"


def test_sequences_at_once_are_those_of_the_spec():
    made = settings(spec("vllm:", model="big", concurrency=500), Engines(2, 4))
    assert made["engine_kwargs"]["max_num_seqs"] == 250 and made["engine_kwargs"]["tensor_parallel_size"] == 4
    assert made["concurrency"] == (2, 2) and made["batch_size"] * made["max_concurrent_batches"] >= 250
    assert settings(spec("vllm:", concurrency=1), Engines(2, 1))["engine_kwargs"]["max_num_seqs"] == 1
