"""The flows of one step each, named after what they make. What their inputs need is made too.

A docstring is what the page of the deployment shows, in Markdown, with an example.
"""

from __future__ import annotations

from flows import environment

environment.prepare()

import inspect  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

from prefect import Flow, flow  # noqa: E402

from flows.forms.flow_form import FlowForm  # noqa: E402
from flows.forms.measuring import BenchForm, DeployForm, ExtrapolationForm, PerplexityForm  # noqa: E402
from flows.forms.questions import ClozeForm, EvaluateForm  # noqa: E402
from flows.forms.titles import run_name  # noqa: E402
from flows.forms.training import PretrainForm, TokeniseForm  # noqa: E402
from flows.planning.plan import Plan  # noqa: E402
from flows.running.ray_runner import interruptible, task_runner  # noqa: E402
from flows.running.runner import Runner  # noqa: E402
from flows.showing.failure import clear_failures  # noqa: E402
from storage.artifacts import Store  # noqa: E402


def step(function: Callable[[Any], Any]) -> Flow:
    """A flow named after its function, described by its docstring, its runs named after what they do."""
    about = inspect.getdoc(function).partition("\nArgs:")[0].strip()
    return flow(name=function.__name__, description=about, flow_run_name=run_name, task_runner=task_runner(),
                validate_parameters=False)(clear_failures(function))


def _drive(form: FlowForm) -> dict[str, Any]:
    """Everything that a form can get wrong is told before anything is started."""
    interruptible()
    store = Store()
    planned: Plan = form.to_request().plan(store)
    return Runner(planned, store).run()


@step
def tokenise(request: TokeniseForm = TokeniseForm()) -> dict[str, Any]:      # noqa: B008  (frozen)
    """Read a corpus and cut it into rows of tokens.

    What exists already is not made again. As it is, the form reads the documentation of installed Python packages.

    **Example:** *Text* → *Files* with `/data/articles/*.jsonl.gz`, *Tokenizer* `bpe:4096`.

    Args:
        request: Which text, which tokenizer. Example: Files with /data/articles/*.jsonl.gz, tokenizer bpe:4096
    """
    return _drive(request)


@step
def pretrain(request: PretrainForm = PretrainForm()) -> dict[str, Any]:      # noqa: B008
    """Train one model once, from its corpus to a checkpoint that is registered in MLflow.

    A run that was cancelled or failed goes on from its last checkpoint when it is started again with the same form.

    **Example:** *Model* `jrt-tiny`, *Training data* → *Recall rows* with 2000000 tokens: a small JRT-RNN that has learned
    to recall, after some minutes on two cores. To look at the way alone, set *Steps* to 20.

    Args:
        request: Which model, on what, how long. Example: jrt-tiny on recall rows, 2000000 training tokens
    """
    return _drive(request)


@step
def cloze(request: ClozeForm = ClozeForm()) -> dict[str, Any]:      # noqa: B008
    """Write the prompts of an eval task in every prompt order, without asking any model.

    **Example:** *Task* `squad`, *Question files* `/data/squad/dev-v2.0.json`, *Prompt orders* `default` and `twice`.

    Args:
        request: Which task, which prompt orders, how many documents. Example: squad, orders default and twice
    """
    return _drive(request)


@step
def evaluate(request: EvaluateForm) -> dict[str, Any]:
    """Let a trained model answer prompts, and score the answers with 95 % intervals over documents.

    The run ends with a table of scores, and a link to the MLflow run that holds every prompt and answer.

    **Example:** *Checkpoint* `models:/quick-pydocs@best-tiny`, *Task* `pydocs`, *Prompt orders* `default`,
    `question_first` and `twice`, *Documents* 100.

    Args:
        request: Which checkpoint, what it is asked. Example: models:/quick-pydocs/3 on pydocs, 100 documents
    """
    return _drive(request)


@step
def perplexity(request: PerplexityForm) -> dict[str, Any]:
    """Let a trained model read text, and slice its loss: tokens that were seen earlier in the document, and the rest.

    **Example:** *Checkpoint* `checkpoint-0123456789abcdef`, *Split* `validation`, *Sequences* 200.

    Args:
        request: Which checkpoint, which text. Example: checkpoint-0123 on its training text, 200 sequences
    """
    return _drive(request)


@step
def extrapolation(request: ExtrapolationForm) -> dict[str, Any]:
    """Let a trained model read whole books, at lengths beyond its training.

    **Example:** *Checkpoint* `checkpoint-0123456789abcdef`, *Books* `/data/pg19/*.txt.gz`, *Lengths* 512 and 4096.

    Args:
        request: Which checkpoint, which books, which lengths. Example: checkpoint-0123, lengths 512 and 4096
    """
    return _drive(request)


@step
def deploy(request: DeployForm) -> dict[str, Any]:
    """Time a trained model as it would be served: first token, tokens a second and bytes of state, by input length.

    Nothing else should run on the machine meanwhile; a row that was disturbed says so.

    **Example:** *Checkpoint* `checkpoint-0123456789abcdef`, *Input lengths* 512 and 2048.

    Args:
        request: Which checkpoint, which input lengths. Example: checkpoint-0123 at 512 and 2048 tokens
    """
    return _drive(request)


@step
def bench(request: BenchForm = BenchForm()) -> dict[str, Any]:      # noqa: B008
    """Time operations, mixers and models, each after its correctness check: what is wrong gets no time.

    **Example:** *Preset* `gate`, *Device* `cpu`: what a release must hold, in less than a minute.

    Args:
        request: Which preset, on which device. Example: gate on cpu
    """
    return _drive(request)


ALL = (tokenise, pretrain, cloze, evaluate, perplexity, extrapolation, deploy, bench)
