"""lm-evaluation-harness: our checkpoints as one of its models, our prompts as its tasks, our answers as its samples.

    model.py        the model class `reread`, all request types
    scoring.py      log-likelihoods of continuations, batched
    limits.py       what is cut where a request is longer than the model can place, and how much
    stopping.py     stop strings in tokens
    opening.py      checkpoint and tokenizer by the names that `--model_args` gives
    run.py          its command line with our model in its list
    export.py       a `prompts` artifact as a task folder
    samples.py      a `scores` artifact as per-sample JSONL
    throughput.py   the same answers in how much time, ours and theirs

lm_eval is an optional package (`pip install 'reread[harness]'`) and has no entry points for models of other packages:
a model is known once `register` has put it into the registry. Nothing here imports lm_eval before it is needed.
"""

from __future__ import annotations

import importlib.util

from storage.errors import ConfigError

NAME = "reread"
TARGET = "tasks.harness.model:RereadLM"


def check_installed() -> None:
    """Raise ConfigError where lm_eval is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("lm-evaluation-harness (lm_eval) is not installed; pip install 'reread[harness]'")


def register() -> None:
    """Put the model `reread` into lm_eval's registry; it is imported when it is first asked for."""
    check_installed()
    import lm_eval.models  # noqa: F401 - fills the registry with their own models, which it does only while it is empty
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)
