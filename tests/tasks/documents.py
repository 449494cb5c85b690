"""A small corpus of docstrings for the tests of the evaluation stages, and its artifacts."""

import random

import pyarrow as pa

from storage.artifacts import Store
from storage.shards import ShardWriter
from tasks.evals.base import Document
from tasks.tokenizers import load_tokenizer, train_bpe

NAMES = "axis size dtype order shape copy level index depth limit".split()
VALUES = ("int, optional", "array_like", "bool, default False", "float or None", "str or callable", "tuple of ints",
          "{'C', 'F'}", "ndarray of shape (n, m)", "Series", "int32 dtype", "list of lists", "path to a file")
SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "split", "source", "text")])


def documents(count: int, split: str, seed: int = 0) -> list[Document]:
    """Docstrings with a heading, two to five attribute lines and prose between them."""
    found = []
    for number in range(count):
        draw = random.Random(f"{seed}/{split}/{number}")
        lines = [f"Return the {split} thing number {number}.", ""]
        for name in draw.sample(NAMES, draw.randint(2, 5)):
            lines += [f"{name} : {draw.choice(VALUES)}", f"    The {name} of it, described at some length."]
        found.append(Document(f"{split}-{number:04d}", "\n".join(lines)))
    return found


SPLITS = {"train": 60, "validation": 10, "test": 30, "held_out": 8}


def splits(split: str) -> list[Document]:
    return documents(SPLITS[split], split) if split in SPLITS else []


def tokenizer(size: int = 400):
    """A byte-level BPE of the training documents."""
    return train_bpe([document.text for document in splits("train")], size)


def artifacts(store: Store, size: int = 400) -> tuple[str, str]:
    """Ids of a corpus and a shards artifact, as far as prompts need them."""

    def corpus(folder):
        with ShardWriter(folder / "documents.arrow", SCHEMA) as writer:
            for split in SPLITS:
                for document in splits(split):
                    writer.append({"id": document.id, "split": split, "source": "here", "text": document.text})

    made = store.produce("corpus", {"of": "tests"}, {}, "0", corpus)
    trained = tokenizer(size)
    return made, store.produce("shards", {"size": size}, {"corpus": made}, "0",
                               lambda folder: trained.save(folder / "tokenizer"))


def byte_tokenizer():
    return load_tokenizer("bytes")
