"""Corpus: text from a source, cleaned, without duplicates, split by content. Produces `documents.arrow`.

Documents are ordered by the hash of their text, which is also their id: the order is the same for any number of
workers and mixes sources. Duplicates are removed before the split, so no split holds a near-copy of another's text.
The split of a document depends on its text alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pyarrow as pa

from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import CorpusError
from storage.identity import code_hash
from storage.shards import ShardWriter
from tasks.deduplicate import deduplicate
from tasks.sources import huggingface, pydocs, text_files
from tasks.specs import CorpusSpec

KIND = "corpus"
FILE = "documents.arrow"
SPLITS = ("train", "validation", "test", "held_out")
SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "split", "source", "text")])
SOURCES = {"pydocs": pydocs, "files": text_files, "huggingface": huggingface}

log = logs.get("tasks.corpus")


def resolve(spec: CorpusSpec) -> dict:
    """The spec with what its source is made of now: versions, checksums or a revision. This is what gets hashed.

    Fields that the source does not look at are left out. Raises CorpusError for a source that is not there.
    """
    fields = spec.model_dump(mode="json")
    pydocs_only, files_only = ("packages",), ("paths",)
    hub_only = ("dataset", "dataset_config", "dataset_split")
    unused = {"pydocs": (*files_only, *hub_only, "text_column", "on_bad_record"),
              "files": (*pydocs_only, "held_out_packages", *hub_only),
              "huggingface": (*pydocs_only, "held_out_packages", *files_only)}[spec.source]
    # names of places are not identity: their contents are
    placed = {"pydocs": pydocs_only, "files": files_only, "huggingface": ("dataset",)}[spec.source]
    kept = {name: value for name, value in fields.items() if name not in unused and name not in placed}
    return kept | SOURCES[spec.source].resolve(spec)


def plan(spec: CorpusSpec, store: Store | None = None) -> str:
    """The id that `run` would return, without reading any document."""
    return artifact_id(KIND, resolve(spec), {}, code_hash([__name__]))


def run(spec: CorpusSpec, store: Store) -> str:
    """Make the corpus unless it is there, and return its id."""
    return store.produce(KIND, resolve(spec), {}, code_hash([__name__]), lambda folder: build(spec, folder))


def build(spec: CorpusSpec, folder: Path) -> dict:
    """Write documents.arrow; return counts of what was read, left out (by reason) and kept (by split and source)."""
    tally: Counter[str] = Counter()
    documents = []
    for source, text in SOURCES[spec.source].read(spec, tally):
        text = pydocs.normalise(text)
        if len(text) < spec.minimum_characters:
            tally["too_short"] += 1
        else:
            documents.append((_hash(text)[:16], source, text))
    if not documents:
        raise CorpusError(f"no document is left: {dict(tally) or 'the source is empty'}; documents need at least "
                          f"{spec.minimum_characters} characters (minimum_characters)")
    documents.sort(key=lambda document: document[:2])
    read = {name.removeprefix("read: "): count for name, count in tally.items() if name.startswith("read: ")}
    counts = {"read": read | {"documents": len(documents), "characters": sum(len(text) for *_, text in documents)},
              "left_out": {name: count for name, count in sorted(tally.items()) if not name.startswith("read: ")}}
    if spec.deduplicate:
        unique = deduplicate([text for *_, text in documents], spec.near_duplicate_jaccard)
        documents = [documents[k] for k in unique.kept]
        counts["left_out"] |= {"exact_duplicates": unique.exact, "near_duplicates": unique.near}
    if spec.maximum_documents is not None and len(documents) > spec.maximum_documents:
        counts["left_out"]["beyond_maximum"] = len(documents) - spec.maximum_documents
        documents = documents[: spec.maximum_documents]
    rows = [(name, split_of(name, source, spec), source, text) for name, source, text in documents]
    with ShardWriter(folder / FILE, SCHEMA) as writer:
        for k in range(0, len(rows), 4096):
            writer.extend(dict(zip(SCHEMA.names, map(list, zip(*rows[k : k + 4096])))))
    counts["documents"] = len(rows)
    counts["characters"] = sum(len(text) for *_, text in rows)
    counts["by_split"] = {split: sum(row[1] == split for row in rows) for split in SPLITS}
    counts["by_source"] = dict(Counter(_top(row[2], spec) for row in rows).most_common(64))
    log.info("corpus: %d documents, %d characters, left out %s", len(rows), counts["characters"], counts["left_out"])
    return counts


def split_of(identifier: str, source: str, spec: CorpusSpec) -> str:
    """train, validation, test or held_out: by a hash of the id that is independent of the order of documents."""
    if spec.source == "pydocs" and pydocs.is_held_out(source, spec):
        return "held_out"
    share = int(_hash(f"split {identifier}")[:13], 16) / 16**13
    if share < spec.validation_share:
        return "validation"
    return "test" if share < spec.validation_share + spec.test_share else "train"


def _top(source: str, spec: CorpusSpec) -> str:
    return source.partition("/")[0] if spec.source == "pydocs" else source


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
