"""Cloze stage: one eval task, written out in every order with its controls, as `prompts.arrow`.

Columns of prompts.arrow: id (of the item, the same in every order and control), document_id, column (the group it is
scored in), uncommon, order, control (none, empty, other), prompt, tail (the end of the prompt that is kept out of a
prefix), answers, tokens (of the prompt, without the end-of-text token that a model reads before it), tail_tokens.
Counts: what was written, by column and order, `rejected`: reason -> documents or items that could not be asked, and
`notes`: what holds of some of the items that were (a shortened document, an accident of a released template) -> items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.artifacts import Store, artifact_id
from storage.errors import CorpusError, SpecError
from storage.identity import code_hash
from storage.progress import progress
from storage.shards import RowTable, ShardWriter
from tasks import templates
from tasks.asked_items import end_of_text_first, prepared
from tasks.composing import CONTROLS, Composer, Row
from tasks.evals.base import Document, EvalTask, Item, Material, QuestionRow, Rejection, get_task
from tasks.prompt_tokenizers import identity, named
from tasks.question_table import QuestionTable
from tasks.sources.pydocs import normalise
from tasks.specs import ClozeSpec, Spec
from tasks.tokenizers import Tokenizer, load_tokenizer

VERSION = "1"
RESERVE = 16      # documents of a column beyond the limit, for the controls only
SCHEMA = pa.schema([
    ("id", pa.string()), ("document_id", pa.string()), ("column", pa.string()), ("uncommon", pa.bool_()),
    ("order", pa.string()), ("control", pa.string()), ("prompt", pa.string()), ("tail", pa.string()),
    ("answers", pa.list_(pa.string())), ("tokens", pa.int32()), ("tail_tokens", pa.int32()),
])


@dataclass
class Written:
    """What came of one column after another."""

    rejected: Counter[str] = field(default_factory=Counter)
    documents: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)


def run(spec: ClozeSpec, store: Store, corpus: str | None = None, shards: str | None = None,
        rows: str | None = None, questions: str | None = None) -> str:
    """Write the prompts and return the id of the `prompts` artifact.

    corpus, shards  where documents and tokenizer come from; a task that brings its own ids needs neither, and
                    `spec.tokenizer` stands for that of the shards
    rows            accepted so that all stages are called alike; prompts do not depend on the training rows
    questions       what tasks of documents and questions ask
    """
    task, options, resolved, inputs, code = _identity(spec, corpus, shards, questions)

    def build(folder: Path) -> dict[str, Any]:
        tokenizer = chosen(task, options, spec.tokenizer) or load_tokenizer(str(store.path(shards) / "tokenizer"))
        documents = _splits(store.path(corpus) / "documents.arrow") if task.needs_corpus else _no_documents
        asked = QuestionTable(store.path(questions)) if task.needs_questions else ()
        counts = Written()
        sums = {"prompts": 0, "tokens": 0, "longest": 0}
        with ShardWriter(folder / "prompts.arrow", SCHEMA) as writer:
            for row in write(resolved, task, options, documents, tokenizer, counts, questions=asked):
                writer.append(asdict(row))
                sums["prompts"] += 1
                sums["tokens"] += row.tokens
                sums["longest"] = max(sums["longest"], row.tokens)
        if not sums["prompts"]:
            why = ", ".join(f"{reason} {count}" for reason, count in counts.rejected.items())
            raise CorpusError(f"no prompt of task {task.name!r} can be written: " + (f"rejected are {why}" if why else
                              f"the {resolved.split} split has no documents for it") + "; use other or more text, or "
                              "allow longer documents and prompts (document_tokens, total_tokens)")
        return {**sums, "documents": dict(counts.documents), "items": dict(counts.items),
                "rejected": dict(counts.rejected), "notes": dict(counts.notes), "tokenizer": tokenizer.name,
                "generation_tokens": min(resolved.generation_tokens, task.generation_tokens or 1 << 30),
                "end_of_text_first": end_of_text_first(task, resolved.template), "metric": task.metric}

    return store.produce("prompts", resolved.model_dump(mode="json"), inputs, code, build, VERSION)


def plan(spec: ClozeSpec, store: Store, corpus: str | None = None, shards: str | None = None,
         rows: str | None = None, questions: str | None = None) -> str:
    """The id that `run` would return; nothing is done, and the inputs need not exist."""
    _, _, resolved, inputs, code = _identity(spec, corpus, shards, questions)
    return artifact_id("prompts", resolved.model_dump(mode="json"), inputs, code)


def preview(spec: ClozeSpec, documents: Iterable[Document] = (), tokenizer: str = "gpt2",
            questions: Iterable[QuestionRow] = ()) -> dict[str, Any]:
    """Prompts over loose documents, without artifacts: {prompts: [{id, prompt, answers, tokens}], rejected}.

    The documents are cleaned as a corpus is and stand for every split at once, so what is common or random is judged
    by themselves; questions are taken as they are. Of the task's columns the first is shown, of questions the first that
    any of them is in, unless its options name others; controls are left out.
    """
    task, options, resolved = resolve(spec)
    held = [Document(document.id, normalise(document.text)) for document in documents]
    if task.needs_corpus and not held:
        raise SpecError(f"task {task.name!r} asks about documents and got none; give a .txt or .jsonl file")
    rows = tuple(questions)
    if task.needs_questions and not rows:
        raise SpecError(f"task {task.name!r} asks questions about documents and got none; give the rows of a questions "
                        "artifact")
    counts = Written()
    columns = None if "columns" in spec.task_options else _first_column(task.columns(options), rows)
    found = write(resolved, task, options, lambda split: held, chosen(task, options, spec.tokenizer or tokenizer), counts,
                  controls=("none",), columns=columns, questions=rows)
    prompts = [{"id": row.id, "prompt": row.prompt, "answers": list(row.answers), "tokens": row.tokens}
               for row in found]
    return {"prompts": prompts, "rejected": dict(counts.rejected)}


def _first_column(columns: tuple[str, ...], rows: Iterable[QuestionRow]) -> tuple[str, ...]:
    asked = {row.column for row in rows}
    return tuple(column for column in columns if column in asked)[:1] or columns[:1]


def resolve(spec: ClozeSpec) -> tuple[EvalTask, Spec, ClozeSpec]:
    """The task, its validated options, and the spec with nothing left to defaults that could change.

    Raises `SpecError` for an unknown task, option, order or template, before any work.
    """
    task = get_task(spec.task)
    options = task.options(spec.task_options)
    orders = spec.orders
    if "orders" not in spec.model_fields_set:
        released = templates.RELEASED.get(spec.template)
        orders = released.ORDERS if released else task.default_orders or orders
    unknown = [order for order in orders if order not in task.orders]
    if unknown or not orders or len(set(orders)) < len(orders):
        raise SpecError(f"task {task.name!r} cannot be asked in the orders {list(orders)}; "
                        f"choose from {', '.join(task.orders)}, each once")
    if spec.template not in task.templates:
        raise SpecError(f"task {task.name!r} has no template {spec.template!r}; it has {', '.join(task.templates)}")
    templates.check(spec.template, task.name, orders, spec.budget)
    if spec.shots:
        _check_shots(task, options, orders)
    tokenizer = None if task.vocabulary_tokenizer(options) else identity(spec.tokenizer)
    resolved = spec.model_copy(update={"orders": orders, "task_options": options.model_dump(mode="json"),
                                       "tokenizer": tokenizer})
    return task, options, resolved


def _check_shots(task: EvalTask, options: Spec, orders: tuple[str, ...]) -> None:
    if task.vocabulary_tokenizer(options):
        raise SpecError(f"task {task.name!r} is written in ids, in which no worked example can end; set shots to 0")
    if "filler" in orders:
        raise SpecError("order 'filler' stands for one document's length and has no worked examples; leave it out, or set "
                        "shots to 0")


def chosen(task: EvalTask, options: Spec, name: str | None) -> Tokenizer | None:
    """The task's own tokenizer, else the one of this name, else None: that of the shards."""
    own = task.vocabulary_tokenizer(options)
    if own:
        return load_tokenizer(own)
    return named(name) if name else None


def write(spec: ClozeSpec, task: EvalTask, options: Spec, documents: Callable[[str], Iterable[Document]], tokenizer,
          counts: Written, controls: tuple[str, ...] = CONTROLS,
          columns: tuple[str, ...] | None = None, questions: Sequence[QuestionRow] = ()) -> Iterator[Row]:
    """All rows of a resolved spec; `counts` fills as they are taken."""
    composer = Composer(spec, task, tokenizer, controls)
    composer.notes = counts.notes
    material = Material(documents, composer.view, spec.split, spec.seed, lambda: questions)
    with progress(None, f"cloze {task.name}", "items") as shown:
        for column in task.columns(options) if columns is None else columns:
            shown.note(column)
            for rows in _column(spec, task, options, column, composer, material, counts):
                shown.advance()
                yield from rows


def _column(spec: ClozeSpec, task: EvalTask, options: Spec, column: str, composer: Composer, material: Material,
            counts: Written) -> Iterator[list[Row]]:
    """Rows of one item after another until `spec.limit` documents are in; what is rejected on the way is counted."""
    stream = prepared(task.items(material, options, column), task, spec.template)
    first, others, pool = _ahead(stream, spec.limit)
    accepted: set[str] = set()
    for entry in chain(first, stream):
        if spec.limit is not None and len(accepted) >= spec.limit and entry.document_id not in accepted:
            break
        rows = entry if isinstance(entry, Rejection) else composer.rows(entry, others, material, pool)
        if isinstance(rows, Rejection):
            counts.rejected[rows.reason] += 1
            continue
        accepted.add(entry.document_id)
        counts.items[column] += 1
        yield rows
    counts.documents[column] = len(accepted)


def _ahead(stream: Iterator[Item | Rejection],
           limit: int | None) -> tuple[list[Item | Rejection], list[Document], dict[str, list[Item]]]:
    """The first entries of a stream, the documents in them, which controls may show, and the items of each document."""
    entries, documents, items = [], {}, {}
    for entry in stream:
        entries.append(entry)
        if isinstance(entry, Item):
            documents.setdefault(entry.document_id, Document(entry.document_id, entry.document))
            items.setdefault(entry.document_id, []).append(entry)
            if limit is not None and len(documents) >= limit + RESERVE:
                break
    return entries, list(documents.values()), items


def _no_documents(split: str) -> tuple[Document, ...]:
    return ()


def _splits(path: Path) -> Callable[[str], list[Document]]:
    """Reader of a corpus by split."""
    table = RowTable(path)
    names, ids = table.column("split"), table.column("id")
    texts = table.table.column("text")      # stays in the mapped file until it is asked for

    def read(split: str) -> list[Document]:
        return [Document(ids[k], texts[k].as_py()) for k, name in enumerate(names) if name == split]

    return read


def _identity(spec: ClozeSpec, corpus: str | None, shards: str | None, questions: str | None):
    task, options, resolved = resolve(spec)
    needed = {"corpus": corpus} if task.needs_corpus else {}
    if task.needs_questions:
        needed["questions"] = questions
    if (task.needs_corpus or task.needs_questions) and not (task.vocabulary_tokenizer(options) or spec.tokenizer):
        needed["shards"] = shards
    missing = [role for role, given in needed.items() if given is None]
    if missing == ["shards"] and task.needs_questions:
        raise SpecError(f"task {task.name!r} needs a tokenizer to count and cut with: set `tokenizer` (gpt2, bytes or "
                        "hf:<name>), or give a shards artifact")
    if missing:
        raise SpecError(f"task {task.name!r} needs the {' and the '.join(missing)} artifact; pass its id")
    return task, options, resolved, needed, code_hash(["tasks.cloze", f"tasks.evals.{task.name}"])
