"""Replies from vLLM engines on the GPUs of the Ray cluster, by Ray Data's batch stage, instead of from a server.

Chosen by an address of the form

    vllm:                      one engine on one GPU
    vllm:<engines>x<GPUs>      so many engines, each over so many GPUs, for example vllm:2x4

`rewriter.model` is then a name on the Hugging Face hub or a folder that every machine sees, and `rewriter.concurrency`
the sequences of all engines together. No key, no time-out and no tries: Ray Data starts a dead engine again by itself.
Never run on a GPU by us: what is tested is the rows that go in and come out, and the refusals.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from storage.errors import ConfigError, SpecError
from tasks.rewriting.cache import Reply, ReplyCache
from tasks.rewriting.endpoint_client import Answered, Stopped
from tasks.rewriting.endpoint_prompts import Ask
from tasks.specs import RewriterSpec

PREFIX = "vllm:"
BATCH_ROWS = 32
BATCHES_AT_ONCE = 8      # of one engine: the least; more where the sequences ask for it

Row = dict[str, Any]


@dataclass(frozen=True)
class Engines:
    """count: engines; gpus: of each of them."""

    count: int = 1
    gpus: int = 1

    @classmethod
    def of(cls, url: str) -> Engines:
        """Raises SpecError for an address that says something else."""
        found = re.fullmatch(rf"{PREFIX}(?:([1-9]\d*)x([1-9]\d*))?", url)
        if not found:
            raise SpecError(f"rewriter.url: got {url!r}, expected {PREFIX} or {PREFIX}<engines>x<GPUs of each>, such as "
                            f"{PREFIX}2x4")
        return cls(*map(int, found.groups())) if found.group(1) else cls()


class VllmBatch:
    """Asks engines. Raises SpecError for the address, ConfigError where vLLM is not installed."""

    def __init__(self, spec: RewriterSpec) -> None:
        self.spec, self.engines = spec, Engines.of(spec.url)
        if not installed():
            raise ConfigError(f"rewriter.url {spec.url!r} runs the model in vLLM on the GPUs of the Ray cluster, and vllm "
                              "is not installed here: install 'ray[llm]' on every machine, or give the address of a "
                              "server that speaks the OpenAI API")

    def replies(self, asks: Sequence[Ask], cache: ReplyCache) -> Iterator[Answered]:
        """The replies as they come, each kept before it is handed out. Raises Stopped where the engines fail."""
        if not asks:
            return
        import ray

        failure = None
        try:
            rows = processor(self.spec, self.engines)(ray.data.from_items([row_of(ask) for ask in asks]))
            for row in rows.iter_rows():
                answered = read_row(row, self.spec.maximum_tokens)
                cache.put(answered.key, answered.reply, self.spec.model)
                yield answered
        except ray.exceptions.RayError as error:
            failure = f"vLLM with {self.spec.model!r} failed: {cause(str(error))}"
        if failure is not None:
            raise Stopped(failure)


def installed() -> bool:
    """Whether vLLM can be imported here."""
    return importlib.util.find_spec("vllm") is not None


def cause(trace: str) -> str:
    """The line that says what went wrong first, of the trace that Ray makes of an error in a worker."""
    found = re.search(r"^[\w.]+(?:Error|Exception): .+$", trace, re.MULTILINE)
    return found.group() if found else trace.strip().splitlines()[0]


def row_of(ask: Ask) -> Row:
    """What goes in: the request as JSON, since columns of nested lists change their type on the way."""
    return {"key": ask.key, "request": json.dumps(ask.body)}


def before(row: Row) -> Row:
    """What the engine's stages read, of one row."""
    body = json.loads(row["request"])
    return {"messages": body["messages"],
            "sampling_params": {"temperature": body["temperature"], "max_tokens": body["max_tokens"]}}


def after(row: Row) -> Row:
    """What is left of a row behind the engine."""
    return {"key": row["key"], "content": row["generated_text"], "tokens_in": row["num_input_tokens"],
            "tokens_out": row["num_generated_tokens"]}


def read_row(row: Row, maximum_tokens: int) -> Answered:
    """A row that came out. The stage does not say why a text ended; one of full length counts as cut off."""
    tokens_in, tokens_out = int(row["tokens_in"]), int(row["tokens_out"])
    finish = "length" if tokens_out >= maximum_tokens else "stop"
    return Answered(str(row["key"]), Reply(str(row["content"]), finish, tokens_in, tokens_out), 1)


def settings(spec: RewriterSpec, engines: Engines) -> dict[str, Any]:
    """Arguments of Ray's vLLMEngineProcessorConfig. Texts are read from the engine itself, not from a stage of ids."""
    sequences = max(1, spec.concurrency // engines.count)
    rows = min(BATCH_ROWS, sequences)
    return {"model_source": spec.model, "concurrency": (engines.count, engines.count), "batch_size": rows,
            "max_concurrent_batches": max(BATCHES_AT_ONCE, -(-sequences // rows)), "detokenize_stage": False,
            "engine_kwargs": {"tensor_parallel_size": engines.gpus, "max_num_seqs": sequences,
                              "enable_prefix_caching": True}}


def processor(spec: RewriterSpec, engines: Engines) -> Callable:
    """Ray Data's batch stage. Starts Ray if it does not run; ConfigError where the cluster has too few GPUs."""
    import ray

    ray.init(ignore_reinit_error=True)
    there, needed = int(ray.cluster_resources().get("GPU", 0)), engines.count * engines.gpus
    if there < needed:
        raise ConfigError(f"rewriter.url {spec.url!r} needs {needed} GPUs, the Ray cluster has {there}; ask for fewer, "
                          "or give the address of a server")
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    return build_processor(vLLMEngineProcessorConfig(**settings(spec, engines)), preprocess=before, postprocess=after)
