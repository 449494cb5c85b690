"""FDA summaries: items beside documents, and the twelve attributes read off headings."""

import gzip
import json

import pytest

from tasks.datasets.fda_headings import ATTRIBUTES, values
from tests.tasks.datasets.collecting import Collected, put

SUMMARY = """510(k) SUBSTANTIAL EQUIVALENCE DETERMINATION
DECISION SUMMARY
A. 510(k) Number:
k060431
B. Purpose of Submission: New device
C. Analyte:
Glucose
in serum
D. Type of Test:
Not applicable
E. Applicant:
Page 2 of 4
Mirelle Optics
F. Proprietary and Established Names:
Halden Lens
G. Regulatory Information:
1. Regulation section:
21 CFR 866.5100
2. Classification:
II
3. Product Code:
NYO
4. Panel:
1
Immunology (82)
H. Intended Use:
J. Substantial Equivalence Information:
1. Predicate device name(s):
Alder Lens
2. Predicate K number(s):
k042678
3. Comparison with predicate:
2. Classification:
another table
"""
NEWER = """I Background Information:
A 510(k) Number
K212743
B Applicant
Mirelle Optics, Inc.
C Proprietary and Established Names
Halden Medium
D Regulatory Information
A table of codes
II Submission/Device Overview:
A Purpose for Submission:
To add
a claim
C Type of Test:
Culture medium
Food and Drug Administration
www.fda.gov
III Intended Use/Indications for Use:
A Tolm study was made
"""


def test_attributes_off_the_headings():
    found = {value.attribute: (value.value, value.reason) for value in values(SUMMARY)}
    assert found == {
        "510(k) number": ("k060431", None), "purpose for submission": ("New device", None),
        "measurand": ("Glucose", "value_over_several_lines"), "type of test": ("Not applicable", "no_value"),
        "applicant": ("Mirelle Optics", None), "proprietary and established names": ("Halden Lens", None),
        "regulation section": ("21 CFR 866.5100", None), "classification": ("II", None), "product code": ("NYO", None),
        "panel": ("Immunology (82)", None), "predicate device name": ("Alder Lens", None),
        "predicate 510(k) number": ("k042678", None)}
    assert set(found) == set(ATTRIBUTES)
    assert all(SUMMARY[value.start:].startswith(value.value) for value in values(SUMMARY))


def test_newer_summaries_have_headings_without_a_point():
    found = {value.attribute: (value.value, value.reason) for value in values(NEWER)}
    assert found == {
        "510(k) number": ("K212743", None), "applicant": ("Mirelle Optics, Inc.", None),
        "proprietary and established names": ("Halden Medium", None), "type of test": ("Culture medium", None),
        "purpose for submission": ("To add", "value_over_several_lines")}


def test_documents_alone(tmp_path):
    path = put(tmp_path / "a.jsonl.gz", [{"doc_id": "D1", "text": SUMMARY}, {"doc_id": "D2", "text": "No headings."},
                                         {"doc_id": "D3"}, "{", {"doc_id": "D4", "text": None}])
    found = Collected("fda", path)
    assert found.format == "fda-documents" and len(found.records) == 9
    assert found.reasons == {"answer_too_short": 1, "value_over_several_lines": 1, "no_value": 1, "no_attribute": 1,
                             "missing_field": 1, "not_json": 1, "wrong_type": 1}
    record = found["D1/product code"]
    assert (record.cloze, record.question, record.answers) == ("Product code:", "What is the product code?", ("NYO",))
    assert SUMMARY[slice(*record.span)] == "NYO"
    assert found["D1/proprietary and established names"].question == "What are the proprietary and established names?"


def test_text_files_of_a_folder(tmp_path):
    put(tmp_path / "docs/K1.txt.gz", SUMMARY)
    put(tmp_path / "docs/K2.txt", NEWER)
    found = Collected("fda", tmp_path / "docs")
    assert {record.document_id for record in found.records} == {"K1", "K2"}


def test_items_beside_documents(tmp_path):
    documents = put(tmp_path / "docs.jsonl.gz", [{"doc_id": "D1", "text": SUMMARY}, {"doc_id": "D2"},
                                                 {"doc_id": "D9", "text": "Nobody asks."}])
    def item(document, attribute, value):
        return {"doc_id": document, "attribute": attribute, "value": value}

    items = put(tmp_path / "items.jsonl", [
        item("D1", "classification", "II"), item("D1", "panel", "Immunology (82)"), item("D1", "applicant", "Nobody"),
        item("D2", "panel", "75"), item("D3", "panel", "Toxicology"), {"doc_id": "D1", "value": "x"}, {"attribute": "y"}])
    found = Collected("fda", documents, items)
    assert found.format == "fda-items" and [record.id for record in found.records] == ["D1/panel"]
    assert found.reasons == {"answer_too_short": 1, "answer_not_in_document": 1, "no_document": 2, "missing_field": 3}
    assert found.notes == {"documents_without_items": 1}
    assert any(each.where == f"{items}, line 6" and "'attribute'" in each.detail for each in found.unusable)


def test_the_samples(shared):
    data = shared / "data/fda_510k"
    found = Collected("fda", data / "docs.jsonl.gz", data / "items.jsonl")
    assert len(found.records) == 1118 and found.reasons == {"answer_too_short": 16} and not found.notes
    training = Collected("fda", data / "train_docs.jsonl.gz")
    assert len({record.document_id for record in training.records}) == 500 and len(training.records) == 4197


def test_rules_against_the_items(shared):
    """Every item is found with its own value. What the rules find beyond the items was read by eye (docs/data.md)."""
    data = shared / "data/fda_510k"
    items = {(item["doc_id"], item["attribute"]): item["value"]
             for item in map(json.loads, (data / "items.jsonl").read_text().splitlines())}
    with gzip.open(data / "docs.jsonl.gz", "rt") as file:
        documents = list(map(json.loads, file))
    mine = {(document["doc_id"], value.attribute): value.value for document in documents
            for value in values(document["text"]) if value.reason is None}
    right = sum(mine.get(name) == value for name, value in items.items())
    assert (len(items), right, len(mine)) == (1134, 1134, 1218)


@pytest.mark.parametrize("text", ["A novel test.\nB cells were counted.", "A. aureus was found", "", "\n\n"])
def test_prose_has_no_attributes(text):
    assert not list(values(text))
