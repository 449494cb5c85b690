"""Tasks of documents and questions: which rows are asked, in what order, under which options."""

import json

import pytest

from storage.errors import SpecError
from tasks.evals.base import Item, Material, QuestionRow, Rejection, get_task

NAMES = ("fda", "swde", "nq", "squad", "triviaqa", "drop")


def _row(document=0, number=0, answer="Ida Krull", column="all", released=""):
    text = f"Document {document} says {answer}."
    return QuestionRow(f"d{document}/{number}", f"d{document}", f"Title {document}", text, "Who?", "It says", (answer,), column,
                       text.index(answer), text.index(answer) + len(answer), released)


def _items(rows, name="squad", column="all", seed=0, **options):
    task = get_task(name)
    material = Material(lambda split: (), list, seed=seed, questions=lambda: rows)
    return list(task.items(material, task.options(options), column))


def test_questions_of_a_document_stand_together_in_an_order_of_the_seed():
    rows = [_row(document, number) for number in range(4) for document in range(12)]
    found = [item.id for item in _items(rows)]
    assert sorted(found) == sorted(row.id for row in rows) and found == [item.id for item in _items(rows)]
    documents = [name.partition("/")[0] for name in found]
    assert all(len(set(documents[k:k + 4])) == 1 for k in range(0, 48, 4))
    assert list(dict.fromkeys(documents)) != list(dict.fromkeys(item.document_id for item in _items(rows, seed=1)))
    assert len({tuple(name[-1] for name in found[k:k + 4]) for k in range(0, 48, 4)}) > 3


def test_the_order_does_not_depend_on_the_other_documents():
    rows = [_row(document) for document in range(20)]
    all_of_them = [item.document_id for item in _items(rows)]
    some = [item.document_id for item in _items(rows[::2])]
    assert some == [name for name in all_of_them if name in some]


def test_an_item_holds_what_the_row_holds():
    fields = {"text": "Document 0", "key": "k"}
    [item] = _items([_row(released=json.dumps(fields))])
    assert item == Item("d0/0", "d0", "Document 0 says Ida Krull.", "Who?", "It says", ("Ida Krull",), "all",
                        keep=(16, 25), title="Title 0", released=fields)


def test_some_questions_of_a_document():
    rows = [_row(document, number) for number in range(4) for document in range(3)]
    assert len(_items(rows, questions_per_document=2)) == 6
    short = [_row(0, 0, "7"), _row(0, 1, "8"), _row(0, 2)]
    found = _items(short, questions_per_document=1)
    assert [type(each) for each in found][-1] is Item
    assert {each.reason for each in found[:-1]} <= {"answer_too_short"}
    everything = _items(short)
    assert sum(isinstance(each, Rejection) for each in everything) == 2
    assert not any(isinstance(each, Rejection) for each in _items(short, minimum_answer_characters=1))
    assert not any(isinstance(each, Rejection) for each in _items(short, "drop"))      # a digit is an answer there


def test_columns_are_asked_apart():
    rows = [_row(0, column="512"), _row(1, column="1024")]
    assert [item.document_id for item in _items(rows, "nq", "1024")] == ["d1"]
    task = get_task("nq")
    assert task.columns(task.options({})) == ("512", "1024", "2048", "page", "all")
    assert task.columns(task.options({"columns": ["2048"]})) == ("2048",)
    with pytest.raises(SpecError, match="columns"):
        task.options({"columns": []})


@pytest.mark.parametrize("name", NAMES)
def test_every_task_says_what_it_reads(name):
    task = get_task(name)
    assert task.needs_questions and not task.needs_corpus and task.templates == ("clean", "jrt-2407")
    formats = [form.name for form in task.readable]
    assert formats[-1] == "published" and len(set(formats)) == len(formats) > 1
    assert all(hub.startswith("hazyresearch/based") for hub in task.hub) and task.hub
