"""The questions stage with a model behind an endpoint: it stops with the server, goes on where it was, says what it cost,
and writes the key nowhere.
"""

import json

import pytest

from storage.artifacts import Store
from storage.errors import ConfigError
from storage.shards import RowTable
from tasks import questions
from tasks.specs import QuestionsSpec
from tests.tasks.rewriting.model_server import Say, clozes, good, last_turn, records, serving, spec

KEY = "sk-stage-9b1f"


def write_squad(path, some):
    articles = [{"title": record.id, "paragraphs": [{"context": record.document, "qas": [{
        "id": record.id, "question": record.question,
        "answers": [{"text": record.answers[0], "answer_start": record.document.index(record.answers[0])}]}]}]}
        for record in some]
    path.write_text(json.dumps({"version": "1.1", "data": articles}))


def test_the_stage_stops_goes_on_and_keeps_the_key_to_itself(home, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("REWRITER_TEST_KEY", KEY)
    monkeypatch.setattr("storage.progress.INTERVAL", 0.0)
    write_squad(tmp_path / "train.json", records(20))
    up = {"until": 8}

    def script(number, body):
        if number > up["until"]:
            return Say(f"down, {KEY}", status=503)
        return "It is a secret" if last_turn(body)[1] == "in year 3" else good(number, body)

    with serving(script) as server:
        asked = QuestionsSpec(task="squad", paths=(str(tmp_path / "train.json"),),
                              rewriter=spec(server.url, tries=1, concurrency=1, price_in=5.0))
        with pytest.raises(ConfigError, match=r"HTTP 503: .*down, \[key\].*8 of the 20 replies wanted so far are kept"):
            questions.run(asked, Store())
        up["until"] = 1000
        identifier = questions.run(asked, Store())
        assert len(server.questions) == 21 and questions.run(asked, Store()) == identifier
        assert len(server.questions) == 21
    counts = Store().manifest(identifier).counts
    assert counts["rewriter"] == {"requests": 12, "cached": 8, "tokens_in": 2400, "tokens_out": 120, "cost": 0.012,
                                  "retries": 0, "failed": 1}
    assert counts["rejected"] == {"answer_not_at_end": 1} and counts["questions"] == 19
    written = RowTable(Store().path(identifier) / "questions.arrow").column("cloze")
    assert list(written) == [cloze for k, cloze in enumerate(clozes(records(20))) if k != 3]
    shown = "".join(capfd.readouterr())
    assert "rewrite: 20/20 questions" in shown and "8 from the cache, 2,400 + 120 tokens, cost 0.0120" in shown
    files = [path for path in home.rglob("*") if path.is_file()]
    assert len(files) >= 4 and KEY not in shown
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
