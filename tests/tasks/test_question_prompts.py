"""Prompts of questions about documents: budgets that keep answer and question, and one outcome for every odd input."""

import json
import time
from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from storage.artifacts import Store
from storage.errors import CorpusError, SpecError, TokenizerError
from storage.shards import RowTable, ShardWriter
from tasks import cloze
from tasks.evals.base import get_task
from tasks.specs import ORDERS, ClozeSpec
from tasks.tokenizers import load_tokenizer
from tests.tasks.question_documents import by_item, prompts_of, question_rows

TASKS = ("fda", "swde", "nq", "squad", "triviaqa", "drop")
SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "document_id", "title", "document", "question", "cloze")]
                   + [("answers", pa.list_(pa.string())), ("column", pa.string()), ("keep_start", pa.int32()),
                      ("keep_end", pa.int32()), ("released", pa.string())])


def artifact(store, rows, schema=SCHEMA):
    def build(folder):
        with ShardWriter(folder / "questions.arrow", schema) as writer:
            for row in rows:
                writer.append({name: value for name, value in asdict(row).items() if name in schema.names})

    return store.produce("questions", {"of": len(rows), "columns": schema.names}, {}, "0", build)


def first_column(task):
    rows = question_rows(task)
    return [row for row in rows if row.column == rows[0].column]


# ----------------------------------------------------------------------------------------------------------- budgets
@pytest.mark.parametrize("template", ["clean", "jrt-2407"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("budget", ["document", "total"])
def test_answer_and_question_survive_every_cut(task, template, budget):
    """Of documents of one line, forty times the budget."""
    held, total = load_tokenizer("gpt2"), 420
    rows = [row for row in question_rows(task, documents=8, long=True) if row.column == question_rows(task, 1)[0].column]
    orders = ("default", "twice") if template != "clean" else ORDERS
    counts = cloze.Written()
    found = prompts_of(task, rows=rows, held=held, orders=orders, template=template, budget=budget, document_tokens=100,
                       total_tokens=total, generation_tokens=16, limit=3, counts=counts)
    assert not counts.rejected and sum(counts.items.values()) == 9 == counts.notes["document_cut"]
    by_id = {row.id: row for row in rows}
    for row in found:
        asked = by_id[row.id]
        before = row.prompt.removesuffix(row.tail)
        assert row.tail == asked.cloze and row.prompt.endswith(asked.cloze)
        assert row.tokens + 16 + (template == "clean") <= total
        assert (row.answers[0] in before) == (row.control == "none")
        if row.order in ("question_first", "twice"):
            first = "Information about" if template != "clean" and task in ("fda", "swde") else asked.question
            assert row.prompt.startswith(first)
    if budget == "total":
        longest = max(row.tokens for row in found if row.control == "none")
        assert longest > total - 17 - 60                          # no more is lost than a sentence or two in each copy


def test_a_document_that_fits_is_shown_whole_in_every_budget():
    for budget in ("document", "total"):
        rows, counts = question_rows("squad"), cloze.Written()
        by_id = {row.id: row for row in rows}
        for row in prompts_of("squad", rows=rows, budget=budget, orders=("default",), counts=counts):
            if row.control == "none":
                assert row.prompt == f"{by_id[row.id].document}\n\n{by_id[row.id].cloze}"
        assert not counts.notes


def test_a_prompt_over_its_budget_is_counted_and_never_cut_at_its_beginning():
    counts = cloze.Written()
    found = prompts_of("squad", orders=("question_first", "twice"), total_tokens=700, generation_tokens=20, limit=None,
                       counts=counts)
    assert counts.rejected["prompt_too_long"] > 0
    assert counts.rejected["prompt_too_long"] + sum(counts.items.values()) == len(question_rows("squad"))
    assert all(row.tokens <= 679 for row in found)
    asked = {row.id: row.question for row in question_rows("squad")}
    assert all(row.prompt.startswith(asked[row.id] + "\n") for row in found)


@pytest.mark.timeout(60)
def test_a_document_of_two_hundred_thousand_tokens_is_asked_in_seconds():
    held, rows = load_tokenizer("gpt2"), question_rows("squad", documents=3)
    filling = "Nothing of interest was reported about the river in that year. " * 17_000
    huge = f"{filling}{rows[0].document} {filling}".replace("\n", " ")
    at = huge.index(rows[0].answers[0])
    rows = [replace(rows[0], document=huge, keep_start=at, keep_end=at + len(rows[0].answers[0])), *rows[3:]]
    assert len(held.encode(huge)) > 200_000
    began = time.process_time()
    counts = cloze.Written()
    found = prompts_of("squad", rows=rows, held=held, orders=("default", "twice"), document_tokens=512, counts=counts)
    assert time.process_time() - began < 10
    assert not counts.rejected and counts.notes == {"document_cut": 1}
    shown = by_item(found)[rows[0].id]["default", "none"]
    assert rows[0].answers[0] in shown.prompt and 480 < shown.tokens < 540


# ----------------------------------------------------------------------------------------------------------- odd inputs
@pytest.mark.parametrize("change, reason", [
    ({"document": " \n "}, "empty_document"),
    ({"question": ""}, "empty_question"),
    ({"cloze": " "}, "empty_cloze"),
    ({"answers": ("   ",)}, "no_answer"),
    ({"document": "Something else altogether.", "keep_start": -1, "keep_end": -1}, "answer_not_in_document"),
])
def test_a_question_that_cannot_be_asked_is_counted_under_one_reason(change, reason):
    rows = first_column("squad")
    counts, whole = cloze.Written(), cloze.Written()
    prompts_of("squad", rows=rows, limit=None, counts=whole, orders=("default",))
    found = prompts_of("squad", rows=[replace(rows[0], **change), *rows[1:]], limit=None, counts=counts, orders=("default",))
    assert counts.rejected == {reason: 1} and not whole.rejected
    assert rows[0].id not in by_item(found) and sum(counts.items.values()) == len(rows) - 1


@pytest.mark.parametrize("place", [(-1, -1), (10, 10**6), (9, 9)])
def test_an_answer_is_found_where_its_place_is_not_given_or_wrong(place):
    rows = question_rows("squad", documents=8, long=True)
    settings = {"orders": ("default",), "document_tokens": 80, "limit": None}
    right = [row for row in prompts_of("squad", rows=rows, **settings) if row.id == rows[0].id]
    rows[0] = replace(rows[0], keep_start=place[0], keep_end=place[1])
    assert right and [row for row in prompts_of("squad", rows=rows, **settings) if row.id == rows[0].id] == right
    rows[1] = replace(rows[1], answers=(rows[1].answers[0].upper(),), keep_start=-1, keep_end=-1)
    [shown] = [row.prompt for row in prompts_of("squad", rows=rows, **settings)
               if row.id == rows[1].id and row.control == "none"]
    assert rows[1].answers[0].lower() in shown.lower()


def test_white_space_around_a_document_moves_its_answer_along():
    rows = first_column("squad")
    moved = [replace(row, document=f" \n\n{row.document}  ", keep_start=row.keep_start + 3, keep_end=row.keep_end + 3)
             for row in rows]
    settings = {"orders": ("default",), "document_tokens": 60, "limit": None}
    assert prompts_of("squad", rows=moved, **settings) == prompts_of("squad", rows=rows, **settings)


def test_an_answer_that_does_not_fit_its_budget_is_counted():
    counts = cloze.Written()
    rows = first_column("squad")
    long = " ".join(["wordy"] * 80)
    rows[0] = replace(rows[0], document=f"{rows[0].document}\n{long}", answers=(long,), keep_start=len(rows[0].document) + 1,
                      keep_end=len(rows[0].document) + 1 + len(long))
    prompts_of("squad", rows=rows, counts=counts, limit=None, orders=("default",))
    assert counts.rejected == {"answer_does_not_fit": 1}


def test_another_document_is_no_control_if_what_is_shown_of_it_holds_the_answer():
    """One holds it at its beginning; another far behind the cut, which no prompt shows."""
    asked, told, far = (first_column("squad")[3 * k] for k in range(3))
    [answer] = asked.answers
    filling = " Nothing of interest was said about the river." * 30
    told = replace(told, document=f"{answer} is said here. {told.document}", keep_start=-1)
    far = replace(far, document=f"{far.document}{filling} {answer} is said here.")
    for rows, wanted in (([asked, told, far], {asked.id, told.id, far.id}), ([asked, told], {told.id})):
        cells = by_item(prompts_of("squad", rows=rows, orders=("default",), document_tokens=400, limit=None))
        assert set(cells) == wanted
        assert all(answer not in found["default", "other"].prompt for item, found in cells.items() if item == asked.id)
    counts = cloze.Written()
    prompts_of("squad", rows=[asked, told], orders=("default",), counts=counts)
    assert counts.rejected == {"no_other_document": 1}


def test_tokens_that_change_at_the_answer_are_a_reason_or_under_the_released_template_a_note():
    from tests.tasks.test_cloze import Greedy

    settings, counts, noted = {"held": Greedy(), "orders": ("default",), "limit": None}, cloze.Written(), cloze.Written()
    assert prompts_of("squad", counts=counts, **settings) == []        # the cloze alone is odd, and so is the control's prompt
    assert counts.rejected == {"tokens_change_at_answer": len(question_rows("squad"))}
    found = by_item(prompts_of("squad", template="jrt-2407", counts=noted, **settings))
    odd = sum(len(cells["default", "none"].prompt) % 2 for cells in found.values())
    assert not noted.rejected and noted.notes["tokens_change_at_answer"] == odd and 0 < odd < len(question_rows("squad"))


@pytest.mark.parametrize("settings, message", [
    ({"task": "sqad"}, "there is no eval task 'sqad' \\(did you mean 'squad'\\?\\); choose one of .*squad"),
    ({"task": "pydocs", "template": "jrt-2407"}, "task 'pydocs' has no template 'jrt-2407'; it has clean"),
    ({"task": "squad", "template": "jrt-2407", "orders": ("default", "question_first")},
     "default and twice alone; leave out question_first, or use template 'clean'"),
    ({"task": "squad", "budget": "released"}, "goes with template 'jrt-2407'"),
    ({"task": "squad", "tokenizer": "bpe:1024"}, "leave `tokenizer` out and give the shards artifact"),
    ({"task": "squad", "tokenizer": "gpt3"}, "choose gpt2, bytes or hf:"),
    ({"task": "squad", "tokenizer": "ids:100"}, "choose gpt2, bytes or hf:"),
])
def test_what_cannot_be_asked_is_refused_before_any_work(settings, message):
    with pytest.raises(SpecError, match=message):
        cloze.resolve(ClozeSpec(**settings))


def test_released_orders_are_the_default_of_the_released_template():
    assert cloze.resolve(ClozeSpec(task="squad", template="jrt-2407"))[2].orders == ("default", "twice")


# ----------------------------------------------------------------------------------------------------------- artifacts
def test_questions_become_prompts_once(home):
    store, rows = Store(), first_column("squad")
    questions = artifact(store, rows)
    spec = ClozeSpec(task="squad", tokenizer="bytes", limit=4, document_tokens=400)
    planned = cloze.plan(spec, store, questions=questions)
    made = cloze.run(spec, store, questions=questions)
    assert planned == made == cloze.run(spec, store, questions=questions, corpus="corpus-0", shards="shards-0")
    manifest = store.manifest(made)
    assert manifest.inputs == {"questions": questions} and manifest.counts["tokenizer"] == "bytes"
    assert manifest.counts["documents"] == {"all": 4} and manifest.counts["notes"] == {}
    table = RowTable(store.path(made) / "prompts.arrow")
    assert table.column("prompt") == [row.prompt for row in prompts_of("squad", limit=4, orders=spec.orders, rows=rows)]
    released = cloze.run(spec.model_copy(update={"template": "jrt-2407", "orders": ("default",)}), store, questions=questions)
    assert store.manifest(released).counts["end_of_text_first"] is False
    assert manifest.counts["end_of_text_first"] is True


def test_what_is_missing_is_named(home):
    store = Store()
    with pytest.raises(SpecError, match="task 'squad' needs the questions artifact; pass its id"):
        cloze.run(ClozeSpec(task="squad", tokenizer="bytes"), store)
    with pytest.raises(SpecError, match="set `tokenizer` .gpt2, bytes or hf:<name>., or give a shards artifact"):
        cloze.run(ClozeSpec(task="squad"), store, questions="questions-0")
    less = pa.schema([each for each in SCHEMA if each.name != "keep_end"])
    with pytest.raises(CorpusError, match="has no column keep_end"):
        cloze.run(ClozeSpec(task="squad", tokenizer="bytes"), store, questions=artifact(store, first_column("squad"), less))


def test_a_released_template_names_the_field_that_is_missing(home):
    rows = first_column("squad")
    rows[1] = replace(rows[1], released=json.dumps({"text": "t", "context": "c", "value": "v"}))
    with pytest.raises(CorpusError, match=f"{rows[1].id}: template 'jrt-2407' writes squad from the field 'question', which "
                                          "is missing; there are text, context, value"):
        prompts_of("squad", rows=rows, template="jrt-2407", limit=None)


def test_a_tokenizer_of_shards_serves_questions_and_one_by_name_serves_a_corpus(home):
    from tests.tasks.documents import artifacts

    store = Store()
    corpus, shards = artifacts(store)
    questions = artifact(store, first_column("squad"))
    made = cloze.run(ClozeSpec(task="squad", limit=2), store, questions=questions, shards=shards)
    assert store.manifest(made).inputs == {"questions": questions, "shards": shards}
    assert store.manifest(made).counts["tokenizer"] == "bpe:400"
    made = cloze.run(ClozeSpec(task="pydocs", limit=2, tokenizer="bytes", document_tokens=300), store, corpus=corpus)
    assert store.manifest(made).inputs == {"corpus": corpus} and store.manifest(made).counts["tokenizer"] == "bytes"


# ------------------------------------------------------------------------------------------------------------- preview
@pytest.mark.parametrize("task", TASKS)
def test_a_preview_shows_questions_without_artifacts(task):
    spec = ClozeSpec(task=task, orders=("twice",), limit=2, document_tokens=400)
    rows = question_rows(task)
    found = cloze.preview(spec, tokenizer="bytes", questions=rows)
    assert found["rejected"] == {} and len(found["prompts"]) >= 2
    assert all(set(prompt) == {"id", "prompt", "answers", "tokens"} for prompt in found["prompts"])
    released = cloze.preview(spec.model_copy(update={"template": "jrt-2407"}), tokenizer="bytes", questions=rows)
    assert [each["id"] for each in released["prompts"]] == [each["id"] for each in found["prompts"]]
    json.dumps(found)


def test_a_preview_of_no_questions_says_what_it_needs():
    with pytest.raises(SpecError, match="asks questions about documents and got none"):
        cloze.preview(ClozeSpec(task="squad"))


# ----------------------------------------------------------------------------------------------------------- tokenizers
def test_a_tokenizer_is_named_by_what_it_is_and_not_by_where_it_lies(tmp_path):
    from tests.tasks.documents import tokenizer

    model = tokenizer()
    for folder in ("one", "two/tokenizer"):
        model.save(tmp_path / folder)
    load_tokenizer("bytes").save(tmp_path / "three")
    specs = [ClozeSpec(task="squad", tokenizer=f"hf:{tmp_path / name}") for name in ("one", "two", "three")]
    one, two, three = (cloze.resolve(spec)[2].tokenizer for spec in specs)
    assert one == two and one.startswith("hf:sha256-") and three == "bytes"
    assert cloze.chosen(*cloze.resolve(specs[0])[:2], specs[0].tokenizer).encode("axis :") == model.encode("axis :")
    (tmp_path / "two/tokenizer/tokenizer.json").write_text((tmp_path / "one/tokenizer.json").read_text() + " ")
    assert cloze.resolve(specs[1])[2].tokenizer != one


def test_a_tokenizer_that_is_not_there_says_so(tmp_path):
    from storage.errors import ConfigError

    with pytest.raises((ConfigError, TokenizerError), match="hf:nobody/nothing"):
        cloze.resolve(ClozeSpec(task="squad", tokenizer="hf:nobody/nothing"))
    (tmp_path / "config.json").write_text('{"model_type": "rwkv", "vocab_size": 256}')
    with pytest.raises((ConfigError, TokenizerError), match="tokenizer"):
        cloze.resolve(ClozeSpec(task="squad", tokenizer=f"hf:{tmp_path}"))


def test_a_preview_shows_the_first_column_that_has_questions():
    last = get_task("triviaqa").known_columns[-1]
    web = [replace(row, column=last) for row in question_rows("triviaqa")]
    spec = ClozeSpec(task="triviaqa", orders=("default",), document_tokens=400, total_tokens=4096, limit=3)
    assert cloze.preview(spec, tokenizer="bytes", questions=web)["prompts"]
