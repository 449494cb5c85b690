"""NQ-open with passages: JSON lines of question, answers, and a gold passage or several passages (`ctxs`).

Documents are joined from passages: the gold one and others of the same record (`ctxs`) or, where a record has one
passage, of the other records of the file, drawn by the record's number. One record a column of 512, 1024 and 2048 words
and signs. `notes` counts what stays shorter (too few other passages) or is longer (the gold alone).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.datasets import passages
from tasks.datasets.fields import Unfit, field, guarded, texts
from tasks.datasets.formats import Entries, Format
from tasks.datasets.passages import Passage
from tasks.datasets.records import Record, Unusable
from tasks.datasets.source_files import Files, first_line, json_lines
from tasks.datasets.spans import distinct, found_first


def fits(files: Files) -> bool:
    firsts = [first_line(path) for path in files.values()]
    return all(isinstance(first, Mapping) and {"question", "answers"} <= set(first)
               and ("passage" in first or "ctxs" in first) for first in firsts)


def read(files: Files, notes: Counter) -> Entries:
    """Three records a line. A file is read twice: all its gold passages first, then its questions."""
    for name, path in files.items():
        pool = [gold for _, entry in json_lines(path) for gold in _pool(entry)]
        for number, (where, entry) in enumerate(json_lines(path)):
            if isinstance(entry, Unusable):
                yield entry
            else:
                yield from guarded(where, _records, entry, f"{name}/{number}", pool, notes)


def _pool(entry: Any) -> Iterator[Passage]:
    """The gold passage of a record that brings one; what is wrong with a record is said when it is asked."""
    if isinstance(entry, Mapping) and isinstance(entry.get("passage"), str):
        yield Passage.of(str(entry.get("title") or ""), entry["passage"])


def _records(entry: Any, identifier: str, pool: Sequence[Passage], notes: Counter) -> Iterator[Record]:
    question, answers = field(entry, "question", str).strip(), distinct(texts(entry, "answers"))
    if not answers:
        raise Unfit("no_answer", question)
    gold, others = _of(entry)
    found = found_first(gold.text, answers)
    if found is None:
        raise Unfit("answer_not_in_document", f"none of {list(answers)} is in the gold passage of {question!r}")
    ordered, (low, high) = found
    for column, target in passages.COLUMNS.items():
        document, start = passages.joined(gold, others or pool, answers, target, passages.generator(identifier, column))
        _note(document, column, target, notes)
        yield Record(f"{identifier}/{column}", identifier, document, question, ordered, column=column, title=gold.title,
                     span=(start + low, start + high))


def _of(entry: Any) -> tuple[Passage, list[Passage]]:
    """The gold passage of a record, and the others that it brings itself."""
    if "passage" in entry:
        return Passage.of(str(entry.get("title") or ""), field(entry, "passage", str)), []
    several = field(entry, "ctxs", list)
    marked = next((k for mark in ("isgold", "hasanswer") for k, one in enumerate(several) if one.get(mark)), None)
    if marked is None:
        raise Unfit("no_gold_passage", "none of its passages (ctxs) is marked isgold or hasanswer")
    every = [Passage.of(str(one.get("title") or ""), field(one, "text", str)) for one in several]
    return every[marked], every[:marked] + every[marked + 1:]


def _note(document: str, column: str, target: int, notes: Counter) -> None:
    size = passages.count(document)
    if size > target:
        notes[f"longer_than_{column}"] += 1
    elif size < passages.SHORT * target:
        notes[f"shorter_than_{column}"] += 1


NQ_OPEN = Format("nq-open", "JSON lines of question, answers and passage (or ctxs)", (".jsonl",), fits, read)
