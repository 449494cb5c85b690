"""Natural Questions: documents joined from passages, windows of pages, and the annotations of full records."""

import pytest

from tasks.datasets import passages
from tests.tasks.datasets.collecting import Collected, put

FILLER = "Another town is told of here, its river and its mill and its mayor, at some length. " * 8


def _lines(count=30, **changes):
    lines = [{"question": f"who founded town {k}", "answers": [f"Founder{k}", "nobody"], "title": f"Town {k}",
              "passage": f"It was Founder{k} who founded it. {FILLER}"} for k in range(count)]
    lines[0] |= changes
    return lines


def test_the_gold_passage_stands_whole_among_others(tmp_path):
    found = Collected("nq", put(tmp_path / "a.jsonl.gz", _lines()))
    assert found.format == "nq-open" and len(found.records) == 90 and not found.unusable
    for record in found.records:
        assert f"Town {record.id.split('/')[1]}\n" in record.document
        assert 0.8 * int(record.column) <= passages.count(record.document) <= int(record.column)
    places = {record.span[0] // 400 for record in found.records if record.column == "2048"}
    assert len(places) > 8                                     # the gold is not always first, or last
    assert {record.document_id for record in found.records} == {f"a.jsonl.gz/{k}" for k in range(30)}


def test_documents_depend_on_the_record_alone(tmp_path):
    path = put(tmp_path / "a.jsonl", _lines())
    once, again = Collected("nq", path), Collected("nq", path)
    assert [record.document for record in once.records] == [record.document for record in again.records]
    assert once["a.jsonl/3/512"].document != once["a.jsonl/4/512"].document


def test_no_other_passage_holds_an_answer(tmp_path):
    lines = _lines(40)
    for k in range(1, 39):
        lines[k]["passage"] += " Founder0 came by."
    found = Collected("nq", put(tmp_path / "a.jsonl", lines))
    assert found["a.jsonl/0/2048"].document.count("Founder0") == 1
    assert found.notes["shorter_than_2048"] >= 1            # only one other passage is left for it


def test_short_and_long_documents_are_said_to_be_so(tmp_path):
    found = Collected("nq", put(tmp_path / "a.jsonl", _lines(2)))
    assert found.notes == {"shorter_than_512": 2, "shorter_than_1024": 2, "shorter_than_2048": 2}
    long = Collected("nq", put(tmp_path / "b.jsonl", _lines(2, passage="Founder0 did it. " + FILLER * 6)))
    assert long.notes["longer_than_512"] == 1 and passages.count(long["b.jsonl/0/512"].document) > 512


def test_passages_of_the_record_itself(tmp_path):
    contexts = [{"title": f"T{k}", "text": f"Passage {k}. {FILLER}", "isgold": k == 2} for k in range(6)]
    contexts[2]["text"] += " It was Ida."
    line = {"question": "who", "answers": ["Ida"], "ctxs": contexts}
    unmarked = {"question": "who", "answers": ["Ida"], "ctxs": [{"text": "Ida", "title": ""}]}
    found = Collected("nq", put(tmp_path / "a.jsonl", [line, unmarked]))
    assert found.reasons == {"no_gold_passage": 1} and found["a.jsonl/0/1024"].title == "T2"
    assert all(f"Passage {k}." in found["a.jsonl/0/1024"].document for k in range(6))


def test_lines_that_cannot_be_asked(tmp_path):
    lines = _lines(3, answers=["someone else"])
    lines[1]["answers"] = []
    lines[2].pop("question")
    found = Collected("nq", put(tmp_path / "a.jsonl", [_lines()[5], *lines, "{"]))
    assert found.reasons == {"answer_not_in_document": 1, "no_answer": 1, "missing_field": 1, "not_json": 1}


# ------------------------------------------------------------------------------------------------------- whole pages
PAGE = "Tolm - wikipedia <H1> Tolm </H1> <P> Tolm was founded by Ida Krull in 1904 . </P> <Ul> <Li> Vey </Li> </Ul>"


def _record(short=((11, 13),), text=PAGE, yes_no="NONE", long=-1, **more):
    answer = {"yes_no_answer": yes_no, "long_answer": {"start_token": long, "end_token": long},
              "short_answers": [{"start_token": a, "end_token": b} for a, b in short]}
    return {"example_id": 7, "question_text": "who founded tolm", "annotations": [answer], "document_text": text} | more


def test_tokens_become_lines_and_the_answer_stays(tmp_path):
    found = Collected("nq", put(tmp_path / "a.jsonl", [_record()]))
    assert found["7/page"].document == "Tolm - wikipedia\nTolm\nTolm was founded by Ida Krull in 1904 .\nVey"
    assert found["7/page"].answers == ("Ida Krull",) and found["7/page"].title == "Tolm" and found.format == "nq-pages"
    assert {record.column for record in found.records} == {"page", "512", "1024", "2048"}
    assert found["7/512"].document == found["7/page"].document
    assert found.notes == {"shorter_than_512": 1, "shorter_than_1024": 1, "shorter_than_2048": 1}


def test_the_full_form_reads_the_same(tmp_path):
    tokens = [{"token": token, "html_token": token.startswith("<")} for token in PAGE.split(" ")]
    full = _record()
    full.pop("document_text")
    found = Collected("nq", put(tmp_path / "a.jsonl", [full | {"document_tokens": tokens}]))
    assert found["7/page"].document == "Tolm - wikipedia\nTolm\nTolm was founded by Ida Krull in 1904 .\nVey"


def test_windows_hold_the_answer_at_a_drawn_place(tmp_path):
    words = "one two three . " * 400
    text = (words + "Ida Krull " + words).strip()
    lines = [_record(text=text, short=[(1600, 1602)], example_id=k) for k in range(20)]
    found = Collected("nq", put(tmp_path / "a.jsonl", lines))
    windows = [record for record in found.records if record.column == "512"]
    assert all(passages.count(record.document) == 512 for record in windows) and not found.notes
    starts = sorted(record.span[0] for record in windows)
    assert starts[0] < 0.35 * len(windows[0].document) and starts[-1] > 0.65 * len(windows[0].document)


@pytest.mark.parametrize("record, reason", [
    (_record(short=()), "no_answer"), (_record(short=(), yes_no="YES"), "yes_no_answer"),
    (_record(short=(), long=2), "long_answer_only"), (_record(short=[(900, 901)]), "answer_not_in_document"),
    (_record(short=[(4, 8)]), "answer_over_several_lines"), (_record(short=[(3, 4)]), "no_answer"),
    (_record(document_text=3), "wrong_type")])
def test_annotations_without_a_short_answer(tmp_path, record, reason):
    found = Collected("nq", put(tmp_path / "a.jsonl", [_record(), record | {"example_id": 8}]))
    assert found.reasons == {reason: 1} and len(found.records) == 4


def test_the_samples(shared):
    found = Collected("nq", shared / "data/natural_questions/nq_fullpage_farm_samples.jsonl.gz")
    assert {record.answers for record in found.records} == {("Tracy McConnell",)} and found.reasons == {"no_answer": 1}


@pytest.mark.long
def test_all_oracle_passages(shared):
    found = Collected("nq", shared / "data/natural_questions/nq_oracle_800.jsonl.gz")
    assert len(found.records) == 2400 and not found.unusable and not found.notes
