"""From a file of questions to scores and what people do with them, through the command line, as a person would."""

import json

import pytest

from storage.artifacts import Store
from tasks import pretrain
from tests.tasks.training_artifacts import pretrain_spec, rows_artifact, shards_artifact

pytestmark = pytest.mark.services       # every measuring command keeps a run in MLflow

PLACES = ("Tolm", "Varn", "Ostby", "Kell", "Murn", "Dray", "Senn", "Holt", "Quay", "Brim", "Lode", "Farr")
LIMITS = ("--set", "cloze.orders=[default,twice]", "--set", "cloze.document_tokens=200", "--set", "cloze.limit=6",
          "--set", "generation_tokens=4", "--set", "cloze.generation_tokens=4")


def squad(path, places=PLACES):
    """Articles of one paragraph and two questions each, in SQuAD's own format; one of them cannot be answered."""
    articles = []
    for number, place in enumerate(places):
        year = 1800 + 7 * number
        text = f"{place} is a town. The bridge of {place} was built in {year} by the mayor. People like it."
        articles.append({"title": place, "paragraphs": [{"context": text, "qas": [
            {"id": f"{number}a", "question": f"When was the bridge of {place} built?", "is_impossible": False,
             "answers": [{"text": str(year), "answer_start": text.index(str(year))}]},
            {"id": f"{number}b", "question": f"Who sold {place}?", "is_impossible": True, "answers": []}]}]})
    path.write_text(json.dumps({"version": "v2.0", "data": articles}), encoding="utf-8")
    return path


@pytest.fixture
def trained(home):
    """Ids of a checkpoint trained for twelve steps, and of the shards that carry its tokenizer."""
    store = Store()
    shards, rows = shards_artifact(store), rows_artifact(store)
    return pretrain.run(pretrain_spec(), store, rows=rows), pretrain.run(
        pretrain_spec(data="shards", global_batch_rows=4, micro_batch_rows=4, steps=6), store, shards=shards)


def test_from_a_file_of_questions_to_what_is_done_with_the_scores(reread, trained, tmp_path):
    source, checkpoint = squad(tmp_path / "dev.json"), trained[0]
    found = {}
    for strategy in ("left_pad", "iterate"):
        said = reread("evaluate", "--checkpoint", checkpoint, "--task", "squad", "--questions", str(source),
                      "--strategy", strategy, *LIMITS, "--json")
        assert said.code == 0, said.err
        found[strategy] = said.json["artifact"]
        assert {(row["order"], row["n"]) for row in said.json["scores"]} == {("default", 6), ("twice", 6)}
    store = Store()
    [questions] = store.list("questions")
    assert questions.counts["rejected"] == {"unanswerable": len(PLACES)}
    prompts = store.manifest(found["left_pad"]).inputs["prompts"]
    assert store.manifest(prompts).counts["tokenizer"] == "bytes", "counted with the model's own tokenizer"

    assert reread("rescore", found["left_pad"], "--metric", "f1", "--json").code == 0
    compared = reread("compare", found["left_pad"], found["iterate"], "--json")
    assert compared.code == 0 and compared.json["rows"], compared.err
    shown = reread("compare", found["left_pad"], found["iterate"]).out
    assert "\\n" not in shown and f"\ncontains: {found['left_pad']} minus {found['iterate']}" in shown
    assert reread("samples", found["left_pad"], str(tmp_path / "answers.jsonl")).code == 0
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert len(lines) == store.manifest(found["left_pad"]).counts["examples"]
    assert reread("harness-task", prompts, str(tmp_path / "tasks")).code == 0
    assert list((tmp_path / "tasks").glob("**/*.yaml"))


def test_text_and_speed_of_a_checkpoint(reread, trained):
    _, checkpoint = trained
    read = reread("perplexity", "--checkpoint", checkpoint, "--set", "split=validation", "--set", "minimum_tokens=4", "--json")
    assert read.code == 0 and read.json["rows"][0]["n"] > 0, read.err
    timed = reread("deploy", "--checkpoint", checkpoint, "--set", "lengths=[8,16]", "--set", "generation_tokens=2",
                   "--set", "repeats=1", "--set", "check_tokens=8", "--json")
    assert timed.code == 0 and [row["length"] for row in timed.json["rows"]] == [8, 16], timed.err
    assert all(row["reason"] is None and row["ttft_ms"] > 0 for row in timed.json["rows"])


@pytest.mark.parametrize("arguments, code, words", [
    (("evaluate", "--task", "sqad"), 2, "did you mean"),
    (("evaluate", "--task", "squad"), 2, "questions"),
    (("evaluate", "--task", "squad", "--questions", "nowhere.json"), 2, "nowhere.json"),
    (("evaluate", "--task", "squad", "--questions", "hub:a", "--questions", "hub:b"), 2, "one published set"),
    (("evaluate", "--questions", "dev.json"), 2, "--questions needs --task"),
    (("evaluate", "--prompts", "prompts-0123", "--questions", "dev.json"), 2, "--questions needs --task"),
    (("evaluate", "--task", "squad", "--questions", "dev.json", "--set", "cloze.template=jrt-2407", "--set",
      "cloze.orders=[repeat]"), 2, "jrt-2407"),
])
def test_a_mistake_is_told_before_any_work(reread, trained, tmp_path, monkeypatch, arguments, code, words):
    squad(tmp_path / "dev.json")
    monkeypatch.chdir(tmp_path)
    before = {one.id for one in Store().list()}
    said = reread(*arguments[:1], "--checkpoint", trained[0], *arguments[1:])
    assert said.code == code and words in said.err and "Traceback" not in said.err, said.err
    assert {one.id for one in Store().list()} == before


def test_two_places_for_questions_are_one_too_many(reread):
    said = reread("cloze", "--task", "squad", "--source", "dev.json", "--questions", "dev.json")
    assert said.code == 2 and "give one of them" in said.err
