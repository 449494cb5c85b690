"""SWDE: the text of a page, values found in it, and both forms of ground truth."""

import pytest

from storage.errors import SpecError
from tasks.datasets.page_text import page_text
from tests.tasks.datasets.collecting import Collected, put

PAGE = """<html><head><title>The Copper
 Orchard</title><style>b {color: red}</style></head><body><script>var title = "Hidden";</script>
<h1>The  Copper&nbsp;Orchard</h1><p>by <b>Ana</b> Voss &amp; Jon<br>1971<!-- Director: nobody -->
<table><tr><td>Runtime<td>102 min</table><div>Pub<i>lisher</i>: Vey &#66;ooks"""


def test_a_page_as_it_is_seen():
    title, text = page_text(PAGE.encode())
    assert title == "The Copper Orchard"
    assert text == "The Copper Orchard\nby Ana Voss & Jon\n1971\nRuntime 102 min\nPublisher: Vey Books"


def test_bytes_are_decoded_as_the_page_says():
    page = '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1"><p>Café'
    assert page_text(page.encode("latin-1"))[1] == page_text(("\ufeff" + page).encode())[1] == "Café"


def test_a_page_nested_deeper_than_calls_may_be():
    assert page_text(b"<div>" * 3000 + b"deep")[1].strip() in ("deep", "")


def test_values_are_folded_like_the_page(tmp_path):
    put(tmp_path / "site/0004.htm.gz", PAGE)
    put(tmp_path / "groundtruth.jsonl", [
        {"page": "0004", "title": ["The Copper\n Orchard"], "author": ["Eve", "Ana Voss &amp; Jon"], "isbn_13": [],
         "publication_date": [": 1971"], "publisher": ["Lark Books"]}, {"page": "0005", "title": ["x"]}])
    found = Collected("swde", tmp_path)
    assert found["site/0004/title"].answers == ("The Copper Orchard",) and found.format == "swde"
    assert found["site/0004/author"].answers == ("Ana Voss & Jon", "Eve")
    dated = found["site/0004/publication_date"]
    assert (dated.answers, dated.cloze, dated.title) == (("1971",), "Publication date:", "The Copper Orchard")
    assert found.reasons == {"no_value": 1, "answer_not_in_document": 1, "no_document": 1}
    assert found.notes == {"values": 5, "values_found": 3}


def test_pages_of_one_name_need_their_site(tmp_path):
    put(tmp_path / "a/1.html", "<p>Ana Voss")
    put(tmp_path / "b/1.html", "<p>Ida Krull")
    put(tmp_path / "c/2.html", "<script>all()</script>")
    put(tmp_path / "groundtruth.jsonl", [{"page": "1", "author": ["Ana Voss"]}, {"page": "2", "author": ["x"]},
                                        {"page": "1", "site": "b", "author": "Ida Krull"}])
    found = Collected("swde", tmp_path)
    assert [record.id for record in found.records] == ["b/1/author"]
    assert found.reasons == {"ambiguous_page": 1, "empty_document": 1}


def test_the_published_archives(tmp_path):
    put(tmp_path / "movie/movie-lark(2)/0000.htm", PAGE)
    put(tmp_path / "movie/movie-lark(2)/0001.htm", "<p>Other")
    put(tmp_path / "groundtruth/movie/movie-lark-title.txt",
        "movie\tlark\ttitle\n2\t1\t1\t1\n0000\t1\tThe Copper Orchard\n0001\t0\t<NULL>\n")
    put(tmp_path / "groundtruth/movie/movie-lark-director.txt",
        "movie\tlark\tdirector\n2\t2\t3\t3\n0000\t2\tEve\tAna Voss\n0001\tmany\n")
    found = Collected("swde", tmp_path)
    assert found.format == "swde-original" and {record.cloze: record.answers for record in found.records} == {
        "Title:": ("The Copper Orchard",), "Director:": ("Ana Voss", "Eve")}
    assert found.reasons == {"no_value": 1, "wrong_type": 1}
    assert next(each for each in found.unusable if each.reason == "wrong_type").where.endswith("director.txt, line 4")


def test_pages_without_their_truth(tmp_path):
    put(tmp_path / "1.html", "<p>Ana Voss")
    with pytest.raises(SpecError, match="1.html: not in any format of task 'swde'.*groundtruth.jsonl"):
        Collected("swde", tmp_path)


def test_the_sample(shared):
    found = Collected("swde", shared / "data/swde_book")
    assert found.notes == {"values": 159, "values_found": 159} and len(found.records) == 150 and not found.unusable
