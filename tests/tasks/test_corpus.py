"""Corpora: what each source reads, what a bad record says, and splits without near-copies."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from storage.artifacts import Store
from storage.errors import CorpusError
from storage.shards import RowTable
from tasks import corpus
from tasks.deduplicate import jaccard, shingles
from tasks.sources import pydocs
from tasks.specs import CorpusSpec

LONG = "A sentence that is told at some length, number {}, so that it counts as a document. "


def _files(**changes) -> CorpusSpec:
    return CorpusSpec(**{"source": "files", "minimum_characters": 20, "deduplicate": False} | changes)


def _built(spec, folder):
    counts = corpus.build(spec, folder)
    return counts, RowTable(folder / corpus.FILE)


@pytest.fixture
def texts(tmp_path):
    """Three kinds of files, two of them also gzipped."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "one.txt").write_text("\ufeff" + LONG.format(1) + "  \r\nSecond line\r\n\r\n", encoding="utf-8")
    (folder / "two.txt.gz").write_bytes(gzip.compress(LONG.format(2).encode()))
    lines = [json.dumps({"text": LONG.format(k), "n": k}) for k in (3, 4)]
    (folder / "three.jsonl").write_text(lines[0] + "\n\n" + lines[1])
    (folder / "four.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": LONG.format(5) + "é"}).encode()))
    pq.write_table(pa.table({"text": [LONG.format(6), LONG.format(7), "short"]}), folder / "five.parquet")
    return folder


# ------------------------------------------------------------------------------------------------------------ files
def test_every_kind_of_file_is_read(texts, tmp_path):
    counts, table = _built(_files(paths=[str(texts / "*")]), tmp_path)
    found = dict(zip(table.column("text"), table.column("source")))
    assert found == {
        (LONG.format(1).rstrip() + "\nSecond line"): "one.txt", LONG.format(2).rstrip(): "two.txt.gz",
        LONG.format(3).rstrip(): "three.jsonl", LONG.format(4).rstrip(): "three.jsonl",
        LONG.format(5) + "é": "four.jsonl.gz", LONG.format(6).rstrip(): "five.parquet",
        LONG.format(7).rstrip(): "five.parquet"}
    assert counts["documents"] == 7 and counts["read"]["files"] == 5 and counts["left_out"] == {"too_short": 1}
    assert counts["by_source"]["three.jsonl"] == 2 and sum(counts["by_split"].values()) == 7
    assert table.column("id") == sorted(table.column("id"))


BAD = {
    "not UTF-8": ("x.jsonl", b'{"text": "' + LONG.encode() + b'"}\n{"text": "\xff"}\n', "x.jsonl, line 2: byte 10"),
    "not JSON": ("x.jsonl", b'{"text": "' + LONG.encode() + b'"}\n{"text": \n', "x.jsonl, line 2: not JSON"),
    "no text column": ("x.jsonl", b'{"text": "' + LONG.encode() + b'"}\n{"body": "b"}\n', "line 2: has no 'text' .it has 'body'"),
    "not text": ("x.jsonl", b'{"text": "' + LONG.encode() + b'"}\n{"text": null}\n', "line 2: 'text' is a NoneType"),
    "not Unicode": ("x.jsonl", b'{"text": "' + LONG.encode() + b'"}\n{"text": "a\\ud800"}\n', "line 2: character 1 of 'text'"),
    "damaged file": ("x.txt.gz", gzip.compress(b"a" * 999)[:-9], "x.txt.gz: cannot be read"),
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_records_are_named_or_counted(tmp_path, reason):
    name, content, message = BAD[reason]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good.txt").write_text(LONG)
    with pytest.raises(CorpusError, match=message) as raised:
        corpus.build(_files(paths=[str(tmp_path / "*")]), tmp_path / "out")
    assert "on_bad_record=skip" in str(raised.value)
    counts, table = _built(_files(paths=[str(tmp_path / "*")], on_bad_record="skip"), tmp_path / "out")
    assert counts["left_out"] == {f"bad: {reason}": 1} and len(table) == (1 if "gz" in name else 2)


def test_bad_text_file_and_bad_parquet(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"abc\xff")
    with pytest.raises(CorpusError, match="x.txt: byte 3 is not UTF-8"):
        corpus.build(_files(paths=[str(tmp_path / "x.txt")]), tmp_path)
    (tmp_path / "y.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(CorpusError, match="y.parquet: is not readable Parquet"):
        corpus.build(_files(paths=[str(tmp_path / "y.parquet")]), tmp_path)


def test_parquet_names_its_columns_and_rows(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [LONG, None], "title": ["a", "b"]}), tmp_path / "x.parquet")
    with pytest.raises(CorpusError, match="x.parquet: has no column 'body' .it has 'text', 'title'"):
        corpus.build(_files(paths=[str(tmp_path / "x.parquet")], text_column="body"), tmp_path)
    with pytest.raises(CorpusError, match="x.parquet, row 2: 'text' is a NoneType"):
        corpus.build(_files(paths=[str(tmp_path / "x.parquet")]), tmp_path)


def test_mistakes_name_the_glob_the_suffix_and_the_emptiness(tmp_path):
    with pytest.raises(CorpusError, match=r"no file matches .*\*.nothing"):
        corpus.plan(_files(paths=[str(tmp_path / "*.nothing")]))
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(CorpusError, match="a.pdf is none of .txt"):
        corpus.plan(_files(paths=[str(tmp_path / "*")]))
    (tmp_path / "b.txt").write_text("short")
    with pytest.raises(CorpusError, match="no document is left.*'too_short': 1"):
        corpus.build(_files(paths=[str(tmp_path / "b.txt")]), tmp_path)


def test_identity_is_content_not_place(texts, tmp_path):
    spec = _files(paths=[str(texts / "*.txt")])
    moved = tmp_path / "moved"
    texts.rename(moved)
    there = corpus.plan(_files(paths=[str(moved / "*.txt")]))
    moved.rename(texts)
    assert corpus.plan(spec) == there
    (texts / "one.txt").write_text(LONG.format(99))
    assert corpus.plan(spec) != there


# ------------------------------------------------------------------------------------------------- splits, duplicates
def test_splits_have_their_shares_and_depend_on_the_text_alone():
    spec = _files(paths=["x"], validation_share=0.2, test_share=0.3)
    splits = {corpus._hash(str(k)): corpus.split_of(corpus._hash(str(k)), "s", spec) for k in range(4000)}
    counts = Counter(splits.values())
    for split, share in (("validation", 0.2), ("test", 0.3), ("train", 0.5)):
        assert abs(counts[split] - share * 4000) < 4 * np.sqrt(share * (1 - share) * 4000)
    first = [split for _, split in sorted(splits.items())[:400]]
    assert 150 < first.count("train") < 250, "the split must not follow the order of the corpus"


def test_no_split_holds_a_near_copy_of_anothers_text(tmp_path):
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcdefgh"), 5)) for _ in range(500)]
    texts = []
    for _ in range(100):
        text = draw.choice(words, 150)
        for changes in (0, 0, 2, 3):
            copy = text.copy()
            copy[draw.integers(0, 150, changes)] = "other"
            texts.append(" ".join(copy))
    with open(tmp_path / "x.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    spec = _files(paths=[str(tmp_path / "x.jsonl")], deduplicate=True, validation_share=0.3, test_share=0.3)
    counts, table = _built(spec, tmp_path)
    assert counts["left_out"]["exact_duplicates"] >= 100 and counts["left_out"]["near_duplicates"] > 50
    assert counts["documents"] + sum(counts["left_out"].values()) == 400
    sets = [shingles(text) for text in table.column("text")]
    assert max(jaccard(a, b) for k, a in enumerate(sets) for b in sets[:k]) < 0.8
    again, _ = _built(spec, tmp_path / "again")
    assert (tmp_path / "again" / corpus.FILE).read_bytes() == (tmp_path / corpus.FILE).read_bytes()
    assert again == counts


def test_maximum_keeps_the_first_by_hash(texts, tmp_path):
    _, everything = _built(_files(paths=[str(texts / "*")]), tmp_path / "a")
    counts, some = _built(_files(paths=[str(texts / "*")], maximum_documents=3), tmp_path / "b")
    assert some.column("id") == everything.column("id")[:3] and counts["left_out"]["beyond_maximum"] == 4


# ----------------------------------------------------------------------------------------------------------- pydocs
CODE = b'''"""Module
    text."""
class A:
    """Class text."""
    def f(self):
        """
        Method:

            indented
        """
        def inner(): "inner"
if True:
    async def g():
        r"""Async \\d."""
try:
    pass
except ValueError:
    def h(): "in a handler"
x = "no docstring"
match x:
    case "a":
        def m(): "in a case"
'''


def test_docstrings_are_dedented_and_found_wherever_statements_are():
    assert pydocs.docstrings(CODE) == ["Module\ntext.", "Class text.", "Method:\n\n    indented", "inner",
                                       "Async \\d.", "in a handler", "in a case"]
    with pytest.raises(SyntaxError):
        pydocs.docstrings(b"def f(:")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Two distributions on the path, one of them held out."""
    for package, text in (("alpha-one", "first"), ("beta", "second")):
        module = package.replace("-", "_")
        (tmp_path / module / "tests").mkdir(parents=True)
        info = tmp_path / f"{module}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n{module}/broken.py,,\n{module}/tests/test_x.py,,\n")
        (tmp_path / module / "__init__.py").write_text(f'"""{text} {"word " * 60}"""\ndef f():\n    "short"\n'
                                                       'raise RuntimeError("imported!")\n')
        (tmp_path / module / "broken.py").write_text("def f(:\n")
        (tmp_path / module / "tests/test_x.py").write_text(f'"""in a test {"word " * 60}"""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    return CorpusSpec(packages=["Alpha_One"], held_out_packages=["beta"])


def test_installed_docstrings_with_a_held_out_package(installed, tmp_path):
    assert pydocs.resolve(installed) == {"packages": {"alpha-one": "1.5", "beta": "1.5"}}
    counts, table = _built(installed, tmp_path / "out")
    assert {(source, split == "held_out") for source, split in zip(table.column("source"), table.column("split"))} == {
        ("alpha-one/alpha_one/__init__.py", False), ("beta/beta/__init__.py", True)}
    assert counts["left_out"] == {"files_that_do_not_parse": 2, "too_short": 2, "exact_duplicates": 0,
                                  "near_duplicates": 0}
    assert counts["read"]["files"] == 4 and counts["by_source"] == {"alpha-one": 1, "beta": 1}


def test_identity_has_the_versions(installed, tmp_path):
    before = corpus.plan(installed)
    metadata = tmp_path / "beta-1.5.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("1.5", "1.6"))
    assert corpus.plan(installed) != before
    assert corpus.plan(installed.model_copy(update={"text_column": "unused"})) == corpus.plan(installed)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(CorpusError, match="not installed: no-such-thing"):
        corpus.plan(CorpusSpec(packages=["no-such-thing"]))


def test_real_packages_write_attribute_lines(tmp_path):
    """networkx is what the held-out column of the quick study rests on."""
    from tasks.prompts import askable

    counts, table = _built(CorpusSpec(packages=["joblib"]), tmp_path)
    held_out = [text for text, split in zip(table.column("text"), table.column("split")) if split == "held_out"]
    assert counts["by_split"]["held_out"] == len(held_out) > 800
    assert sum(bool(askable(text)) for text in held_out) > 600


# ------------------------------------------------------------------------------------------------------- hugging face
def test_data_sets_from_local_folders(tmp_path):
    import datasets

    rows = datasets.Dataset.from_dict({"body": [LONG.format(k) for k in range(5)] + [None]})
    datasets.DatasetDict({"train": rows, "other": rows.select([0])}).save_to_disk(str(tmp_path / "saved"))
    spec = CorpusSpec(source="huggingface", dataset=str(tmp_path / "saved"), text_column="body", minimum_characters=20,
                      deduplicate=False, on_bad_record="skip")
    counts, table = _built(spec, tmp_path / "out")
    assert counts["documents"] == 5 and counts["left_out"] == {"bad: not text": 1}
    assert set(table.column("source")) == {"saved"}
    assert _built(spec.model_copy(update={"dataset_split": "other"}), tmp_path / "o")[0]["documents"] == 1
    for change, message in (({"on_bad_record": "error"}, "row 5: 'body' is a NoneType"),
                            ({"text_column": "text"}, "has no column 'text' .it has 'body'"),
                            ({"dataset_split": "dev"}, "has no split 'dev'; it has train, other")):
        with pytest.raises(CorpusError, match=message):
            corpus.build(spec.model_copy(update=change), tmp_path / "out")


def test_a_data_set_that_is_not_there(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CorpusError, match="no local folder, and the hub does not tell its revision"):
        corpus.plan(CorpusSpec(source="huggingface", dataset="no/such-data-set"))


def test_run_makes_an_artifact_once_under_the_planned_name(texts, tmp_path):
    store, spec = Store(tmp_path / "home"), _files(paths=[str(texts / "*")])
    planned = corpus.plan(spec, store)
    assert not store.exists(planned) and corpus.run(spec, store) == planned
    manifest = store.manifest(planned)
    assert [entry["path"] for entry in manifest.files] == [corpus.FILE] and manifest.counts["documents"] == 7
    assert set(manifest.spec["files"]) == {path.name for path in texts.iterdir()}
    assert corpus.run(spec, store) == planned and store.manifest(planned).created == manifest.created
