"""TriviaQA-RC: a folder and its archive say the same; aliases; documents that are not there."""

import io
import json
import tarfile

import pytest

from storage.errors import CorpusError, SpecError
from tests.tasks.datasets.collecting import Collected, put

ENGLAND = "The town of Tolm is where Dame Ida was born. EOFORWIC is not."


def _question(identifier, value, aliases=(), pages=(), results=()):
    return {"QuestionId": identifier, "Question": f"Where is {identifier}?",
            "Answer": {"Value": value, "Aliases": list(aliases)},
            "EntityPages": [{"Filename": name, "Title": name[:-4]} for name in pages],
            "SearchResults": [{"Filename": name, "Title": ""} for name in results]}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "triviaqa"
    put(root / "qa/wikipedia-dev.json", {"Data": [
        _question("tc_1", "Tolm", ["Tolmia"], ["England.txt", "Nowhere.txt"]),
        _question("tc_2", "York", ["Eoforwic"], ["England.txt"]),
        _question("tc_3", "Towns", [], ["England.txt"])]})
    put(root / "qa/web-dev.json", {"Data": [_question("tc_1", "Tolm", [], [], ["1/1_2.txt"]), _question("tc_4", "Tolm")]})
    put(root / "qa/verified-wikipedia-dev.json", {"Data": [_question("tc_1", "Tolm", [], ["England.txt"])]})
    put(root / "evidence/wikipedia/England.txt", ENGLAND)
    put(root / "evidence/web/1/1_2.txt", "Nothing but Tolm.")
    return root


def _archived(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, "triviaqa-rc")
    return path


def test_questions_of_every_document(folder):
    found = Collected("triviaqa", folder)
    assert {record.id for record in found.records} == {"tc_1/wikipedia/England.txt", "tc_2/wikipedia/England.txt",
                                                     "tc_1/web/1/1_2.txt"}
    assert found["tc_2/wikipedia/England.txt"].answers == ("EOFORWIC", "York", "Eoforwic")
    assert found["tc_1/wikipedia/England.txt"].title == "England" and found["tc_1/web/1/1_2.txt"].column == "web"
    assert found.reasons == {"no_document": 2, "answer_not_in_document": 1}      # Nowhere.txt; tc_4 has no page; Towns
    assert any("Nowhere.txt" in each.where for each in found.unusable)


def test_the_archive_says_what_the_folder_says(folder, tmp_path):
    there, packed = Collected("triviaqa", folder), Collected("triviaqa", _archived(folder, tmp_path / "rc.tgz"))
    def facts(found):
        return sorted((record.id, record.document, record.answers, record.column) for record in found.records)

    assert facts(there) == facts(packed) and there.reasons == packed.reasons and there.notes == packed.notes


def test_one_file_of_questions_with_the_evidence(folder):
    found = Collected("triviaqa", folder / "qa/web-dev.json", folder / "evidence")
    assert {record.column for record in found.records} == {"web"}
    with pytest.raises(SpecError, match="not in any format of task 'triviaqa'"):
        Collected("triviaqa", folder / "qa/web-dev.json")


def test_damaged_archives(tmp_path):
    (tmp_path / "a.tgz").write_bytes(b"nothing packed")
    with pytest.raises(CorpusError, match="a.tgz: is no readable archive"):
        Collected("triviaqa", tmp_path / "a.tgz")
    with tarfile.open(tmp_path / "b.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("readme.txt")
        archive.addfile(entry, io.BytesIO(b""))
    with pytest.raises(CorpusError, match="holds no qa"):
        Collected("triviaqa", tmp_path / "b.tgz")
    with tarfile.open(tmp_path / "c.tgz", "w:gz") as archive:
        data = json.dumps({"Data": 3}).encode()
        entry = tarfile.TarInfo("qa/web-dev.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    with pytest.raises(CorpusError, match="c.tgz, qa/web-dev.json: has no list 'Data'"):
        Collected("triviaqa", tmp_path / "c.tgz")


def test_the_sample(shared):
    found = Collected("triviaqa", shared / "data/triviaqa")
    assert not found.unusable and len({record.document_id for record in found.records}) == 19
    assert len({record.id.partition("/")[0] for record in found.records}) == 9
