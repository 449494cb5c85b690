"""Small artifacts to train on: recall rows and shards written by hand, and a spec for a model of a few thousand weights."""

import os
import signal

import numpy as np
import pyarrow as pa

from storage.artifacts import Store
from storage.shards import ShardWriter, token_schema
from tasks.specs import PretrainSpec
from tasks.tokenizers import load_tokenizer

ROWS_SCHEMA = pa.schema([
    ("ids", pa.list_(pa.uint16())), ("prefix", pa.int32()), ("answers", pa.list_(pa.int32())), ("order", pa.string()),
    ("form", pa.string()), ("batch", pa.int32()), ("document", pa.string())])


def recall_row(rng: np.random.Generator, lines: int) -> tuple[list[int], int, list[int]]:
    """Bytes of "name : value" lines, a blank line, and the same lines to complete. (ids, prefix, answer slots)"""
    names = rng.permutation(26)[:lines]
    pairs = [(f"{chr(97 + name)} : ", f"{int(rng.integers(100, 999))}\n") for name in names]
    prompt = "".join(name + value for name, value in pairs) + "\n"
    ids, slots = list(prompt.encode()), []
    for name, value in pairs:
        ids += name.encode()
        slots += range(len(ids) - 1, len(ids) - 1 + len(value))
        ids += value.encode()
    return ids, len(prompt), slots


def write_rows(path, batches: int, seed: int, rows_of_a_batch: int = 4) -> int:
    """A rows table; returns its tokens."""
    rng, tokens = np.random.default_rng(seed), 0
    with ShardWriter(path, ROWS_SCHEMA) as writer:
        for batch in range(batches):
            for _ in range(rows_of_a_batch):
                ids, prefix, answers = recall_row(rng, int(rng.integers(1, 4)))
                tokens += len(ids)
                writer.append({"ids": ids, "prefix": prefix, "answers": answers, "order": "default", "form": "list",
                               "batch": batch, "document": ""})
    return tokens


def rows_artifact(store: Store, batches: int = 12) -> str:
    def build(folder):
        write_rows(folder / "train.arrow", batches, seed=0)
        write_rows(folder / "validation.arrow", 3, seed=1)
        load_tokenizer("bytes").save(folder / "tokenizer")

    return store.produce("rows", {"kind": "recall", "batches": batches}, {}, "test", build)


def shards_artifact(store: Store, rows: int = 40, slots: int = 32) -> str:
    """Periodic byte text in documents of 5 to 25 tokens that run on over row ends."""
    def build(folder):
        load_tokenizer("bytes").save(folder / "tokenizer")
        for split, count, seed in (("train", rows, 0), ("validation", 6, 1)):
            rng = np.random.default_rng(seed)
            text, begins = [], []
            while len(text) <= count * slots + 1:
                begins.append(len(text))
                word = rng.integers(97, 123, 3).tolist()
                text += [256, *(word * 9)[:int(rng.integers(4, 25))]]
            with ShardWriter(folder / split / "00000.arrow", token_schema(slots + 1, 300)) as writer:
                for row in range(count):
                    begin = row * slots
                    writer.append({"tokens": text[begin:begin + slots + 1],
                                   "starts": [b - begin for b in begins if begin <= b <= begin + slots]})

    return store.produce("shards", {"rows": rows, "slots": slots}, {}, "test", build)


def pretrain_spec(model: str = "jrt-mini", **train) -> PretrainSpec:
    """Twelve steps, everything often: logs and validation every 2 steps, a checkpoint every 5."""
    settings = {"optimiser": {"kind": "muon", "learning_rate": 1e-2, "warmup_steps": 2, "schedule": "linear"},
                "log_every": 2, "validate_every": 4, "checkpoint_every": 5, "validation_batches": 2} | train
    return PretrainSpec.model_validate({"architecture": model.partition("-")[0], "model": model,
                                        "model_overrides": {"width": 32, "vocabulary": 264}, "train": settings})


class KillsItsWorker:
    """Tracking that kills the process which reports `step`, once: the first worker of a run on Ray."""

    def __init__(self, marker, step: int) -> None:
        self.marker, self.step = str(marker), step

    def metrics(self, run_id, values, step, tokens=None) -> None:
        if step == self.step and not os.path.exists(self.marker):
            with open(self.marker, "w") as file:
                file.write(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)

    def flush(self) -> bool:
        return True
