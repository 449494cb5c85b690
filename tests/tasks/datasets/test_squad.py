"""SQuAD v1 and v2: spans, questions without an answer, and what a broken file says."""

import pytest

from storage.errors import CorpusError
from tests.tasks.datasets.collecting import Collected, put

CONTEXT = "Tolm lies on the Vey. It has two bridges, and the Vey has none."


def _article(*questions):
    return {"data": [{"title": "Tolm_(town)", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}]}


def _question(identifier="q1", answers=({"text": "Vey", "answer_start": 17},), **more):
    return {"id": identifier, "question": f"On which river is {identifier}?", "answers": list(answers)} | more


def test_answers_stand_where_the_file_says(tmp_path):
    second = {"text": "Vey", "answer_start": 50}
    found = Collected("squad", put(tmp_path / "a.json.gz", _article(_question(), _question("q2", [second, second]))))
    assert found["q1"].span == (17, 20) and found["q2"].span == (50, 53) and found["q2"].answers == ("Vey",)
    assert found["q1"].title == "Tolm (town)" and found["q1"].document_id == found["q2"].document_id
    assert found.format == "squad" and not found.unusable and not found.notes


def test_a_wrong_start_is_mended_and_told(tmp_path):
    wrong = {"text": "two bridges", "answer_start": 3}
    found = Collected("squad", put(tmp_path / "a.json", _article(_question(answers=[wrong]))))
    assert found["q1"].answers == ("two bridges",) and found.notes == {"span_corrected": 1}


def test_what_cannot_be_asked_is_named(tmp_path):
    gone = _question("gone", [{"text": "the Lark", "answer_start": 0}])
    unclear = _question("v2", [], is_impossible=True)
    bare = {"id": "bare", "answers": []}
    path = put(tmp_path / "a.json", _article(_question(), gone, unclear, bare, _question("none", []),
                                             _question("kind", [{"text": 3, "answer_start": 0}]),
                                             _question("flag", [{"text": "Vey", "answer_start": True}])))
    found = Collected("squad", path)
    assert found.reasons == {"answer_not_in_document": 1, "unanswerable": 1, "missing_field": 1, "no_answer": 1,
                             "wrong_type": 2}
    missing = next(each for each in found.unusable if each.reason == "missing_field")
    assert str(path) in missing.where and "question bare" in missing.where and "'question'" in missing.detail


def test_files_that_are_no_squad(tmp_path):
    with pytest.raises(CorpusError, match="a.json, line 3: not JSON"):
        Collected("squad", put(tmp_path / "a.json", '{"data": [\n{"paragraphs":\n[}'))
    with pytest.raises(CorpusError, match="has no list 'data'"):
        Collected("squad", put(tmp_path / "a.json", [{"paragraphs": []}]))


def test_the_samples(shared):
    found = Collected("squad", shared / "data/squad_v2")
    assert len(found.records) == 2191 and found.reasons == {"unanswerable": 2223} and not found.notes
    assert len({record.document_id for record in found.records}) == 484
    first = Collected("squad", shared / "data/squad_v1_xquad_en")
    assert len(first.records) == 564 and not first.unusable and not first.notes
