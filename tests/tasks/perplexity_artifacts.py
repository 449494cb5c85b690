"""Tiny checkpoints with random weights, and a corpus and shards whose documents repeat themselves."""

import numpy as np

from models import ModelConfig, build, save_model
from storage.artifacts import Store
from storage.shards import ShardWriter
from tasks import corpus as corpora
from tasks import tokenise
from tasks.specs import TokeniseSpec
from tasks.tokenizers import load_tokenizer

MIXERS = {
    "conv": {"kind": "base_conv", "expand": 2}, "prefix": {"kind": "prefix", "heads": 2, "feature_dim": 4},
    "window": {"kind": "sliding_window", "heads": 2, "window": 5}, "linear": {"kind": "based", "heads": 2, "feature_dim": 4},
    "full": {"kind": "attention", "heads": 2}, "lavo": {"kind": "lavo", "heads": 2, "slots": 4, "window": 6, "epe_std": 1.0},
    "cosformer": {"kind": "cosformer", "heads": 2, "max_length": 64},
}


def config(*plan: str, **settings) -> ModelConfig:
    """Width 16 over the byte tokenizer's ids, weights large enough to tell tokens apart."""
    return ModelConfig(width=16, vocabulary=264, mixers={name: MIXERS[name] for name in plan}, plan=plan, init_std=0.3,
                       tie=False, **settings)


def checkpoint(store: Store, *plan: str, **settings) -> str:
    made = config(*plan, **settings)

    def make(folder):
        save_model(build(made), folder)
        load_tokenizer("bytes").save(folder / "tokenizer")

    return store.produce("checkpoint", {"config": made.model_dump(mode="json")}, {}, "0", make)


def texts(count: int = 40) -> list[tuple[str, str]]:
    """(split, text): words of a small alphabet in documents of about 10 to 130 bytes."""
    rng = np.random.default_rng(0)
    return [("test" if k % 2 else "train", " ".join("".join(rng.choice(list("abc"), 3)) for _ in range(int(n))))
            for k, n in enumerate(rng.integers(3, 33, count))]


def corpus(store: Store) -> str:
    def make(folder):
        with ShardWriter(folder / corpora.FILE, corpora.SCHEMA) as writer:
            for k, (split, text) in enumerate(texts()):
                writer.append({"id": f"{k:04d}", "split": split, "source": "x", "text": text})

    return store.produce("corpus", {}, {}, "0", make)


def shards(store: Store, row_tokens: int = 64) -> str:
    return tokenise.run(TokeniseSpec(tokenizer="bytes", row_tokens=row_tokens, shard_rows=4), store, corpus(store))
