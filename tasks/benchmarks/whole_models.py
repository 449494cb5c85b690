"""Whole models, one per preset that the machine can hold: time to first token, generation throughput, state."""

from __future__ import annotations

import copy
import time

import torch

from models import Layout, build, greedy, preset, preset_names
from models.language_model import LanguageModel
from storage import logs
from tasks.benchmarks import machine
from tasks.benchmarks.conditions import Conditions
from tasks.benchmarks.rows import relative, row, shown, timed
from tasks.benchmarks.sections import FIRST_TOKEN, GENERATION, WholeModels
from tasks.timing import observed

CPU_PARAMETERS = 20_000_000        # larger models take minutes a prompt on a CPU
SHARE = 0.5                        # of the free memory that a model may take with its float64 copy's check left out
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
CHECKED = 256                      # tokens of the prompt that the float64 copy reads too

log = logs.get("tasks.bench")


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
    """Two rows: the prompt's prefill up to the first token, and the whole answer through `models.greedy`."""
    model = build(preset(name)).eval().to(conditions.device, conditions.torch_dtype)
    generator = torch.Generator().manual_seed(conditions.seed)
    ids = torch.randint(model.config.vocabulary, (section.batch, section.prompt), generator=generator).to(conditions.device)
    error = check(model, ids)
    known = {"op": name, "backend": "auto", "batch": section.batch, **conditions.label, "error": shown(error),
             "tolerance": TOLERANCE[conditions.dtype], "truth": f"the model in float64, logits after {CHECKED} tokens"}
    rows = [row(**known, measure=FIRST_TOKEN, n=section.prompt),
            row(**known, measure=GENERATION, n=section.prompt + section.new,
                note=f"{section.new} tokens after a prompt of {section.prompt}, prefill included")]
    if not error <= TOLERANCE[conditions.dtype]:
        log.error("%s: logits differ from those in float64 by %.1e; no time is reported", name, error)
        return rows
    layout = layout_of(model, ids)
    prompts = ids.tolist()
    # a model that reads a prefix takes the whole prompt as such, as `greedy` does by itself
    functions = {FIRST_TOKEN: lambda: model.prefill(ids, layout)[0].argmax(-1),
                 GENERATION: lambda: greedy(model, prompts, maximum_new=section.new)}
    (_, state), peak, _ = observed(lambda: model.prefill(ids, layout), conditions.device)
    nbytes = state.nbytes
    del state
    functions[GENERATION]()
    times = timings(functions, section, conditions)
    for one in rows:
        own = times[one["measure"]]
        made = section.batch * (1 if one["measure"] == FIRST_TOKEN else section.new)
        one |= {**timed(own), "tokens_per_second": (section.batch * section.prompt if one["measure"] == FIRST_TOKEN else made)
                / own.best, "state_bytes": model.cost(one["n"], dtype=conditions.torch_dtype).state_bytes * section.batch}
    rows[0] |= {"peak_bytes": peak, "note": f"tokens/s: of the prompt; the state holds {nbytes:,} bytes"}
    return rows


def layout_of(model: LanguageModel, ids: torch.Tensor) -> Layout:
    """Full rows; the prefix of a prefix model is as long as its config says, at most the prompt."""
    B, L = ids.shape
    layout = Layout.dense(B, L, device=ids.device)
    return layout.with_prefix(model.config.prefix_tokens or L) if model.able.prefix else layout


def check(model: LanguageModel, ids: torch.Tensor) -> float:
    """Difference of the last logits of a short prefill from those of a float64 copy's forward."""
    ids = ids[:, :CHECKED]
    layout = layout_of(model, ids)
    logits, _ = model.prefill(ids, layout)
    exact = copy.deepcopy(model).double()
    return relative(logits, exact(ids, layout)[:, -1])


def timings(functions, section: WholeModels, conditions: Conditions):
    """In turns on a CPU; by wall clock with the GPU's queue emptied around each call, since `greedy` is mostly Python."""
    if conditions.device == "cpu":
        return conditions.clock(functions, seconds=section.seconds, fewest=section.fewest)
    from tasks.timing import Times

    found = {name: Times(device="cuda") for name in functions}
    for name, function in functions.items():
        for _ in range(max(section.fewest, 5)):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            function()
            torch.cuda.synchronize()
            found[name].work.append(time.perf_counter() - begun)
        found[name].wall = list(found[name].work)
    return found
