"""The first 64 prompts of each task and template, byte for byte those of before.

Over synthetic questions everywhere, and over the original formats where the samples are. The clozes of the samples are
written here, so that a better rewriter changes nothing; their documents are read as the questions stage reads them.
Whoever changes a prompt on purpose changes the template's version, and `question_prompts.json`.
"""

import hashlib
import json
from itertools import islice
from pathlib import Path

import pytest

from tasks.datasets.records import Record
from tasks.evals.base import QuestionRow, get_task
from tasks.questions import read
from tasks.specs import ORDERS, QuestionsSpec
from tasks.templates import jrt_2407
from tasks.tokenizers import load_tokenizer
from tests.tasks.question_documents import question_rows, stream_of

GOLDEN = json.loads((Path(__file__).parent / "question_prompts.json").read_text())
TASKS = ("drop", "fda", "nq", "squad", "swde", "triviaqa")
SAMPLES = {
    "fda": ("fda_510k/docs.jsonl.gz", "fda_510k/items.jsonl"), "swde": ("swde_book",),
    "squad": ("squad_v2/dev-v2.0.part.json.gz",), "nq": ("natural_questions/nq_oracle_800.jsonl.gz",),
    "triviaqa": ("triviaqa/triviaqa-rc-sample.tgz",), "drop": ("drop/drop_dev_90passages.jsonl.gz",),
}
RECORDS = 60
WAYS = [("clean", "document", 0), ("clean", "total", 1), ("jrt-2407", "document", 1), ("jrt-2407", "released", 0)]


def digest(task, rows, held, template, budget, shots):
    """sha256 of the first 64 prompts; fewer are no golden."""
    orders = jrt_2407.ORDERS if template == jrt_2407.NAME else tuple(o for o in ORDERS if not (shots and o == "filler"))
    found = stream_of(task, rows=rows, held=held, template=template, budget=budget, shots=shots, orders=orders, limit=12,
                      document_tokens=300, total_tokens=2048)
    texts = [row.prompt for row in islice(found, 64)]
    assert len(texts) == 64
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way)))
def test_prompts_of_synthetic_questions_are_those_of_before(task, way):
    rows = question_rows(task, documents=16)
    found = digest(task, rows, load_tokenizer("bytes"), *way)
    assert found == GOLDEN["synthetic"]["/".join(map(str, (*way, task)))]


def sample_rows(shared, task):
    paths = tuple(str(shared / "data" / name) for name in SAMPLES[task])
    held = get_task(task)
    records = (each for each in read(held, QuestionsSpec(task=task, paths=paths)) if isinstance(each, Record))
    rows = []
    for record in islice(records, RECORDS):
        cloze = record.cloze or f"Asked {record.question.strip(' ?')!r}, all say"
        rows.append(QuestionRow(record.id, record.document_id, record.title, record.document, record.question, cloze,
                                record.answers, record.column, *(record.span or (-1, -1)),
                                json.dumps(held.released_fields(record, cloze))))
    return rows


@pytest.mark.parametrize("task", TASKS)
def test_prompts_of_the_samples_are_those_of_before(shared, task):
    if not all((shared / "data" / name).exists() for name in SAMPLES[task]):
        pytest.skip(f"the {task} sample is not here: {', '.join(SAMPLES[task])} under {shared / 'data'}")
    rows, held = sample_rows(shared, task), load_tokenizer("gpt2")
    for way in WAYS:
        found = digest(task, rows, held, *way)
        assert found == GOLDEN["samples"]["/".join(map(str, (*way, task)))], way
