"""Rows of questions: every answer stands in what its row shows, and the target slots spell it."""

import numpy as np
import pyarrow as pa
import pytest

from storage.errors import CorpusError, SpecError
from storage.shards import RowTable, ShardWriter
from tasks import question_rows, rows
from tasks.specs import QuestionRowsSpec
from tasks.tokenizers import load_tokenizer

SCHEMA = pa.schema([("id", pa.string()), ("document_id", pa.string()), ("document", pa.string()),
                    ("question", pa.string()), ("cloze", pa.string()), ("answers", pa.list_(pa.string())),
                    ("keep_start", pa.int32()), ("keep_end", pa.int32())])
KEYS = ("Maker", "Panel", "Purpose", "Number")


@pytest.fixture
def questions(tmp_path):
    """40 documents of four attributes between lines of other text; one answer of each document is too short."""
    with ShardWriter(tmp_path / "questions.arrow", SCHEMA) as writer:
        for d in range(40):
            values = {key: f"{key.lower()} value {d * 7 + k}" for k, key in enumerate(KEYS)} | {"Class": "II"}
            text = "\n".join(line for key, value in values.items()
                             for line in (f"The {key} of this thing is {value}, as said.", "Nothing to see here. " * 3))
            for key, value in values.items():
                at = text.index(value)
                writer.append({"id": f"{d}/{key}", "document_id": f"doc {d}", "document": text,
                               "question": f"What is the {key}?", "cloze": f"{key}:", "answers": [value],
                               "keep_start": at, "keep_end": at + len(value)})
    return RowTable(tmp_path / "questions.arrow")


def spec(**changes):
    return QuestionRowsSpec(**{"tokens": 20_000, "validation_tokens": 2_000, "passage_tokens": (60, 200),
                               "maximum_row_tokens": 700, "validation_share": 0.2, **changes})


def made(questions, tmp_path, **changes):
    counts = rows.build_questions(spec(**changes), questions, load_tokenizer("bytes"), tmp_path)
    return counts, RowTable(tmp_path / "train.arrow")


def texts(table):
    """(head up to the blank line, lines after it, what the target slots spell) of each row."""
    tokenizer = load_tokenizer("bytes")
    for k in range(len(table)):
        row = table.row(k)
        ids, prefix = row["ids"].tolist(), row["prefix"]
        spelt = tokenizer.decode([ids[slot + 1] for slot in row["answers"]])
        yield tokenizer.decode(ids[1:prefix]), tokenizer.decode(ids[prefix:]).splitlines(), spelt


def test_every_answer_is_shown_and_is_what_the_targets_spell(questions, tmp_path):
    counts, table = made(questions, tmp_path)
    assert counts["tokens"] >= 20_000 and set(counts["by_form"]) == {"document", "swap", "list"}
    for head, lines, spelt in texts(table):
        answers = [line.partition(": ")[2] for line in lines]
        assert head.endswith("\n\n") and lines and all(answer and answer in head for answer in answers)
        assert spelt == "".join(f" {answer}\n" for answer in answers)
        assert not any(line.startswith("Class:") for line in lines), "two letters stand everywhere by chance"


def test_swapped_rows_show_answers_of_other_documents_only(questions, tmp_path):
    _, table = made(questions, tmp_path, swap_share=1.0, list_share_first=0, list_share_last=0)
    own = {}
    for document, cloze, answers in zip(*(questions.column(name) for name in ("document_id", "cloze", "answers"))):
        own.setdefault(document, {})[cloze] = answers[0]
    for (head, lines, _), document in zip(texts(table), table.column("document")):
        for line in lines:
            cloze, _, answer = line.partition(": ")
            assert answer != own[document][f"{cloze}:"] and own[document][f"{cloze}:"] not in head


def test_documents_are_in_one_split_and_the_seed_decides(questions, tmp_path):
    first, table = made(questions, tmp_path)
    held = set(RowTable(tmp_path / "validation.arrow").column("document")) - {""}
    assert held and not held & set(table.column("document"))
    again = tmp_path / "again"
    again.mkdir()
    same = rows.build_questions(spec(), questions, load_tokenizer("bytes"), again)
    assert same == first
    assert all(map(np.array_equal, table.column("ids"), RowTable(again / "train.arrow").column("ids")))


def test_orders_show_the_question_where_they_say(questions, tmp_path):
    _, table = made(questions, tmp_path, order_shares={"question_first": 1, "twice": 1}, list_share_first=0,
                    list_share_last=0)
    for (head, _, _), order in zip(texts(table), table.column("order")):
        passage = head.partition("?\n")[2].rstrip("\n")
        assert head.startswith("What is the ")
        half = passage[: len(passage) // 2]
        assert (passage == f"{half}\n{half}") == (order == "twice")


@pytest.mark.parametrize("changes, error", [
    ({"passage_tokens": (200, 60)}, SpecError), ({"passage_tokens": (4, 60)}, SpecError),
    ({"passage_tokens": (60, 700)}, SpecError), ({"order_shares": {}}, SpecError)])
def test_impossible_settings_are_refused_before_work(changes, error):
    with pytest.raises(error):
        rows.plan(spec(**changes), None, shards="shards-0", questions="questions-0")


def test_missing_inputs_are_named():
    with pytest.raises(SpecError, match="questions artifact"):
        rows.plan(spec(), None, shards="shards-0")


def test_nothing_to_ask_stops_the_stage(tmp_path):
    with ShardWriter(tmp_path / "questions.arrow", SCHEMA) as writer:
        writer.append({"id": "0", "document_id": "d", "document": "It is II.", "question": "What?", "cloze": "It is",
                       "answers": ["II"], "keep_start": 6, "keep_end": 8})
    with pytest.raises(CorpusError, match="no question of the train split"):
        question_rows.pools(RowTable(tmp_path / "questions.arrow"), load_tokenizer("bytes"), spec())
