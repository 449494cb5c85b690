"""Rows: training examples in their final batches, the same for every architecture of a study.

Produces train.arrow and, if there is any, validation.arrow, and the tokenizer that the rows were written with.

    ids       list<uint16|uint32>   one row
    prefix    int32                 tokens up to and including the blank line (disjoint: the whole prompt)
    answers   list<int32>           slots i whose next token, ids[i+1], is a target
    order     string                prompt order
    form      string                document, swap, list or disjoint (rows of questions: passages are documents)
    batch     int32                 rows of a batch are neighbours
    document  string                id of the document ("" for lists; disjoint: the sizes, such as "4|16")

Recall rows are bucketed by length within windows of 2,048 rows (fewer in a short training, which has at least eight
windows) and their batches shuffled within the window. Every draw is a function of (seed, row number); windows may be
made in any order, on any worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage import logs
from storage.artifacts import Store, artifact_id
from storage.errors import CorpusError, SpecError
from storage.identity import code_hash
from storage.progress import progress
from storage.shards import RowTable, ShardWriter
from tasks import corpus as corpora
from tasks import disjoint_rows, question_rows, recall_rows
from tasks.draws import generator
from tasks.parallel import parallel_map
from tasks.recall_rows import Row, Window
from tasks.specs import DisjointRowsSpec, QuestionRowsSpec, RecallRowsSpec
from tasks.tokenise import TOKENIZER
from tasks.tokenizers import Tokenizer, load_tokenizer

KIND = "rows"
RowsSpec = RecallRowsSpec | DisjointRowsSpec | QuestionRowsSpec
WINDOW = 2048             # rows that are sorted by length together
FEWEST_WINDOWS = 8        # short trainings have smaller windows, or shuffling would undo the curriculum
VALIDATION_WINDOW = 256

log = logs.get("tasks.rows")


def plan(spec: RowsSpec, store: Store | None, corpus: str | None = None, shards: str | None = None,
         questions: str | None = None) -> str:
    """The id that `run` would return."""
    return artifact_id(KIND, spec.model_dump(mode="json"), _inputs(spec, corpus, shards, questions),
                       code_hash([__name__]))


def run(spec: RowsSpec, store: Store, corpus: str | None = None, shards: str | None = None,
        questions: str | None = None) -> str:
    """Make the rows unless they are there, and return their id.

    Recall rows need a corpus and the shards that carry its tokenizer, rows of questions a `questions` artifact and
    shards; disjoint rows need neither.
    """
    inputs = _inputs(spec, corpus, shards, questions)

    def build(folder: Path) -> dict:
        if isinstance(spec, DisjointRowsSpec):
            return build_disjoint(spec, folder)
        tokenizer = load_tokenizer(store.path(shards) / TOKENIZER)
        if isinstance(spec, QuestionRowsSpec):
            return build_questions(spec, RowTable(store.path(questions) / question_rows.FILE), tokenizer, folder)
        return build_recall(spec, RowTable(store.path(corpus) / corpora.FILE), tokenizer, folder)

    return store.produce(KIND, spec.model_dump(mode="json"), inputs, code_hash([__name__]), build)


def schema(vocabulary: int) -> pa.Schema:
    """Columns of a rows file for ids below `vocabulary`."""
    ids = pa.uint16() if vocabulary <= 1 << 16 else pa.uint32()
    return pa.schema([
        ("ids", pa.list_(ids)), ("prefix", pa.int32()), ("answers", pa.list_(pa.int32())), ("order", pa.string()),
        ("form", pa.string()), ("batch", pa.int32()), ("document", pa.string())])


# ----------------------------------------------------------------------------------------------------------- recall
def build_recall(spec: RecallRowsSpec, documents: RowTable, tokenizer: Tokenizer, folder: Path) -> dict:
    """Write the rows of a corpus; return counts of rows, tokens, batches, orders, forms and what was left out."""
    pools = recall_rows.pools(documents.column("id"), documents.column("split"), documents.column("text"), tokenizer,
                              spec)
    return _build(recall_rows.window, pools, spec, tokenizer, folder)


def build_questions(spec: QuestionRowsSpec, questions: RowTable, tokenizer: Tokenizer, folder: Path) -> dict:
    """Write the rows of questions about passages; return the same counts."""
    return _build(question_rows.window, question_rows.pools(questions, tokenizer, spec), spec, tokenizer, folder)


def _build(window: Window, pools: dict[str, Any], spec: RecallRowsSpec | QuestionRowsSpec, tokenizer: Tokenizer,
           folder: Path) -> dict:
    """`window` makes the rows of some numbers from one of `pools`, train and validation."""
    tokenizer.save(folder / TOKENIZER)
    total = recall_rows.estimate_rows(window, pools["train"], tokenizer, spec)
    size = min(WINDOW, -(-total // FEWEST_WINDOWS))
    some = partial(_window, window=window, tokenizer=tokenizer, spec=spec)
    work = partial(some, size=size, total=total, pool=pools["train"], purpose="row")
    counts = {"documents": {split: len(pool) for split, pool in pools.items()}, "rows_estimated": total}
    counts |= _write(folder / "train.arrow", work, spec.tokens, tokenizer, spec)
    if spec.validation_tokens:
        work = partial(some, size=VALIDATION_WINDOW, total=None, pool=pools["validation"], purpose="validation row")
        counts["validation"] = _write(folder / "validation.arrow", work, spec.validation_tokens, tokenizer, spec)
    log.info("rows: %(rows)d rows, %(tokens)d tokens, %(batches)d batches", counts)
    return counts


def _window(index: int, window: Window, size: int, total: int | None, pool: Any, tokenizer: Tokenizer,
            spec: RecallRowsSpec | QuestionRowsSpec, purpose: str) -> tuple[list[Row], Counter]:
    """Window `index` of `size` rows. `total` is None for validation rows, which are like the last rows of training."""
    numbers = np.arange(index * size, (index + 1) * size)
    shares = recall_rows.list_shares(numbers, total, spec) if total else np.full(size, spec.list_share_last)
    return window(numbers.tolist(), shares, pool, tokenizer, spec, purpose)


def _write(path: Path, work: partial, budget: int, tokenizer: Tokenizer,
           spec: RecallRowsSpec | QuestionRowsSpec) -> dict:
    """Write windows of rows until `budget` tokens are there; the row that reaches it is the last."""
    tally = {"tokens": 0, "rows": 0, "batches": 0, "answer_tokens": 0, "padded_tokens": 0}
    by = {"by_order": Counter(), "by_form": Counter(), "left_out": Counter()}
    with ShardWriter(path, schema(tokenizer.vocabulary_size)) as writer, progress(budget, "rows", "tokens") as bar:
        windows = parallel_map(work, _forever(), describe="rows")
        for index, (rows, left_out) in enumerate(windows):
            by["left_out"].update(left_out)
            if not rows:
                raise CorpusError(f"no row of a whole window can be used ({dict(left_out)}); allow longer rows "
                                  f"(maximum_row_tokens is {spec.maximum_row_tokens}) or cut documents shorter "
                                  "(maximum_document_tokens, passage_tokens)")
            rows = _within(rows, budget - tally["tokens"])
            for batch in _batches(rows, index, spec):
                _append(writer, batch, tally["batches"])
                tally["batches"] += 1
                tally["padded_tokens"] += len(batch) * max(len(row.ids) for row in batch)
            for row in rows:
                by["by_order"][row.order] += 1
                by["by_form"][row.form] += 1
            tokens = sum(len(row.ids) for row in rows)
            tally["rows"] += len(rows)
            tally["tokens"] += tokens
            tally["answer_tokens"] += sum(len(row.answers) for row in rows)
            bar.advance(tokens)
            if tally["tokens"] >= budget:
                windows.close()
                break
    return tally | {name: dict(sorted(counter.items())) for name, counter in by.items()}


def _forever() -> Iterator[int]:
    index = 0
    while True:
        yield index
        index += 1


def _within(rows: list[Row], tokens: int) -> list[Row]:
    """The first rows, up to and including the one that reaches `tokens`."""
    ends = np.cumsum([len(row.ids) for row in rows])
    return rows[: int(np.searchsorted(ends, tokens)) + 1]


def _batches(rows: list[Row], index: int, spec: RecallRowsSpec | QuestionRowsSpec) -> list[list[Row]]:
    """Rows of similar length together, at most `batch_tokens` with padding (or one row), in a shuffled order."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if not batches or (len(batches[-1]) + 1) * len(row.ids) > spec.batch_tokens:
            batches.append([])
        batches[-1].append(row)
    return [batches[k] for k in generator(spec.seed, index, "batch order").permutation(len(batches))]


def _append(writer: ShardWriter, batch: Iterable[Row], number: int) -> None:
    kind = np.dtype(writer.schema.field("ids").type.value_type.to_pandas_dtype())
    for row in batch:
        writer.append({"ids": row.ids.astype(kind), "prefix": row.prefix, "answers": row.answers, "order": row.order,
                       "form": row.form, "batch": number, "document": row.document})


# --------------------------------------------------------------------------------------------------------- disjoint
def build_disjoint(spec: DisjointRowsSpec, folder: Path) -> dict:
    """Write the rows of the synthetic task; return counts."""
    disjoint_rows.check(spec)
    load_tokenizer(f"ids:{spec.vocabulary}").save(folder / TOKENIZER)
    counts = _write_disjoint(folder / "train.arrow", disjoint_rows.batches(spec), spec)
    counts["validation"] = _write_disjoint(folder / "validation.arrow", disjoint_rows.validation_batches(spec), spec)
    return counts


def _write_disjoint(path: Path, batches: Iterable[disjoint_rows.DisjointBatch], spec: DisjointRowsSpec) -> dict:
    tally, by_order, by_sizes = Counter(), Counter(), Counter()
    with ShardWriter(path, schema(spec.vocabulary)) as writer:
        for number, batch in enumerate(batches):
            count, width = batch.ids_BN.shape
            writer.extend({
                "ids": list(batch.ids_BN), "prefix": [batch.prefix] * count,
                "answers": [np.array([batch.prefix - 1], dtype=np.int32)] * count, "order": [batch.order] * count,
                "form": ["disjoint"] * count, "batch": [number] * count, "document": [batch.sizes] * count})
            tally.update(rows=count, tokens=count * width, batches=1, answer_tokens=count)
            by_order[batch.order] += count
            by_sizes[batch.sizes] += count
    return {**tally, "by_form": {"disjoint": tally["rows"]}, "by_order": dict(sorted(by_order.items())),
            "by_sizes": dict(sorted(by_sizes.items()))}


def _inputs(spec: RowsSpec, corpus: str | None, shards: str | None, questions: str | None) -> dict[str, str]:
    if isinstance(spec, DisjointRowsSpec):
        disjoint_rows.check(spec)
        return {}
    fewest, most = spec.list_lines
    if not 1 <= fewest <= most:
        raise SpecError(f"list_lines {spec.list_lines}: give (fewest, most) with 1 <= fewest <= most")
    if not spec.order_shares or min(spec.order_shares.values()) < 0 or sum(spec.order_shares.values()) <= 0:
        raise SpecError(f"order_shares {spec.order_shares}: shares are not negative and at least one is above zero")
    if isinstance(spec, QuestionRowsSpec):
        question_rows.check(spec)
        if questions is None or shards is None:
            raise SpecError("rows of questions need a questions artifact and shards that carry a tokenizer; give both ids")
        return {"questions": questions, "shards": shards}
    if corpus is None or shards is None:
        raise SpecError("recall rows need a corpus and the shards that carry its tokenizer; give both ids")
    return {"corpus": corpus, "shards": shards}
