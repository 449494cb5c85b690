"""The flows of one step each, named after what they make. What their inputs need is made too."""

from __future__ import annotations

from flows import environment

environment.prepare()

from typing import Any  # noqa: E402

from prefect import flow, runtime  # noqa: E402

from flows.plan import Plan  # noqa: E402
from flows.ray_runner import interruptible, task_runner  # noqa: E402
from flows.requests import (  # noqa: E402
    BenchRequest,
    ClozeRequest,
    DeployRequest,
    EvaluateRequest,
    ExtrapolationRequest,
    PerplexityRequest,
    PretrainRequest,
    TokeniseRequest,
)
from flows.runner import Runner  # noqa: E402
from storage.artifacts import Store  # noqa: E402

PYDOCS = TokeniseRequest()
QUICK = BenchRequest()


def _name(*fields: str):
    """A run name from the request's fields: `pretrain jrt-tiny 0`."""
    def run_name() -> str:
        request = runtime.flow_run.parameters["request"]
        values = request if isinstance(request, dict) else request.model_dump()
        return " ".join([str(runtime.flow_run.flow_name), *(str(values[field]) for field in fields if field in values)])
    return run_name


def _drive(request: Any) -> dict[str, Any]:
    interruptible()
    store = Store()
    planned: Plan = request.plan(store)
    return Runner(planned, store).run()


@flow(name="tokenise", flow_run_name=_name("tokenizer"), task_runner=task_runner())
def tokenise(request: TokeniseRequest = PYDOCS) -> dict[str, Any]:
    """Read a corpus and cut it into rows of tokens.

    Args:
        request: Which text, which tokenizer.
    """
    return _drive(request)


@flow(name="pretrain", flow_run_name=_name("model", "seed"), task_runner=task_runner())
def pretrain(request: PretrainRequest) -> dict[str, Any]:
    """Train one model once.

    Args:
        request: Which model, on what, how.
    """
    return _drive(request)


@flow(name="cloze", flow_run_name=_name("task"), task_runner=task_runner())
def cloze(request: ClozeRequest) -> dict[str, Any]:
    """Write the prompts of an eval task in every order.

    Args:
        request: Which task, which orders, how long.
    """
    return _drive(request)


@flow(name="evaluate", flow_run_name=_name("checkpoint"), task_runner=task_runner())
def evaluate(request: EvaluateRequest) -> dict[str, Any]:
    """Let a trained model answer prompts, and score the answers.

    Args:
        request: Which checkpoint, which prompts.
    """
    return _drive(request)


@flow(name="perplexity", flow_run_name=_name("checkpoint"), task_runner=task_runner())
def perplexity(request: PerplexityRequest) -> dict[str, Any]:
    """Let a trained model read text, and slice its loss by recall, rarity and distance.

    Args:
        request: Which checkpoint, which text.
    """
    return _drive(request)


@flow(name="extrapolation", flow_run_name=_name("checkpoint"), task_runner=task_runner())
def extrapolation(request: ExtrapolationRequest) -> dict[str, Any]:
    """Let a trained model read whole books, at lengths beyond its training.

    Args:
        request: Which checkpoint, which books, which lengths.
    """
    return _drive(request)


@flow(name="deploy", flow_run_name=_name("checkpoint"), task_runner=task_runner())
def deploy(request: DeployRequest) -> dict[str, Any]:
    """Time a trained model as it would be served, by input length.

    Args:
        request: Which checkpoint, which lengths.
    """
    return _drive(request)


@flow(name="bench", flow_run_name=_name("preset"), task_runner=task_runner())
def bench(request: BenchRequest = QUICK) -> dict[str, Any]:
    """Time operations, mixers and models, each after its correctness check.

    Args:
        request: Which preset, on what device.
    """
    return _drive(request)


ALL = (tokenise, pretrain, cloze, evaluate, perplexity, extrapolation, deploy, bench)
