"""Which files a path means and which format they are in; where an answer stands."""

import gzip

import pytest

from storage.errors import CorpusError, SpecError
from tasks.datasets.formats import choose
from tasks.datasets.source_files import matched
from tasks.datasets.spans import distinct, find, found_first
from tasks.evals.base import get_task
from tests.tasks.datasets.collecting import Collected, put

SQUAD = {"data": [{"title": "T", "paragraphs": []}]}
ROW = {"text": "Tolm. It is", "value": "Tolm", "context": "Tolm.", "question": "What?"}


def _choose(task, *paths, form="auto"):
    return choose(task, get_task(task).readable, form, [str(path) for path in paths])


def test_paths_are_files_folders_and_globs(tmp_path):
    for name in ("a/x.json", "a/b/y.JSON.gz", "a/b/z.txt"):
        put(tmp_path / name, "{}")
    assert list(matched([str(tmp_path / "a")], [".json"])) == ["b/y.JSON.gz", "x.json"]
    assert list(matched([str(tmp_path / "**/*.json*"), str(tmp_path / "a/x.json")], [".json"])) == ["x.json"]
    assert list(matched([str(tmp_path / "a/x.json")], [".json"])) == ["x.json"]


def test_paths_that_mean_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    put(tmp_path / "a.txt", "")
    with pytest.raises(CorpusError, match="nothing is at '.*/none/"):
        matched([str(tmp_path / "none/*.json")], [".json"])
    with pytest.raises(CorpusError, match="empty' holds no file of .json"):
        matched([str(tmp_path / "empty")], [".json"])
    with pytest.raises(CorpusError, match="a.txt is none of .json, .jsonl"):
        matched([str(tmp_path / "a.txt")], [".json", ".jsonl"])


def test_the_format_is_told_or_named(tmp_path):
    path = put(tmp_path / "a.json", SQUAD)
    assert _choose("squad", path).format.name == _choose("squad", path, form="squad").format.name == "squad"
    with pytest.raises(SpecError, match="has no format 'csv'; choose auto or one of squad, published"):
        _choose("squad", path, form="csv")
    with pytest.raises(SpecError, match="a.json: not in any format of task 'drop' .drop: official DROP JSON"):
        _choose("drop", path)
    lines = put(tmp_path / "b.jsonl", [{"passage": "x"}])
    with pytest.raises(SpecError, match="b.jsonl: not in that format of task 'squad' .published: JSON lines or Parquet"):
        _choose("squad", lines, form="published")


def test_two_formats_in_one_folder_are_not_mixed_and_other_files_are_counted(tmp_path):
    put(tmp_path / "a.json", SQUAD)
    put(tmp_path / "b.jsonl", [{"something": "else"}])
    assert _choose("squad", tmp_path).left_out == ("b.jsonl",)
    put(tmp_path / "b.jsonl", [ROW])
    with pytest.raises(SpecError, match="a.json: in format 'squad', but b.jsonl: in format 'published'"):
        _choose("squad", tmp_path)
    assert list(_choose("squad", tmp_path, form="published").files) == ["b.jsonl"]


def test_two_formats_of_one_kind_of_file_are_told_apart(tmp_path):
    put(tmp_path / "a.jsonl", [{"question": "q", "answers": ["a"], "passage": "p"}])
    put(tmp_path / "b.jsonl", [{"question_text": "q", "annotations": [], "document_text": "d"}])
    put(tmp_path / "c.jsonl", [{"something": "else"}])
    with pytest.raises(SpecError, match="in different formats: b.jsonl is nq-pages, a.jsonl is nq-open; give"):
        _choose("nq", tmp_path)


def test_damaged_files_are_named(tmp_path):
    path = put(tmp_path / "a.jsonl.gz", [ROW] * 9)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorpusError, match="a.jsonl.gz: cannot be read to its end"):
        Collected("squad", path)
    bad = put(tmp_path / "b.json", b'{"data": [{"title": "\xff", "paragraphs": []}]}')
    with pytest.raises(CorpusError, match="b.json: byte 21 is not UTF-8"):
        Collected("squad", bad)
    with pytest.raises(CorpusError, match="d.jsonl, line 1: not JSON .*nor are the lines after it"):
        Collected("squad", put(tmp_path / "d.jsonl", ["{", "["]))
    assert Collected("squad", put(tmp_path / "e.jsonl", ["{", ROW])).reasons == {"not_json": 1}
    lines = tmp_path / "c.jsonl.gz"
    lines.write_bytes(gzip.compress(b'{"text": "Tolm. It is", "value": "Tolm", "context": "Tolm.", "question": "What?"}\n\xff\n'))
    assert Collected("squad", lines).reasons == {"not_utf8": 1}


@pytest.mark.parametrize("document, answer, span", [
    ("in 1993 he had 3", "3", (15, 16)), ("3,000 or 2.3", "3", None), ("Japanese", "Japan", None), ("a JAPAN b", "Japan", (2, 7)),
    ("japan, Japan", "Japan", (7, 12)), ("(x+y) = z", "(x+y)", (0, 5)), ("$5 and 5", "5", (1, 2)), ("end 5.", "5", (4, 5)),
    ("anything", " ", None), ("Krull", " Krull ", (0, 5)), ("8,280,925", "280", None)])
def test_an_answer_is_whole_words(document, answer, span):
    assert find(document, answer) == span


def test_the_answer_that_the_document_holds_comes_first():
    assert found_first("Ida KRULL", ["Krall", "Krull", "Ida"]) == (("KRULL", "Krall", "Krull", "Ida"), (4, 9))
    assert found_first("Ida", ["Krull", ""]) is None
    assert distinct([" a", "a", "", "b "]) == ("a", "b")
