"""Published cloze sets: what a row means in each task, and rows of files, folders and tables."""

import pytest

from storage.errors import CorpusError
from tasks.datasets.published import AttributeRows, SquadRows, StatementRows
from tasks.datasets.published_rows import column_of, from_dataset
from tasks.datasets.records import Record, Unusable
from tasks.evals.base import get_task
from tasks.specs import QuestionsSpec
from tests.tasks.datasets.collecting import Collected, put

CONTEXT = "Tolm lies on the Vey river. It has two bridges."
ATTRIBUTE = {"text": "Halden Lens.\nClassification: Class II. classification:", "key": "classification", "value": "Class II"}
SQUAD = {"doc_id": 1, "title": "Tolm", "text": f"{CONTEXT}\n\nTolm lies on the river ", "value": "Vey",
         "context": f"{CONTEXT} Question: On which river?", "question": "On which river?"}
STATEMENT = {"context": f"[DOC] [TLE] Tolm [PAR] {CONTEXT} The river is the", "question": "the river is the",
             "orig_question": "which river?", "answers": ["Lark", "vey"], "tok_pos": 3}


def test_attribute_rows_end_before_their_key():
    record = AttributeRows().record(ATTRIBUTE, "a/0", "all")
    assert record.document == "Halden Lens.\nClassification: Class II."
    assert (record.cloze, record.question) == ("Classification:", "What is the classification?")
    assert record.released == ATTRIBUTE and record.answers == ("Class II",)
    summary = ATTRIBUTE | {"text": "Runtime 102 min.\n\nSummary of information above... runtime:", "key": "runtime",
                           "value": "102 min"}
    assert AttributeRows().record(summary, "a/0", "all").document == "Runtime 102 min."


def test_squad_rows_hold_context_and_cloze():
    record = SquadRows().record(SQUAD, "a/0", "all")
    assert (record.document, record.cloze, record.title) == (CONTEXT, "Tolm lies on the river", "Tolm")
    assert record.answers == ("Vey",) and record.released == SQUAD


def test_statement_rows_lose_tags_and_a_repeated_cloze():
    record = StatementRows(tags=True).record(STATEMENT, "a/0", "512")
    assert record.document == f"Tolm\n{CONTEXT}"
    assert record.answers == ("Vey", "Lark", "vey") and record.column == "512"
    assert (record.cloze, record.question) == ("the river is the", "which river?")
    twice = STATEMENT | {"context": f"{CONTEXT} The river is the THE river is the "}
    assert StatementRows().record(twice, "a/0", "all").document == CONTEXT
    row = STATEMENT | {"answers": ["nothing"], "alt_answers": ["bridge"]}
    assert StatementRows().record(row, "a/0", "all").answers == ("bridge", "nothing")      # inside `bridges`


@pytest.mark.parametrize("task, row", [("fda", ATTRIBUTE), ("swde", ATTRIBUTE), ("squad", SQUAD), ("nq", STATEMENT),
                                       ("triviaqa", STATEMENT), ("drop", STATEMENT)])
def test_files_of_each_set(tmp_path, task, row):
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = dict(row)
    broken.pop("value", None)
    broken.pop("answers", None)
    lines = put(tmp_path / "set_1024.jsonl.gz", [row, broken, "{"])
    pq.write_table(pa.Table.from_pylist([row, row]), tmp_path / "set.parquet")
    from_lines, from_table = Collected(task, lines), Collected(task, tmp_path / "set.parquet")
    assert from_lines.format == from_table.format == "published" and len(from_table.records) == 2
    assert from_lines.reasons == {"missing_field": 1, "not_json": 1} and from_lines.records[0].column == "1024"
    assert from_lines.records[0].released == row and from_table.records[1].id == "set.parquet/1"


def test_rows_that_cannot_be_asked(tmp_path):
    rows = [SQUAD | {"text": "Something else"}, SQUAD | {"value": "Lark"}, SQUAD | {"value": ""}, SQUAD | {"value": 3}]
    found = Collected("squad", put(tmp_path / "a.jsonl", [SQUAD, *rows]))
    assert found.reasons == {"cloze_not_found": 1, "answer_not_in_document": 1, "no_answer": 1, "wrong_type": 1}


def test_fields_written_for_original_records_read_back_as_the_record():
    record = Record("q1", "d1", CONTEXT, "On which river?", ("Vey", "the Vey"), title="Tolm")
    for rows in (SquadRows(), StatementRows()):
        again = rows.record(rows.fields(record, "The river is the"), "q1", "all")
        assert (again.document, again.question, again.cloze) == (CONTEXT, "On which river?", "The river is the")
        assert again.answers[0] == "Vey"
    attribute = Record("q1", "d1", ATTRIBUTE["text"], "", ("Class II",))
    assert AttributeRows().fields(attribute, "Classification:") == ATTRIBUTE | {"key": "Classification"}


@pytest.mark.parametrize("name, column", [
    ("hazyresearch/based_nq_512", "512"), ("based_nq_2048.jsonl.gz", "2048"), ("based_drop", "all"), ("x1024", "1024"),
    ("based_7", "all"), ("set_11024", "all")])
def test_the_column_is_in_the_name(name, column):
    assert column_of(name) == column


def test_a_folder_of_datasets(tmp_path):
    import datasets

    folder = tmp_path / "based_nq_2048"
    datasets.DatasetDict({"validation": datasets.Dataset.from_list([STATEMENT, STATEMENT | {"answers": []}])}).save_to_disk(
        str(folder))
    entries = list(from_dataset(get_task("nq").published, QuestionsSpec(task="nq", dataset=str(folder))))
    assert entries[0].released == STATEMENT and entries[0].column == "2048" and entries[0].id == "based_nq_2048/0"
    assert isinstance(entries[1], Unusable) and entries[1].where == f"{folder}, row 1"
    with pytest.raises(CorpusError, match="has no field 'text', 'value'.*it has context"):
        from_dataset(get_task("squad").published, QuestionsSpec(task="squad", dataset=str(folder)))
    with pytest.raises(CorpusError, match="no split 'train'; it has validation"):
        from_dataset(get_task("nq").published, QuestionsSpec(task="nq", dataset=str(folder), dataset_split="train"))
