"""DROP in both layouts: numbers, dates, spans, and answers that stand nowhere."""

import gzip
import json

from tests.tasks.datasets.collecting import Collected, put

PASSAGE = "On 3 May 1904 the Lark Bridge cost 12,500 crowns; Ida Krull and Jon Vey paid 1,904 of 23 parts, Japanese ones."


def _answer(number="", spans=(), **date):
    return {"number": number, "spans": list(spans), "date": {"day": "", "month": "", "year": ""} | date}


def _official(*answers):
    pairs = [{"query_id": f"q{k}", "question": f"What is it ({k})?"} | (answer if "answer" in answer else {"answer": answer})
             for k, answer in enumerate(answers)]
    return {"history_1": {"passage": PASSAGE, "qa_pairs": pairs}}


def test_kinds_of_answers(tmp_path):
    date = _answer(day="3", month="May", year="1904")
    several = _answer(spans=["Ida Krull", "Jon Vey"])
    found = Collected("drop", put(tmp_path / "a.json", _official(
        _answer("12500"), date, several, _answer(spans=["Lark Bridge"]), _answer("23"), _answer("3"))))
    assert [record.answers[0] for record in found.records] == ["12,500", "3 May 1904", "Ida Krull and Jon Vey",
                                                             "Lark Bridge", "23", "3"]
    assert found["q0"].answers == ("12,500", "12500")
    assert found["q5"].span == (3, 4)            # no digit of 12,500, 1904 or 23
    assert found.notes == {"answer_is_number": 3, "answer_is_date": 1, "answer_is_several_spans": 1, "answer_is_span": 1}
    assert found["q0"].document_id == "history_1" and found.format == "drop"


def test_answers_that_are_not_said(tmp_path):
    found = Collected("drop", put(tmp_path / "a.json", _official(
        _answer("904"), _answer("500"), _answer(spans=["Japan"]), _answer(spans=["Jon Vey", "Ida Krull"]), _answer())))
    assert not found.records and found.reasons == {"answer_not_in_document": 4, "no_answer": 1}


def test_an_alternative_that_is_said_counts_for_a_name_and_not_for_a_number(tmp_path):
    name = {"answer": _answer(spans=["the bridge of Lark"]), "validated_answers": [_answer(spans=["lark bridge"])]}
    number = {"answer": _answer("7"), "validated_answers": [_answer("23")]}
    found = Collected("drop", put(tmp_path / "a.json", _official(name, number)))
    assert found["q0"].answers == ("Lark Bridge", "the bridge of Lark", "lark bridge")
    assert found.reasons == {"answer_not_in_document": 1}


def test_lines_of_passages(tmp_path):
    line = {"passage_id": "p", "passage": PASSAGE, "qa": [{"question": "Who?", "answers": ["Ida Krull"]},
                                                       {"question": "How much?", "answers": ["12500", "8"]},
                                                       {"question": "What?"}]}
    path = put(tmp_path / "a.jsonl.gz", [line, "{not json", {"passage_id": "x"}])
    found = Collected("drop", path)
    assert found.format == "drop-lines" and found["p/1"].answers == ("12,500", "12500", "8")
    assert found.reasons == {"missing_field": 2, "not_json": 1}
    assert next(each for each in found.unusable if each.reason == "not_json").where == f"{path}, line 2"


def test_the_samples(shared):
    found = Collected("drop", shared / "data/drop/drop_dev_90passages.jsonl.gz")
    assert len(found.records) == 620 and found.reasons == {"answer_not_in_document": 801}
    with gzip.open(shared / "data/drop/drop_dev_90passages.jsonl.gz", "rt") as file:
        passages = [json.loads(line) for line in file]
    by_substring = {f"{each['passage_id']}/{k}": asked["answers"] for each in passages
                    for k, asked in enumerate(each["qa"]) if asked["in_passage"]}
    assert len(by_substring) == 828                 # of which many are digits inside other numbers
    lost = [answers for name, answers in by_substring.items() if name not in {record.id for record in found.records}]
    assert sum(answers[0].replace(".", "").isdigit() for answers in lost) >= 0.95 * len(lost)
    official = Collected("drop", shared / "data/drop/allennlp_drop_fixture.json")
    assert len(official.records) == 8 and official.reasons == {"answer_not_in_document": 11}
