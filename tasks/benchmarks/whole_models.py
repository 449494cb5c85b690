"""Whole models, one per preset that the machine can hold: time to first token, generation throughput, state."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial

import torch

from models import Layout, build, greedy, preset, preset_names
from models.language_model import LanguageModel
from tasks.benchmarks import machine, refusals
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.rows import Red, relative, row, timed
from tasks.benchmarks.sections import FIRST_TOKEN, GENERATION, WholeModels
from tasks.timing import Times, observed

CPU_PARAMETERS = 20_000_000        # larger models take minutes a prompt on a CPU
SHARE = 0.5                        # of the free memory that a model may take with its float64 copy's check left out
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
STEPS = 4                          # after the prompt, whose logits are checked


def obstacle(name: str, device: str) -> str | None:
    """Why this machine does not measure the preset; None if it does."""
    with torch.device("meta"):
        parameters = LanguageModel(preset(name), initialise=False).cost(1).parameters
    if device == "cpu" and parameters > CPU_PARAMETERS:
        return f"{parameters / 1e6:,.0f} M parameters are for a GPU (on a CPU up to {CPU_PARAMETERS / 1e6:.0f} M)"
    if parameters * 4 > SHARE * machine.free_memory(device):
        return f"{parameters / 1e6:,.0f} M parameters do not fit the free memory"
    return None


def points(section: WholeModels, conditions: Conditions) -> list[str]:
    """Names of the presets that will be measured; `absent` says why others are not."""
    return [name for name in section.presets or preset_names() if obstacle(name, conditions.device) is None]


def absent(section: WholeModels, conditions: Conditions) -> list[str]:
    """A sentence for each preset that this machine cannot hold."""
    reasons = {name: obstacle(name, conditions.device) for name in section.presets or preset_names()}
    return [f"{name}: {reason}" for name, reason in reasons.items() if reason]


@torch.no_grad()
def measure(section: WholeModels, name: str, conditions: Conditions) -> list[dict]:
    """Two rows: the prompt's prefill up to the first token, and the whole answer through `models.greedy`.

    Each has a check of its own, and is timed if that is green.
    """
    known = {"op": name, "backend": "auto", "batch": section.batch, **conditions.label,
             "tolerance": TOLERANCE[conditions.dtype]}
    rows = [row(**known, measure=FIRST_TOKEN, n=section.prompt),
            row(**known, measure=GENERATION, n=section.prompt + section.new,
                note=f"{section.new} tokens after a prompt of {section.prompt}, prefill included")]
    try:
        model = build(preset(name)).eval().to(conditions.device, conditions.torch_dtype)
        generator = torch.Generator().manual_seed(conditions.seed)
        ids = torch.randint(model.config.vocabulary, (section.batch, section.prompt), generator=generator).to(conditions.device)
        exact = copy.deepcopy(model).double()
    except Exception as problem:  # noqa: BLE001 - one broken model must not take the others' figures with it
        for one in rows:
            refusals.refuse(one, problem, conditions.device)
        return rows
    checks = (partial(_first_token, rows[0], model, exact, ids, conditions.device),
              partial(_generation, rows[1], model, exact, ids, section.new))
    passed = [one for one, check in zip(rows, checks) if refusals.attempt(one, check, conditions.device)]
    del exact, checks
    layout, prompts = layout_of(model, ids), ids.tolist()
    # a model that reads a prefix takes the whole prompt as such, as `greedy` does by itself
    functions = {FIRST_TOKEN: lambda: model.prefill(ids, layout)[0].argmax(-1),
                 GENERATION: lambda: greedy(model, prompts, maximum_new=section.new)}
    failed: dict[str, Exception] = {}
    times = timings({one["measure"]: functions[one["measure"]] for one in passed}, section, conditions, failed)
    for one in passed:
        if one["measure"] in failed:
            refusals.refuse(one, failed[one["measure"]], conditions.device)
            continue
        own = times[one["measure"]]
        made = section.batch * (1 if one["measure"] == FIRST_TOKEN else section.new)
        one |= {**timed(own), "tokens_per_second": (section.batch * section.prompt if one["measure"] == FIRST_TOKEN else made)
                / own.best, "state_bytes": model.cost(one["n"], dtype=conditions.torch_dtype).state_bytes * section.batch}
    return rows


def layout_of(model: LanguageModel, ids: torch.Tensor, new: int = 0) -> Layout:
    """Full rows; the prefix of a prefix model is as long as its config says, at most the prompt. `new` tokens follow it."""
    B, L = ids.shape
    layout = Layout.dense(B, L + new, device=ids.device)
    return layout.with_prefix(min(model.config.prefix_tokens or L, L)) if model.able.prefix else layout


# ------------------------------------------------------------------------------------------------------------- checks
def _first_token(found: dict, model: LanguageModel, exact: LanguageModel, ids: torch.Tensor, device: str) -> None:
    """The prefill of the whole prompt against the copy's forward."""
    layout = layout_of(model, ids)
    (logits, state), peak, _ = observed(lambda: model.prefill(ids, layout), device)
    found |= {"peak_bytes": peak, "note": f"tokens/s: of the prompt; the state holds {state.nbytes:,} bytes"}
    wanted = exact.head(exact.hidden(ids, layout)[:, -1])
    refusals.hold(found, relative(logits, wanted), "the model in float64, logits after the prompt")


def _generation(found: dict, model: LanguageModel, exact: LanguageModel, ids: torch.Tensor, new: int) -> None:
    """The answer's tokens and the logits of its first steps against the copy's forward over prompt and answer."""
    tokens = greedy(model, ids.tolist(), maximum_new=new)
    if [len(row) for row in tokens] != [new] * len(ids):
        raise Red(f"answers of {[len(row) for row in tokens]} tokens, expected {new} each")
    chosen = torch.tensor(tokens, device=ids.device)
    whole = torch.cat((ids, chosen[:, :-1]), 1)
    wanted = exact.head(exact.hidden(whole, layout_of(model, ids, new - 1))[:, ids.shape[1] - 1:])
    _, state = model.prefill(ids, layout_of(model, ids))
    errors = [short_of_best(wanted[..., :model.config.vocabulary], chosen)]
    for step in range(min(STEPS, new - 1)):
        logits, state = model.step(chosen[:, step], state)
        errors.append(relative(logits, wanted[:, step + 1]))
    refusals.hold(found, max(errors), f"the model in float64: logits of {len(errors) - 1} steps; each of the {new} tokens "
                                      "its likeliest")


def short_of_best(logits_BNE: torch.Tensor, chosen_BN: torch.Tensor) -> float:
    """How far the chosen tokens lie below the likeliest, halved, over the largest logit of their place.

    Logits that are each off by at most e of the largest choose a token at most 2 e below the likeliest: so this is at
    most e, and 0 where the tokens are the likeliest themselves.
    """
    short_BN = logits_BNE.amax(-1) - logits_BNE.gather(-1, chosen_BN[..., None])[..., 0]
    return float((short_BN / 2 / logits_BNE.abs().amax((0, 2))).max())


def timings(functions, section: WholeModels, conditions: Conditions, failed: dict[str, Exception]):
    """In turns on a CPU; by wall clock with the GPU's queue emptied around each call, since `greedy` is mostly Python."""
    if conditions.device == "cpu":
        return conditions.clock(functions, seconds=section.seconds, fewest=section.fewest, failed=failed)
    found = {}
    for name, function in functions.items():
        try:
            seconds = [_waited(function) for _ in range(max(section.fewest, 5))]
            found[name] = Times(seconds, list(seconds), device="cuda")
        except Exception as problem:  # noqa: BLE001 - told in the row
            failed[name] = problem
    return found


def _waited(function: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - begun
