"""Questions stage: documents, questions and answers from their original format, each with a cloze, as `questions.arrow`.

Columns of questions.arrow: id, document_id, title, document, question, cloze, answers (the first is the one that the
cloze ends in), column (the group it is scored in), keep_start and keep_end (characters of that answer in the document),
released (JSON of the fields that the published sets have). Columns of rejected.arrow: where, reason, detail.
Counts: records that were read, questions and documents that are left, questions by column, `rejected` by reason, `notes`
(what the reader thought worth saying and rejected nothing for), and the rewriter's bill.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage import logs
from storage.artifacts import Store, artifact_id, file_sha256
from storage.errors import CorpusError, SpecError
from storage.identity import code_hash
from storage.progress import progress
from storage.shards import ShardWriter
from tasks.datasets.formats import Choice, choose
from tasks.datasets.published_rows import from_dataset
from tasks.datasets.records import Record, Unusable
from tasks.datasets.spans import distinct, find
from tasks.datasets.task import QuestionTask
from tasks.evals.base import QuestionRow, get_task
from tasks.rewriting import rewriter_for
from tasks.rewriting.base import Rewriter
from tasks.rewriting.validation import why_not
from tasks.specs import QuestionsSpec, RewriterSpec

KIND = "questions"
FILE, REJECTED = "questions.arrow", "rejected.arrow"
AT_ONCE = 1024       # records given to the rewriter in one call
SCHEMA = pa.schema([
    *((name, pa.string()) for name in ("id", "document_id", "title", "document", "question", "cloze")),
    ("answers", pa.list_(pa.string())), ("column", pa.string()), ("keep_start", pa.int32()), ("keep_end", pa.int32()),
    ("released", pa.string()),
])
REJECTED_SCHEMA = pa.schema([(name, pa.string()) for name in ("where", "reason", "detail")])
# what of an endpoint's settings decides its words; where it is and how it is asked does not
ENDPOINT_IDENTITY = ("kind", "model", "prompt", "temperature", "maximum_tokens")

log = logs.get("tasks.questions")


@dataclass
class Written:
    """What came of the records."""

    records: int = 0
    documents: set[str] = field(default_factory=set)
    columns: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


def run(spec: QuestionsSpec, store: Store) -> str:
    """Write the questions unless they are there, and return the id of the `questions` artifact."""
    task, resolved, code = _identity(spec)
    return store.produce(KIND, resolved, {}, code, lambda folder: build(spec, task, folder, home=store.folder))


def plan(spec: QuestionsSpec, store: Store | None = None) -> str:
    """The id that `run` would return; files are hashed and the hub is asked for a revision, nothing is read."""
    _, resolved, code = _identity(spec)
    return artifact_id(KIND, resolved, {}, code)


def read(task: QuestionTask, spec: QuestionsSpec, notes: Counter | None = None) -> Iterator[Record | Unusable]:
    """Records of the spec's source, `limit` documents of them. Needs no store.

    Raises `SpecError` and `CorpusError` at the call, before any record, for a source that is not there or not readable.
    """
    notes = Counter() if notes is None else notes
    if spec.dataset is not None:
        entries = from_dataset(task.published, spec)
    else:
        choice = _chosen(task, spec)
        if choice.left_out:
            notes["files_left_out"] += len(choice.left_out)
            log.info("questions %s: %d files are of another kind and left out, %s first", task.name, len(choice.left_out),
                     choice.left_out[0])
        entries = choice.format.read(choice.files, notes)
    return _limited(entries, spec.limit)


def build(spec: QuestionsSpec, task: QuestionTask, folder: Path, rewriter: Rewriter | None = None,
          home: Path | None = None) -> dict[str, Any]:
    """Write questions.arrow and rejected.arrow; return the counts.

    rewriter  in place of the spec's
    home      local folder of the store that replies of an endpoint are kept in; None = of the home of artifacts
    """
    counts = Written()
    rewriter = rewriter_for(spec.rewriter, home) if rewriter is None else rewriter
    entries = read(task, spec, counts.notes)
    with (ShardWriter(folder / FILE, SCHEMA) as questions, ShardWriter(folder / REJECTED, REJECTED_SCHEMA) as rejected,
          progress(None, f"questions {task.name}", "records") as shown):
        for entry in write(task, entries, rewriter, counts, spec.on_bad_record):
            shown.advance()
            if isinstance(entry, Unusable):
                rejected.append({"where": entry.where, "reason": entry.reason, "detail": entry.detail})
            else:
                questions.append({name: getattr(entry, name) for name in SCHEMA.names})
    written = sum(counts.columns.values())
    if not written:
        why = ", ".join(f"{reason} {count}" for reason, count in counts.rejected.most_common())
        raise CorpusError(f"no question of task {task.name!r} is left of {counts.records} records" +
                          (f": rejected are {why}" if why else "") + "; is it the right file, split and format?")
    log.info("questions %s: %d of %d records, rejected %s", task.name, written, counts.records, dict(counts.rejected))
    return {"records": counts.records, "questions": written, "documents": len(counts.documents),
            "columns": dict(counts.columns), "rejected": dict(counts.rejected), "notes": dict(counts.notes),
            "rewriter": dict(rewriter.bill)}


def write(task: QuestionTask, entries: Iterable[Record | Unusable], rewriter: Rewriter, counts: Written,
          on_bad_record: str = "skip") -> Iterator[QuestionRow | Unusable]:
    """A row for each record that can be asked, in order, and what is wrong with each of the others.

    Raises `CorpusError` at the first of these if on_bad_record is `error`.
    """
    seen: set[str] = set()
    entries = iter(entries)
    while some := list(islice(entries, AT_ONCE)):
        for entry in _with_cloze([_sound(entry, seen) for entry in some], rewriter):
            counts.records += 1
            row = entry if isinstance(entry, Unusable) else _row(task, *entry)
            if isinstance(row, Unusable):
                counts.rejected[row.reason] += 1
                if on_bad_record == "error":
                    raise CorpusError(f"{row.where}: {row.reason} ({row.detail}); mend it, or set on_bad_record=skip to "
                                      "leave such records out")
            else:
                counts.columns[row.column] += 1
                counts.documents.add(row.document_id)
            yield row


def _sound(entry: Record | Unusable, seen: set[str]) -> Record | Unusable:
    """The record with its answers and span in order, or what no format may hold."""
    if isinstance(entry, Unusable):
        return entry
    answers = distinct(entry.answers)
    texts = (entry.id, entry.document_id, entry.document, entry.question, entry.title, *answers)
    broken = next((text for text in texts if not _is_unicode(text)), None)
    reason = ("duplicate_id" if entry.id in seen else "empty_document" if not entry.document.strip() else
              "empty_question" if not entry.question.strip() else "no_answer" if not answers else
              "not_unicode" if broken is not None else None)
    if reason:
        return Unusable(_place(entry), reason, repr(broken[:80] if broken else entry.question[:80]))
    seen.add(entry.id)
    span = entry.span or find(entry.document, answers[0])
    return replace(entry, answers=answers, span=span)


def _with_cloze(entries: list[Record | Unusable], rewriter: Rewriter) -> Iterator[tuple[Record, str] | Unusable]:
    """(record, cloze) of each record: its own cloze, else the rewriter's, which is asked once for all of them."""
    waiting = [entry for entry in entries if isinstance(entry, Record) and entry.cloze is None]
    written = iter(rewriter.clozes(waiting)) if waiting else iter(())
    for entry in entries:
        if isinstance(entry, Unusable):
            yield entry
            continue
        cloze = entry.cloze if entry.cloze is not None else next(written)
        yield replace(cloze, where=_place(entry)) if isinstance(cloze, Unusable) else (entry, cloze)


def _row(task: QuestionTask, record: Record, cloze: str) -> QuestionRow | Unusable:
    reason = why_not(cloze, record)
    if reason is None and not _is_unicode(cloze):
        reason = "not_unicode"
    if reason is not None:
        return Unusable(_place(record), reason, f"{cloze!r} for {record.answers[0]!r}")
    start, end = record.span or (-1, -1)
    released = json.dumps(task.released_fields(record, cloze), ensure_ascii=True, default=str)
    return QuestionRow(record.id, record.document_id, record.title, record.document, record.question, cloze, record.answers,
                       record.column, start, end, released)


def _place(record: Record) -> str:
    return f"{record.where}, record {record.id!r}".removeprefix(", ")


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _limited(entries: Iterator[Record | Unusable], limit: int | None) -> Iterator[Record | Unusable]:
    """Entries until `limit` documents are in."""
    documents: set[str] = set()
    for entry in entries:
        if limit is not None and isinstance(entry, Record) and entry.document_id not in documents:
            if len(documents) == limit:
                return
            documents.add(entry.document_id)
        yield entry


def _task(name: str) -> QuestionTask:
    task = get_task(name)
    if not isinstance(task, QuestionTask):
        raise SpecError(f"task {name!r} makes its own questions and reads none; those that read are fda, swde, nq, squad, "
                        "triviaqa, drop")
    return task


def _chosen(task: QuestionTask, spec: QuestionsSpec) -> Choice:
    return choose(task.name, task.readable, spec.format, spec.paths)


def _identity(spec: QuestionsSpec) -> tuple[QuestionTask, dict[str, Any], str]:
    """The task, the spec with its source as it is now (names and checksums, or a revision), and the code that runs."""
    task = _task(spec.task)
    fields = spec.model_dump(mode="json")
    kept = {name: fields[name] for name in ("task", "on_bad_record", "limit")}
    if spec.dataset is not None:
        from tasks.sources import huggingface

        kept |= {name: fields[name] for name in ("dataset_config", "dataset_split")} | huggingface.resolve(spec)
        kept |= {"format": "published", "name": Path(spec.dataset).name, "rewriter": None}
    else:
        choice = _chosen(task, spec)
        files = {name: file_sha256(path) for name, path in choice.files.items()}
        kept |= {"format": choice.format.name, "files": files,
                 "rewriter": None if choice.format.brings_cloze else _rewriter(spec.rewriter)}
    return task, kept, code_hash([__name__, f"tasks.evals.{spec.task}"])


def _rewriter(spec: RewriterSpec) -> Mapping[str, Any]:
    """What decides the clozes: all of the rules are in the code."""
    fields = spec.model_dump(mode="json")
    return {"kind": "rules"} if spec.kind == "rules" else {name: fields[name] for name in ENDPOINT_IDENTITY}
