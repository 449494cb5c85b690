"""The model card of an exported checkpoint: what it is, what it saw, what it scored, how to load it.

Everything in it is read from the artifact's own records; what is not recorded is said to be unknown, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from models.language_model import LanguageModel

LENGTHS = (2048, 32768)


@dataclass(frozen=True)
class Source:
    """One artifact that the weights come from: its role, id, and what it holds, in words."""

    role: str
    identifier: str
    content: str


@dataclass(frozen=True)
class Provenance:
    """What is known of a checkpoint. Empty fields are unknown.

    training     totals of the run (summary.json): steps, tokens, supervised, training_flops, seed, losses ...
    settings     how it was trained, by name: optimiser, learning rate, objective ...
    scores       rows of scores.json, each with `artifact` and `prompts`, the ids they are from
    """

    name: str
    version: str
    commit: str | None = None
    created: str | None = None
    preset: str | None = None
    training: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    sources: Sequence[Source] = ()
    scores: Sequence[dict[str, Any]] = ()
    tokenizer: str | None = None
    end_of_text: int | None = None


def model_card(model: LanguageModel, known: Provenance) -> str:
    """README.md in Markdown, with the front matter that model hubs read."""
    parts = [_front(model), f"# {known.name}\n", _introduction(model, known), _architecture(model, known),
             _data(known), _budget(known), _scores(known), _loading(model, known), _licence()]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _front(model: LanguageModel) -> str:
    tags = ["reread", *sorted({block.mixer.config.kind for block in model.blocks})]
    return "\n".join(["---", "library_name: transformers", "pipeline_tag: text-generation", "tags:",
                      *(f"- {tag}" for tag in tags), "---", ""])


def _introduction(model: LanguageModel, known: Provenance) -> str:
    made = f"Written by reread {known.version}"
    made += f", trained at commit `{known.commit}`" if known.commit else "; the commit it was trained at is unknown"
    made += f", {known.created[:10]}" if known.created else ""
    dirty = ("\n\nThe source tree had uncommitted changes then: the commit alone does not reproduce it."
             if known.commit and known.commit.endswith("+changes") else "")
    return f"A causal language model of {_number(model.cost(1).parameters)} parameters. {made}.{dirty}\n"


def _architecture(model: LanguageModel, known: Provenance) -> str:
    config, able = model.config, model.able
    dtype = model.norm.weight.dtype
    lengths = sorted({min(length, able.max_length or length) for length in LENGTHS})       # those it can place
    state = {length: model.cost(length, dtype).state_bytes for length in lengths}
    rows = [("Preset", f"`{known.preset}`" if known.preset else None), ("Layers", plan_text(config.plan)),
            ("Width", _number(config.width)),
            ("MLP", f"hidden {_number(config.mlp)}" if config.mlp else "none"),
            ("Vocabulary", f"{_number(config.vocabulary)} (table of {_number(config.table_rows)} rows)"),
            ("Positions", config.positions), ("Head", "tied to the embedding" if config.tie else "its own matrix"),
            ("FLOPs per token, forward", f"{_number(model.cost(lengths[0]).flops // lengths[0])} at {lengths[0]:,} tokens"),
            ("State of one row", "; ".join(f"{_number(size)} bytes after {length:,} tokens"
                                           for length, size in state.items())),
            ("State grows", {"constant": "not at all", "log": "with the logarithm of the length",
                             "linear": "with the length"}[able.growth]),
            ("Longest input", f"{_number(able.max_length)} tokens" if able.max_length else "no limit of its own"),
            ("Weights", str(dtype).removeprefix("torch."))]
    mixers = [f"- `{name}`: " + ", ".join(f"{key} {value}" for key, value in config.mixers[name].model_dump().items())
              for name in sorted(set(config.plan))]
    return "\n".join(["## Architecture\n", _table(("what", "value"), rows), "\nMixers:\n", *mixers, ""])


def _data(known: Provenance) -> str:
    if not known.sources:
        return "## Data\n\nNot recorded with these weights.\n"
    return "\n".join(["## Data\n", "Trained on these artifacts (an id names the work that made it):\n",
                      *(f"- {one.role} `{one.identifier}`: {one.content}" for one in known.sources), ""])


def _budget(known: Provenance) -> str:
    total = known.training
    if not total.get("tokens"):
        return "## Budget\n\nNot recorded with these weights.\n"
    rows = [("Steps", total.get("steps")), ("Rows", total.get("rows")), ("Tokens read", total["tokens"]),
            ("Tokens supervised", total.get("supervised")), ("Training FLOPs", total.get("training_flops")),
            ("Seed", total.get("seed")), ("Last loss [nats]", total.get("loss")),
            ("Validation bits per byte", total.get("validation_bits_per_byte")),
            *((name[:1].upper() + name[1:], value) for name, value in known.settings.items())]
    return "\n".join(["## Budget and training\n", _table(("what", "value"), rows), ""])


def _scores(known: Provenance) -> str:
    if not known.scores:
        return "## Scores\n\nThis checkpoint has not been evaluated where it was exported.\n"
    lines = ["## Scores\n",
             "Shares of right answers with 95 % intervals, a bootstrap over documents. The controls take the document "
             "away (`empty`) or exchange it (`other`): what lies above both is recall. These are scores of one "
             "checkpoint; a claim about its architecture needs several seeds.\n"]
    for (artifact, prompts), rows in groupby(known.scores, key=lambda row: (row["artifact"], row["prompts"])):
        lines += [f"`{artifact}`, prompts `{prompts}`:\n",
                  _table(("task", "column", "order", "strategy", "keep_out", "n", "documents", "score", "controls"),
                         [(row["task"], row["column"], row["order"], row["strategy"], row["keep_out"], row["n"],
                           row.get("documents"), _interval(row), ", ".join(f"{name} {_interval(each)}" for name, each in
                                                     (row.get("controls") or {}).items())) for row in rows]), ""]
    return "\n".join(lines)


def _loading(model: LanguageModel, known: Provenance) -> str:
    commit = f" at commit `{known.commit.removesuffix('+changes')}`" if known.commit else ""
    first = "" if known.end_of_text is None else (
        f"\nTraining documents begin with the end-of-text id {known.end_of_text}; the tokenizer does not add it. "
        "Padding goes on the left, and pads change nothing in the text.\n")
    tokenizer = ("" if known.tokenizer else
                 "\nNo tokenizer came with these weights: the ids are those of the data named above.\n")
    paragraphs = [
        "## Loading\n",
        f"The code file here, `modeling_reread.py`, runs the installed reread packages (`models` and `kernels`) instead "
        f"of a second copy of them. Install reread first: `pip install .` in a clone of its repository{commit}.\n",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n",
        'folder = "."                              # where this file lies',
        "model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)",
        "tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)",
        'inputs = tokenizer(["a first prompt", "another one"], padding=True, return_tensors="pt")',
        "new = model.generate(inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=48)",
        "print(tokenizer.batch_decode(new[:, inputs.input_ids.shape[1]:], skip_special_tokens=True))",
        "```", first, tokenizer, _prefix(model), "\nreread reads the folder too: `reread import FOLDER`.\n"]
    return "\n".join(paragraph for paragraph in paragraphs if paragraph).replace("\n\n\n", "\n\n")


def _prefix(model: LanguageModel) -> str:
    if not model.able.prefix:
        return ""
    limit = model.config.prefix_tokens
    read = "the whole prompt" if limit is None else f"the prompt, at most its first {limit:,} tokens,"
    return (f"\nThis is a prefix model: `generate` reads {read} both ways (strategy `left_pad`: a short prompt needs no "
            "filling), and every new token causally. `prefix_length=` sets another number of tokens, one for all rows "
            "or one for each; 0 reads causally. Scores above with keep_out `question` left the question at the end of the "
            "prompt out of the prefix: `prefix_length` = the prompt's tokens before it. A plain `model(ids)` reads causally unless it is given `prefix_length`: "
            "a loss over tokens inside the prefix would be a loss over what the model has read, and is refused.\n")


def _licence() -> str:
    return ("## Licence\n\nNot stated. Whoever publishes these weights has to add `license:` at the top of this file, "
            "after a look at the licences of the data above.\n")


def plan_text(plan: Sequence[str]) -> str:
    """conv, conv, prefix -> 3 layers: conv ×2, prefix."""
    parts = [(name, len(list(run))) for name, run in groupby(plan)]
    return f"{len(plan)}: " + ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in parts)


def _interval(row: dict[str, Any]) -> str:
    if row.get("value") is None:
        return "–"
    low, high = row.get("low"), row.get("high")
    return f"{row['value']:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows whose value is None are left out."""
    shown = [row for row in rows if len(row) != 2 or row[1] is not None]
    lines = [" | ".join(head), " | ".join("---" for _ in head),
             *(" | ".join("" if cell is None else _number(cell).replace("|", "\\|") for cell in row) for row in shown)]
    return "\n".join(f"| {line} |" for line in lines)
