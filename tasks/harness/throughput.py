"""The same answers in how much time: our generation against lm-evaluation-harness's own class, on one model and one CPU.

    python -m tasks.harness.throughput --prompts <prompts id> --checkpoint hf:<folder> --out rows.json

All prompts of one order go through both in one process: lm_eval's `HFLM` at its default batch size (1) and at others, and
our model class, once each after a warm-up. A row has a time only if its texts are, one by one, those of HFLM at batch
size 1. With one thread the figure is that thread's CPU time, which neighbours on the machine barely move; wall time
stands beside it. Times include tokenising and cutting at the stop string, not loading. Rows gather in --out, so that
engines may be measured in turns (--engine, --sizes) and one of them again (--again).

`model_folder` makes what is measured where no model is at hand: a random GPT-2, or a byte-level model's weights with the
tokenizer in both forms.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storage.artifacts import Store
from storage.errors import SpecError
from tasks.harness.export import generation, read_prompts

SIZES = ("1", "2", "4", "8", "16", "32")     # 1: lm_eval's default. `auto` probes with 64 rows of the longest context
OURS, THEIRS = "reread", "lm_eval"
WARM_UP = 8          # prompts


def requests(store: Store, prompts: str, order: str, limit: int | None = None) -> list[Any]:
    """lm_eval's requests of the prompts of one order, controls left out. Raises SpecError where there are none."""
    from lm_eval.api.instance import Instance

    manifest, docs = read_prompts(store, prompts)
    chosen = [doc["prompt"] for doc in docs if doc["order"] == order and doc["control"] == "none"][:limit]
    if not chosen:
        raise SpecError(f"{prompts} has no prompts in the order {order!r}")
    settings = generation(manifest)
    return [Instance(request_type="generate_until", doc={}, arguments=(text, dict(settings)), idx=0) for text in chosen]


def timed(generate: Callable[[list], list[str]], asked: list[Any]) -> dict[str, Any]:
    """Texts, and the seconds they took: of this thread, and on the wall."""
    generate(asked[:WARM_UP])
    wall, work = time.perf_counter(), time.thread_time()
    texts = generate(asked)
    work, wall = time.thread_time() - work, time.perf_counter() - wall
    return {"texts": texts, "seconds": work, "wall_seconds": wall}


def engine(name: str, size: str, checkpoint: str, max_length: int | None, dtype: str) -> Callable[[list], list[str]]:
    """The generate_until of an engine with a batch size, its model loaded."""
    from tasks.external import place

    if name == OURS:
        from tasks.harness.model import RereadLM

        model = RereadLM(checkpoint, batch_size=size, device="cpu", max_length=max_length, dtype=dtype)
        return model.generate_until
    from lm_eval.models.huggingface import HFLM

    folder, hub, _ = place(checkpoint)
    model = HFLM(pretrained=str(folder or hub), batch_size=size, device="cpu", dtype=dtype, max_length=max_length)
    return lambda asked: model.generate_until(asked, disable_tqdm=True)


def measure(asked: list[Any], wanted: Sequence[tuple[str, str]], checkpoint: str, file: Path, *, again: bool = False,
            max_length: int | None = None, dtype: str = "float32") -> dict[str, dict[str, Any]]:
    """Rows by `<engine> <batch size>`: those in the file, then each wanted one that is not in it, or all of them again."""
    import torch

    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, size in wanted:
            if again or f"{name} {size}" not in rows:
                with torch.no_grad():
                    rows[f"{name} {size}"] = timed(engine(name, size, checkpoint, max_length, dtype), asked)
                file.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    finally:
        torch.set_num_threads(before)
    return rows


def compare(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row an engine and size: seconds where its texts are those of lm_eval at its default, else how many differ.

    ratio: lm_eval's time at its default over this one's. Raises SpecError without that reference.
    """
    reference = rows.get(f"{THEIRS} 1")
    if reference is None:
        raise SpecError(f"there is no row of {THEIRS} at its default batch size, 1, which the others are held against")
    found = []
    for name, row in rows.items():
        differ = sum(a != b for a, b in zip(row["texts"], reference["texts"], strict=True))
        same = {"seconds": row["seconds"], "wall_seconds": row["wall_seconds"], "ratio": reference["seconds"] / row["seconds"]}
        found.append({"engine": name, "prompts": len(row["texts"]), "differ": differ,
                      **(dict.fromkeys(same) if differ else same)})
    return found


def best(rows: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The quickest row of an engine that has a time."""
    own = [row for row in rows if row["engine"].startswith(f"{name} ") and row["seconds"] is not None]
    return min(own, key=lambda row: row["seconds"], default=None)


def told(rows: list[dict[str, Any]]) -> str:
    """A Markdown table, and the sentence that sums it up."""
    lines = ["| engine, batch size | prompts | other texts | seconds | wall seconds | times lm_eval at 1 |", "|---|---|---|---|---|---|"]
    for row in rows:
        figures = ("–",) * 3 if row["seconds"] is None else (f"{row['seconds']:.1f}", f"{row['wall_seconds']:.1f}",
                                                              f"{row['ratio']:.2f}")
        lines.append(f"| {row['engine']} | {row['prompts']} | {row['differ']} | {' | '.join(figures)} |")
    ours, theirs = best(rows, OURS), best(rows, THEIRS)
    if ours:
        lines += ["", f"{ours['engine']} takes {ours['seconds']:.1f} s: {ours['ratio']:.2f} times as fast as lm_eval at its "
                      f"default batch size, {theirs['seconds'] / ours['seconds']:.2f} times as fast as at its best "
                      f"({theirs['engine'].removeprefix(THEIRS).strip()})."]
    return "\n".join(lines) + "\n"


def model_folder(folder: str | Path, weights: str | Path | None = None, *, layers: int = 4, width: int = 256, heads: int = 4,
                 positions: int = 1024, seed: int = 0) -> str:
    """Write a model that both engines load and return its name, `hf:<folder>`.

    weights  a folder of byte-level weights without a tokenizer (RWKV-4): copied, with a tokenizer of 256 bytes, 0 the end
    None     a random GPT-2 of these sizes with GPT-2's own tokenizer, drawn wide enough that no two tokens tie
    """
    import shutil

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from tasks.tokenizers import load_tokenizer

    folder = Path(folder)
    if weights is not None:
        shutil.copytree(weights, folder, copy_function=shutil.copyfile)
        load_tokenizer("bytes").save(folder)
        _byte_tokenizer().save_pretrained(folder)
        return f"hf:{folder}"
    words = load_tokenizer("gpt2")
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=words.vocabulary_size, n_positions=positions, n_embd=width, n_layer=layers, n_head=heads,
                        bos_token_id=words.end_of_text, eos_token_id=words.end_of_text, initializer_range=0.1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    words.save(folder)
    _hub_tokenizer(folder).save_pretrained(folder)
    return f"hf:{folder}"


def _hub_tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from tasks.hub_tokenizer import hub_form

    found = hub_form(folder)[1]
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(found.text), bos_token=found.end_of_text,
                                   eos_token=found.end_of_text, pad_token=found.pad)


def _byte_tokenizer() -> Any:
    """The 256 bytes in the form of the `tokenizers` library; the end of text is byte 0."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tasks.hub_tokenizer import _visible

    characters = _visible()
    backend = Tokenizer(models.BPE({each: value for value, each in enumerate(characters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    end = characters[0]
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=end, eos_token=end, pad_token=end)


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked, print the table."""
    asked = argparse.ArgumentParser(prog="python -m tasks.harness.throughput", description=__doc__.split("\n")[0])
    asked.add_argument("--prompts", required=True, help="a prompts artifact")
    asked.add_argument("--checkpoint", required=True, help="hf:<folder> with its tokenizer in transformers' form")
    asked.add_argument("--out", required=True, help="JSON file in which rows gather")
    asked.add_argument("--order", default="default")
    asked.add_argument("--engine", choices=(OURS, THEIRS, "both"), default="both")
    asked.add_argument("--sizes", default=",".join(SIZES), help="batch sizes of lm_eval")
    asked.add_argument("--rows", default="32", help="prompts at a time of ours")
    asked.add_argument("--limit", type=int, help="only the first prompts")
    asked.add_argument("--max-length", type=int, help="tokens the model is given; empty = its own limit")
    asked.add_argument("--dtype", default="float32")
    asked.add_argument("--again", action="store_true", help="measure rows that are in --out once more")
    given = asked.parse_args(arguments)
    wanted = [(THEIRS, size) for size in given.sizes.split(",") if given.engine != OURS]
    wanted += [(OURS, size) for size in given.rows.split(",") if given.engine != THEIRS]
    rows = measure(requests(Store(), given.prompts, given.order, given.limit), wanted, given.checkpoint, Path(given.out),
                   again=given.again, max_length=given.max_length, dtype=given.dtype)
    sys.stdout.write(told(compare(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
