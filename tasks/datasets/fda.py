"""FDA 510(k) decision summaries with attribute items, and without: then the attributes are read off their headings.

    fda-items       a file of documents (doc_id, text) and a file of items (doc_id, attribute, value), JSON lines
    fda-documents   documents alone: JSON lines with `text` (and `doc_id`), or .txt files

A value of one or two characters is contained in nearly every continuation: `answer_too_short`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.datasets import attributes
from tasks.datasets.fda_headings import values
from tasks.datasets.fields import Unfit, field, guarded
from tasks.datasets.formats import Entries, Format
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, first_line, json_lines, plain_name, text_of
from tasks.datasets.spans import find

SHORTEST = 3        # characters


def fits_items(files: Files) -> bool:
    return {_kind(path) for path in files.values()} == {"documents", "items"}


def fits_documents(files: Files) -> bool:
    return all(_kind(path) == "documents" for path in files.values())


def _kind(path: Path) -> str:
    if plain_name(path).endswith(".txt"):
        return "documents"
    first = first_line(path)
    if not isinstance(first, Mapping):
        return "neither"
    return "items" if {"doc_id", "attribute", "value"} <= set(first) else "documents" if (
        "text" in first and not {"key", "value"} <= set(first)) else "neither"


def read_items(files: Files, notes: Counter) -> Entries:
    """Items in the order of the documents; the items are held in memory, the documents stream."""
    items: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for path in [path for path in files.values() if _kind(path) == "items"]:
        for where, entry in json_lines(path):
            if isinstance(entry, Unusable):
                yield entry
            elif isinstance(entry, Mapping) and isinstance(entry.get("doc_id"), str):
                items[entry["doc_id"]].append((where, entry))
            else:
                yield from guarded(where, _no_document_id, entry)
    for name, path in files.items():
        if _kind(path) == "documents":
            for _, document_id, text in _documents(name, path):
                if isinstance(text, Unusable):
                    yield text
                elif document_id not in items:
                    notes["documents_without_items"] += 1
                for place, entry in items.pop(document_id, ()):
                    yield from guarded(place, _item, entry, document_id, text)
    for document_id, left in items.items():
        for where, _ in left:
            yield Unusable(where, "no_document", f"there is no document {document_id!r}")


def _no_document_id(entry: Any) -> Iterator[Record]:
    field(entry, "doc_id", str)
    yield from ()


def _item(entry: Any, document_id: str, text: str | Unusable) -> Iterator[Record]:
    key, value = field(entry, "attribute", str), field(entry, "value", str).strip()
    if isinstance(text, Unusable):
        raise Unfit("no_document", f"the document cannot be used: {text.reason}")
    yield _record(document_id, text, key, value)


def _record(document_id: str, text: str, key: str, value: str, start: int | None = None) -> Record:
    if len(value) < SHORTEST:
        raise Unfit("answer_too_short", f"{key}: {value!r}")
    span = find(text, value) if start is None else (start, start + len(value))
    if span is None:
        raise Unfit("answer_not_in_document", f"{key}: {value!r}")
    return attributes.record(f"{document_id}/{key}", document_id, text, key, (text[slice(*span)],), span=span)


def read_documents(files: Files, notes: Counter) -> Entries:
    """The attributes that the rules of `fda_headings` find; `notes` counts those that stand over several lines."""
    for name, path in files.items():
        for where, document_id, text in _documents(name, path):
            if isinstance(text, Unusable):
                yield text
            else:
                yield from _by_rule(where, document_id, text, notes)


def _by_rule(where: str, document_id: str, text: str, notes: Counter) -> Entries:
    found = list(values(text))
    if not found:
        yield Unusable(where, "no_attribute", "none of the lettered headings of a decision summary has a value")
    for one in found:
        place = f"{where}, {one.attribute}"
        if one.reason:
            yield Unusable(place, one.reason, one.value)
        else:
            yield from guarded(place, lambda one=one: iter([_record(document_id, text, one.attribute, one.value,
                                                                    one.start)]))


def _documents(name: str, path: Path) -> Iterator[tuple[str, str, str | Unusable]]:
    """(where, document id, text) of each document of a file; in place of a text what is wrong with it."""
    if plain_name(path).endswith(".txt"):
        yield str(path), name.removesuffix(".gz").removesuffix(".txt"), text_of(path)
        return
    for number, (where, entry) in enumerate(json_lines(path)):
        known = entry.get("doc_id") if isinstance(entry, Mapping) else None
        identifier = known if isinstance(known, str) else f"{name}/{number}"
        try:
            yield where, identifier, entry if isinstance(entry, Unusable) else field(entry, "text", str)
        except Unfit as error:
            yield where, identifier, Unusable(where, error.reason, error.detail)


ITEMS = Format("fda-items", "JSON lines of documents (doc_id, text) beside JSON lines of items (doc_id, attribute, value)",
               (".jsonl",), fits_items, read_items, brings_cloze=True)
DOCUMENTS = Format("fda-documents", "510(k) decision summaries alone, as .txt or JSON lines of text", (".jsonl", ".txt"),
                   fits_documents, read_documents, brings_cloze=True)
