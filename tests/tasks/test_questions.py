"""Questions stage: rows with clozes, rejects with reasons, and names that follow from content."""

import json
from collections import Counter

import pytest

from storage.artifacts import Store
from storage.errors import CorpusError, SpecError
from storage.shards import RowTable
from tasks import questions
from tasks.datasets.records import Record, Unusable
from tasks.evals.base import get_task
from tasks.specs import QuestionsSpec, RewriterSpec
from tests.tasks.datasets.collecting import put

CONTEXT = "Tolm lies on the Vey river. It was founded by Ida Krull in 1904."


class Rewriter:
    """Says what a test wants said, and keeps what it was asked."""

    def __init__(self, *said):
        self.said, self.asked, self.bill = list(said), [], {"requests": 0}

    def clozes(self, records):
        self.asked.append([record.id for record in records])
        self.bill["requests"] += 1
        for record in records:
            yield self.said.pop(0) if self.said else f"The answer to {record.id} is"


def _squad(*answers, context=CONTEXT, title="Tolm"):
    asked = [{"id": f"{title}-{k}", "question": f"What is {k}?", "answers":
              [{"text": answer, "answer_start": context.find(answer)}]} for k, answer in enumerate(answers)]
    return {"title": title, "paragraphs": [{"context": context, "qas": asked}]}


@pytest.fixture
def source(tmp_path):
    return put(tmp_path / "data/squad.json", {"data": [_squad("Vey", "Ida Krull", "Lark"), _squad("1904", title="Other")]})


def _spec(path, task="squad", **changes):
    return QuestionsSpec(task=task, paths=(str(path),), **changes)


def _written(entries, rewriter=None, policy="skip", task="squad"):
    counts = questions.Written()
    rows = list(questions.write(get_task(task), entries, rewriter or Rewriter(), counts, policy))
    return rows, counts


def _record(identifier="q", **changes):
    return Record(**{"id": identifier, "document_id": "d", "document": CONTEXT, "question": "Who?",
                     "answers": ("Ida Krull",), "where": "a.json"} | changes)


# -------------------------------------------------------------------------------------------------------- the stage
def test_rows_rejects_and_counts(source, tmp_path):
    store = Store(tmp_path / "home")
    identifier = questions.run(_spec(source), store)
    assert identifier == questions.plan(_spec(source), store)
    table = RowTable(store.path(identifier) / "questions.arrow")
    assert table.names == questions.SCHEMA.names and table.column("id") == ["Tolm-0", "Tolm-1", "Other-0"]
    for row in table.table.to_pylist():
        assert row["document"][row["keep_start"]:row["keep_end"]] == row["answers"][0]
        assert row["cloze"] and row["cloze"] == row["cloze"].strip()
        released = json.loads(row["released"])
        assert released["text"] == f"{CONTEXT} {row['cloze']}" and released["value"] == row["answers"][0]
        assert set(released) == {"doc_id", "title", "context", "question", "value", "text"}
    rejected = RowTable(store.path(identifier) / "rejected.arrow").table.to_pylist()
    assert [each["reason"] for each in rejected] == ["answer_not_in_document"] and "question Tolm-2" in rejected[0]["where"]
    counts = store.manifest(identifier).counts
    assert counts["records"] == 4 and counts["questions"] == 3 and counts["documents"] == 2
    assert counts["columns"] == {"all": 3} and counts["rejected"] == {"answer_not_in_document": 1}
    assert sum(counts["rewriter"].values()) >= 3


def test_the_rewriter_is_asked_once_a_batch_and_only_for_records_without_a_cloze(monkeypatch):
    monkeypatch.setattr(questions, "AT_ONCE", 3)
    rewriter = Rewriter()
    entries = [_record("a"), Unusable("x", "some_reason", "why"), _record("b", cloze="It was founded by"), _record("c"),
               _record("d")]
    rows, counts = _written(entries, rewriter)
    assert rewriter.asked == [["a"], ["c", "d"]]
    assert [getattr(row, "id", None) for row in rows] == ["a", None, "b", "c", "d"]
    assert rows[2].cloze == "It was founded by" and rows[3].cloze == "The answer to c is"
    assert counts.records == 5 and counts.columns == {"all": 4} and counts.rejected == {"some_reason": 1}


def test_every_cloze_is_checked():
    said = ["It was Ida Krull, that is", "Is it?", "", "Tolm was founded by", Unusable("r", "no_reply", "503")]
    rows, counts = _written([_record(str(k)) for k in range(5)], Rewriter(*said))
    assert counts.rejected == {"answer_in_cloze": 1, "ends_sentence": 1, "empty": 1, "no_reply": 1}
    assert [row.id for row in rows if not isinstance(row, Unusable)] == ["3"]
    assert all(row.where == f"a.json, record '{k}'" for k, row in enumerate(rows) if isinstance(row, Unusable))
    _, counts = _written([_record(document="Nobody", cloze="It was founded by")])
    assert counts.rejected == {"answer_not_in_document": 1}


@pytest.mark.parametrize("changes, reason", [
    ({"document": " \n"}, "empty_document"), ({"question": ""}, "empty_question"), ({"answers": (" ", "")}, "no_answer"),
    ({"document": CONTEXT + "\ud800"}, "not_unicode"), ({"id": "first"}, "duplicate_id"), ({"cloze": "a\ud800"}, "not_unicode")])
def test_what_no_format_may_hold(changes, reason):
    rows, counts = _written([_record("first"), _record(**changes)])
    assert counts.rejected == {reason: 1} and rows[1].where.startswith("a.json, record ")


def test_a_missing_span_is_looked_for_and_a_long_document_is_kept_whole():
    long = "word " * 200_000 + "Ida Krull founded it."
    rows, _ = _written([_record(document=long)])
    assert rows[0].document == long and rows[0].keep == (1_000_000, 1_000_009)


def test_an_error_policy_stops_at_the_first(source, tmp_path):
    with pytest.raises(CorpusError, match=r"squad.json, article 0 .Tolm., paragraph 0, question Tolm-2: "
                                          r"answer_not_in_document .*on_bad_record=skip"):
        questions.run(_spec(source, on_bad_record="error"), Store(tmp_path / "home"))


def test_nothing_left_is_an_error_with_reasons(tmp_path):
    path = put(tmp_path / "a.json", {"data": [_squad("Lark", "Mill")]})
    with pytest.raises(CorpusError, match="no question of task 'squad' is left of 2 records: rejected are "
                                          "answer_not_in_document 2; is it the right file"):
        questions.run(_spec(path), Store(tmp_path / "home"))
    with pytest.raises(CorpusError, match="left of 0 records; is it"):
        questions.run(_spec(put(tmp_path / "b.json", {"data": [_squad()]})), Store(tmp_path / "home"))


def test_a_limit_counts_documents(source, tmp_path):
    store = Store(tmp_path / "home")
    counts = store.manifest(questions.run(_spec(source, limit=1), store)).counts
    assert counts["documents"] == 1 and counts["questions"] == 2 and counts["rejected"] == {"answer_not_in_document": 1}


# --------------------------------------------------------------------------------------------------------- identity
def test_identity_is_content_not_place(source, tmp_path):
    name = questions.plan(_spec(source))
    moved = put(tmp_path / "elsewhere/squad.json", source.read_text())
    assert questions.plan(_spec(moved)) == name == questions.plan(_spec(source, format="squad"))
    assert questions.plan(_spec(source, limit=3)) != name
    source.write_text(source.read_text().replace("1904", "1905"))
    assert questions.plan(_spec(source)) != name


def test_only_what_decides_the_words_of_an_endpoint_names_the_artifact(source):
    def planned(**settings):
        return questions.plan(_spec(source, rewriter=RewriterSpec(**settings)))

    rules, model = planned(), planned(kind="endpoint", model="a")
    assert rules == planned(url="http://other/v1", model="b", temperature=1) != model
    assert model == planned(kind="endpoint", model="a", url="http://other/v1", key_variable="K", concurrency=2, price_in=3)
    assert len({model, planned(kind="endpoint", model="b"), planned(kind="endpoint", model="a", temperature=1)}) == 3


def test_attribute_tasks_do_not_depend_on_the_rewriter(tmp_path):
    path = put(tmp_path / "a.jsonl", [{"doc_id": "D", "text": "A. 510(k) Number:\nk060431\nB. Purpose for Submission:\nNew"}])
    with_model = RewriterSpec(kind="endpoint", model="a")
    assert questions.plan(_spec(path, "fda", rewriter=with_model)) == questions.plan(_spec(path, "fda"))
    counts = questions.build(_spec(path, "fda"), get_task("fda"), tmp_path)
    row = RowTable(tmp_path / "questions.arrow").table.to_pylist()[0]
    assert counts["questions"] == 2 and row["cloze"] == "510(k) number:" and row["answers"] == ["k060431"]
    assert json.loads(row["released"])["key"] == "510(k) number"


def test_a_published_folder_is_named_by_its_files(tmp_path):
    import datasets

    row = {"context": CONTEXT, "question": "Tolm was founded by", "orig_question": "who?", "answers": ["Ida Krull"]}
    for name in ("one", "two"):
        datasets.Dataset.from_list([row, row | {"answers": ["Nobody"]}]).save_to_disk(str(tmp_path / name / "based_nq_512"))
    spec = QuestionsSpec(task="nq", dataset=str(tmp_path / "one/based_nq_512"))
    store = Store(tmp_path / "home")
    identifier = questions.run(spec, store)
    made = RowTable(store.path(identifier) / "questions.arrow").table.to_pylist()
    assert [(each["column"], each["cloze"], json.loads(each["released"])) for each in made] == [
        ("512", "Tolm was founded by", row)]
    assert store.manifest(identifier).counts["rejected"] == {"answer_not_in_document": 1}
    assert str(tmp_path) not in json.dumps(store.manifest(identifier).spec)


def test_a_set_of_the_hub_is_named_by_its_revision(monkeypatch):
    from tasks.sources import huggingface

    spec = QuestionsSpec(task="nq", dataset="hazyresearch/based_nq_512")
    names = []
    for revision in ("aaa", "bbb", "aaa"):
        monkeypatch.setattr(huggingface, "_revision", lambda name, revision=revision: revision)
        names.append(questions.plan(spec))
    assert names[0] == names[2] != names[1]
    assert questions.plan(spec.model_copy(update={"dataset": "hazyresearch/based_nq_1024"})) != names[2]      # same revision


def test_a_set_that_is_not_there_is_one_message(tmp_path):
    with pytest.raises(CorpusError, match="is no local folder, and the hub does not tell its revision"):
        questions.plan(QuestionsSpec(task="nq", dataset=str(tmp_path / "none")))


@pytest.mark.parametrize("task, message", [("pydocs", "makes its own questions"), ("squadd", "there is no eval task")])
def test_tasks_that_read_nothing(source, task, message):
    with pytest.raises(SpecError, match=message):
        questions.plan(_spec(source, task))


def test_the_code_of_the_readers_counts():
    from storage.identity import reached

    found = reached(["tasks.questions", "tasks.evals.swde"])
    assert {"tasks.datasets.swde", "tasks.datasets.page_text", "tasks.rewriting.rules"} <= set(found)
    assert "tasks.datasets.triviaqa" not in found


def test_reading_needs_no_store(source):
    notes = Counter()
    entries = list(questions.read(get_task("squad"), _spec(source), notes))
    assert [type(entry).__name__ for entry in entries] == ["Record", "Record", "Unusable", "Record"]
    with pytest.raises(CorpusError, match="nothing is at"):
        questions.read(get_task("squad"), _spec(source.parent / "none.json"))      # at the call, not at the first record


# --------------------------------------------------------------------------------------------- on to the cloze stage
SUMMARY = "A. 510(k) Number:\nk060431\nE. Applicant:\nMirelle Optics\nF. Proprietary and Established Names:\nHalden Lens\n"
ORIGINALS = {
    "squad": ("a.json", {"data": [_squad("Ida Krull")]},
              f"What is 0? {CONTEXT}\n{CONTEXT} The answer to Tolm-0 is"),
    "drop": ("a.jsonl", [{"passage_id": "p", "passage": CONTEXT, "qa": [{"question": "Who founded it?", "answers": ["Ida Krull"]}]}],
             f"Who founded it? {CONTEXT}\n{CONTEXT} The answer to p/0 is"),
    "fda": ("a.jsonl", [{"doc_id": "D", "text": SUMMARY}],
            "Information about Applicant. {0}.\n{0}. Applicant:".format(SUMMARY.strip())),
}


@pytest.mark.parametrize("task", ORIGINALS)
def test_original_records_can_be_asked_in_the_released_template(tmp_path, task):
    from tasks.cloze import preview
    from tasks.evals.base import QuestionRow
    from tasks.specs import ClozeSpec

    name, content, prompt = ORIGINALS[task]
    questions.build(_spec(put(tmp_path / name, content), task), get_task(task), tmp_path, Rewriter())
    rows = [QuestionRow(**row) for row in RowTable(tmp_path / "questions.arrow").table.to_pylist()]
    spec = ClozeSpec(task=task, template="jrt-2407", orders=("twice",), tokenizer="bytes", document_tokens=400)
    found = preview(spec, questions=rows)
    assert prompt in [each["prompt"] for each in found["prompts"]] and not found["rejected"]
