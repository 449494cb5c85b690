"""The rewriter's quality on real questions, and the command that measures it."""

import json

import pytest

from tasks.datasets.records import Record, Unusable
from tasks.rewriting import measure
from tasks.tokenizers import load_tokenizer

SQUAD = ("data/squad_v2/dev-v2.0.part.json.gz", "data/squad_v1_xquad_en/xquad.en.part.json.gz")


def squad(path, *questions):
    """A file in SQuAD's format, one paragraph, each (question, answer)."""
    context = "Tom Reed built the tower of Veld in 1920."
    asked = [{"id": str(k), "question": question, "answers": [{"text": answer, "answer_start": context.index(answer)}]}
             for k, (question, answer) in enumerate(questions)]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "Veld", "paragraphs": [
        {"context": context, "qas": asked}]}]}))
    return str(path)


@pytest.mark.parametrize("sample", SQUAD)
def test_most_real_questions_become_valid_statements(shared, sample):
    path = shared / sample
    if not path.is_file():
        pytest.skip(f"the SQuAD sample is not here: {path}")
    quality = measure.measured(measure.read(str(path)), load_tokenizer("gpt2"))
    assert quality.records > 500 and quality.share >= 0.85
    assert quality.fallback / quality.records < 0.10


def test_counts_add_up_and_every_reject_has_its_reason():
    text = "Tom Reed built the tower of Veld in 1920."
    records = [Record("a", "d", text, "Who built the tower?", ("Tom Reed",)), Record("b", "d", text, "Is it old?", ("1920",)),
               Record("c", "d", text, "Who was Tom Reed?", ("Tom Reed",)), Unusable("e", "unanswerable"),
               Record("f", "d", text, 'Blorp the "what" did?', ("Veld",))]
    quality = measure.measured(records, load_tokenizer("gpt2"))
    assert (quality.records, quality.passed, quality.fallback) == (4, 2, 1) and quality.share == 0.5
    assert quality.rejected == {"yes_no_question": 1, "answer_in_cloze": 1, "reader: unanswerable": 1}


class Whole:
    """A tokenizer of one id a text: no prompt's ids begin those of a longer text."""

    def encode_batch(self, texts):
        return [[text] for text in texts]


def test_tokens_that_change_at_the_answer_are_a_reject():
    asked = Record("a", "d", "Tom Reed built it.", "Who built it?", ("Tom Reed",))
    assert measure.measured([asked], Whole()).rejected == {"tokens_change_at_answer": 1}


def test_the_command_prints_a_line_a_file_and_draws_the_same_questions(tmp_path, capsys):
    path = squad(tmp_path / "one.json", ("Who built the tower?", "Tom Reed"), ("When was the tower built?", "1920"))
    assert measure.main([path]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["file", "records", "pass", "%"] and line.split() == ["one.json", "2", "100.0", "0.0"]
    assert measure.main(["--draw", "9", path]) == 0
    drawn = capsys.readouterr().out
    assert "Who built the tower? -> The person who built the tower was [Tom Reed]\n" in drawn and drawn.count("\n") == 2
    assert measure.main(["--draw", "9", path]) == 0 and capsys.readouterr().out == drawn


def test_mistakes_of_the_command_line_are_said(tmp_path, capsys):
    assert measure.main([]) == 2 and "usage" in capsys.readouterr().err
    assert measure.main(["--help"]) == 2 and "usage" in capsys.readouterr().err
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert measure.main([str(other)]) == 2 and "other.json" in capsys.readouterr().err
