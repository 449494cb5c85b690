"""Prompts: orders, budgets, controls, hygiene, and that nothing is dropped in silence."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from storage.artifacts import Store
from storage.errors import CorpusError, SpecError
from storage.shards import RowTable
from tasks import cloze, prompts, recall_rows
from tasks.composing import Composer
from tasks.cutting import cut_around
from tasks.evals.base import Document, EvalTask, Item, Material, Rejection, get_task
from tasks.specs import ORDERS, ClozeSpec, RecallRowsSpec
from tests.tasks.documents import artifacts, byte_tokenizer, splits, tokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "prompts.json"


def rows(documents=splits, held=None, counts=None, **settings):
    """All rows of a spec over the documents, without artifacts."""
    task, options, spec = cloze.resolve(ClozeSpec(**{"task": "pydocs", **settings}))
    counts = cloze.Written() if counts is None else counts
    return list(cloze.write(spec, task, options, documents, held or tokenizer(), counts))


def by_item(found):
    grouped = {}
    for row in found:
        grouped.setdefault(row.id, {})[row.order, row.control] = row
    return grouped


def document_of(row):
    """All before the blank line and the cloze."""
    return row.prompt.removesuffix(f"\n\n{row.tail}")


# ----------------------------------------------------------------------------------------------------- what is there
@pytest.mark.parametrize("budget", ["document", "total"])
def test_every_item_is_there_in_every_order_and_control(budget):
    orders = tuple(ORDERS)
    counts = cloze.Written()
    found = rows(orders=orders, budget=budget, total_tokens=400, generation_tokens=10, limit=12, counts=counts)
    grouped = by_item(found)
    wanted = {(order, control) for order in orders for control in ("none", "empty", "other")}
    assert all(set(each) == wanted for each in grouped.values())
    assert counts.documents == {"natural": 12, "swap": 12, "held_out": 8} == counts.items
    assert Counter(row.column for row in found) == {c: n * len(wanted) for c, n in counts.items.items()}


def test_the_same_document_stands_in_every_order():
    for each in by_item(rows(orders=tuple(ORDERS), limit=10)).values():
        document = document_of(each["default", "none"])
        question = each["default", "none"].tail
        assert each["question_first", "none"].prompt == f"{question}\n{document}\n\n{question}"
        assert each["twice", "none"].prompt == f"{question}\n{document}\n{document}\n\n{question}"
        assert each["repeat", "none"].prompt == f"{document}\n{document}\n\n{question}"
        assert each["alternate", "none"].prompt == f"{document}\n{question}\n{document}\n\n{question}"
        assert each["filler", "none"].prompt.startswith(document + "\n")


def test_the_filler_is_other_text_as_long_as_the_document():
    held = tokenizer()
    for each in by_item(rows(orders=("default", "filler"), limit=15, held=held)).values():
        document = document_of(each["default", "none"])
        filler = document_of(each["filler", "none"]).removeprefix(document + "\n")
        assert abs(len(held.encode(filler)) - len(held.encode(document))) <= 2
        assert each["default", "none"].answers[0].lower() not in filler.lower()


# ----------------------------------------------------------------------------------------------------------- budgets
def test_a_document_budget_cuts_documents_and_lets_prompts_grow():
    held = tokenizer()
    for each in by_item(rows(document_tokens=50, limit=10, held=held)).values():
        assert len(held.encode(document_of(each["default", "none"]))) <= 50
        assert each["twice", "none"].tokens > each["question_first", "none"].tokens > each["default", "none"].tokens


@pytest.mark.parametrize("total", [64, 80, 120])
def test_a_total_budget_holds_in_the_longest_order_and_the_answer_survives(total):
    counts = cloze.Written()
    found = rows(budget="total", total_tokens=total, generation_tokens=8, orders=tuple(ORDERS), counts=counts)
    assert found and max(row.tokens for row in found) + 8 + 1 <= total
    longest = max(row.tokens for row in found if row.control == "none")
    assert longest > total - 9 - 30                          # no more is cut than a line or two
    for row in found:
        if row.control == "none":
            assert f"{row.tail} {row.answers[0]}" in row.prompt
    assert sum(counts.rejected.values()) + sum(counts.documents.values()) == 30 + 30 + 8


def test_what_does_not_fit_is_counted_and_missing_in_every_order():
    counts = cloze.Written()
    found = rows(document_tokens=60, total_tokens=120, generation_tokens=8, counts=counts, limit=None)
    assert counts.rejected["prompt_too_long"] > 0 and found
    assert sum(counts.rejected.values()) + sum(counts.documents.values()) == 30 + 30 + 8
    assert {len(each) for each in by_item(found).values()} == {9}
    short = rows(document_tokens=60, total_tokens=120, generation_tokens=8, limit=None, orders=("default",))
    assert len(by_item(short)) > len(by_item(found))         # the default order alone would have fitted


def test_the_limit_counts_accepted_documents():
    counts = cloze.Written()
    rows(document_tokens=60, total_tokens=120, generation_tokens=8, limit=5, counts=counts)
    assert counts.documents["natural"] == 5 and counts.rejected["prompt_too_long"] > 0


@pytest.mark.parametrize("length", [1, 3, 5, 8, 40])
def test_a_cut_around_the_answer_keeps_its_line_and_grows_on_both_sides(length):
    held = byte_tokenizer()
    lines = [f"line {k:03d}" for k in range(100)]
    document = "\n".join(lines)
    start = document.index("line 050")
    limit = 9 * length
    cut = cut_around(document, held, limit, (start, start + 8))
    assert "line 050" in cut.split("\n") and cut in document and len(cut) <= limit
    assert len(cut.split("\n")) == length
    assert abs(cut.split("\n").index("line 050") - length // 2) <= 1
    assert cut_around(document, held, 7, (start, start + 8)) is None
    assert cut_around(document, held, 30, (0, 8)) == "\n".join(lines[:3])
    assert cut_around("one long line", held, 5, None) is None


def test_a_question_first_prompt_is_never_cut_from_the_left():
    for row in rows(budget="total", total_tokens=90, generation_tokens=8, limit=10):
        if row.order in ("question_first", "twice") and row.control != "empty":
            assert row.prompt.startswith(row.tail + "\n") and row.prompt.endswith("\n\n" + row.tail)


# ---------------------------------------------------------------------------------------------------------- controls
def test_the_empty_control_asks_without_a_document():
    for each in by_item(rows(orders=tuple(ORDERS), limit=4)).values():
        tail = each["default", "none"].tail
        for order in ("default", "repeat", "filler"):
            assert each[order, "empty"].prompt == tail
        for order in ("question_first", "twice", "alternate"):
            assert each[order, "empty"].prompt == f"{tail}\n\n{tail}"


def test_the_other_control_shows_another_document_of_the_column_without_the_answer():
    found = rows(orders=("default",))
    shown = {}
    for row in found:
        shown.setdefault(row.column, {})[row.id, row.control] = row
    for column, held in shown.items():
        documents = {document_of(row) for (_, control), row in held.items() if control == "none"}
        for (item, control), row in held.items():
            if control == "other":
                other = document_of(row)
                assert other != document_of(held[item, "none"])
                assert row.answers[0].lower() not in other.lower()
                assert column == "held_out" or other in documents


def test_an_item_without_a_control_is_rejected():
    counts = cloze.Written()
    alone = {"train": splits("train"), "test": splits("test")[:1]}
    assert rows(lambda split: alone.get(split, []), counts=counts) == []
    assert counts.rejected == {"no_other_document": 2}


def test_a_document_is_no_control_of_itself_even_without_its_answer():
    composer = Composer(ClozeSpec(task="pydocs", orders=("default",)), get_task("pydocs"), byte_tokenizer())
    item = Item("i", "d", "says nothing", "q :", "q :", ("answer",), "c")
    nothing = Material(lambda split: [], composer.view)
    assert composer.rows(item, [Document("d", "says nothing")], nothing) == Rejection("d", "no_other_document")
    assert len(composer.rows(item, [Document("e", "another")], nothing)) == 3


# ----------------------------------------------------------------------------------------------------------- hygiene
@pytest.mark.parametrize("held", [tokenizer(), byte_tokenizer()], ids=["bpe", "bytes"])
def test_prompts_have_no_white_space_around_and_tokens_that_the_answer_continues(held):
    for row in rows(held=held, limit=10, orders=tuple(ORDERS), document_tokens=200):
        assert row.prompt == row.prompt.strip()
        ids = held.encode(row.prompt)
        assert len(ids) == row.tokens
        for answer in row.answers:
            assert held.encode(f"{row.prompt} {answer}")[:len(ids)] == ids
        assert held.decode(ids[len(ids) - row.tail_tokens:]) == row.tail
        assert held.decode(ids[:len(ids) - row.tail_tokens]) + row.tail == row.prompt


class Greedy:
    """Tokens of two characters from the left: an answer glued to an odd prompt changes the last token."""

    name = "pairs"

    def encode_batch(self, texts):
        return [[int.from_bytes(text.encode()[k:k + 2], "big") for k in range(0, len(text.encode()), 2)]
                for text in texts]

    def token_bytes(self, token):
        return token.to_bytes(2 if token > 255 else 1, "big")


def test_an_answer_that_would_change_the_prompts_tokens_is_rejected():
    counts = cloze.Written()
    found = rows(held=Greedy(), limit=None, orders=("default",), document_tokens=400, counts=counts)
    assert counts.rejected["tokens_change_at_answer"] > 0
    assert found and all(len(row.prompt) % 2 == 0 for row in found)


def test_a_tail_that_shares_a_token_with_the_document_counts_that_token():
    composer = Composer(ClozeSpec(task="pydocs"), get_task("pydocs"), Greedy())
    assert composer._tail_tokens(Greedy().encode_batch(["abcdefg"])[0], "efg") == 2
    assert composer._tail_tokens(Greedy().encode_batch(["abcdefg"])[0], "defg") == 3
    assert composer._tail_tokens(Greedy().encode_batch(["abcdefg"])[0], "") == 0


def test_white_space_around_a_prompt_is_rejected():
    class Spaced(EvalTask):
        name = "spaced"

        def compose(self, order, document, item, filler=None, template="clean"):
            return prompts.Prompt(f"{document or ''} {item.cloze} ", item.cloze)

    composer = Composer(ClozeSpec(task="spaced", orders=("default",)), Spaced(), byte_tokenizer())
    item = Item("i", "d", "document", "q :", "q :", ("answer",), "c")
    found = composer.rows(item, [Document("e", "another")], Material(lambda split: [], composer.view))
    assert found == Rejection("d", "white_space_around_prompt")


# ------------------------------------------------------------------------------------------------ as in training
def test_a_prompt_is_the_beginning_of_the_training_row_of_its_document():
    """Same ids, same end of the prefix: a model is asked in the form in which it was trained."""
    held, documents = tokenizer(), splits("train")
    spec = RecallRowsSpec(maximum_document_tokens=60, swap_share=0, maximum_questions=1,
                          order_shares={"default": 1, "question_first": 1, "twice": 1, "alternate": 1, "repeat": 1})
    pool = recall_rows.pools([d.id for d in documents], ["train"] * len(documents), [d.text for d in documents], held,
                             spec.model_copy(update={"validation_tokens": 0}))["train"]
    found, _ = recall_rows.window(range(60), np.zeros(60), pool, held, spec)
    composer = Composer(ClozeSpec(task="pydocs", orders=tuple(ORDERS)), get_task("pydocs"), held)
    compared = set()
    for row in found:
        text = held.decode(row.ids[1:].tolist())
        cloze_line = text.rsplit("\n\n", 1)[1].split(" : ")[0] + " :"
        value = text.rsplit(cloze_line + " ", 1)[1].removesuffix("\n")
        document = pool.documents[pool.ids.index(row.document)]
        asked = Item("i", row.document, document, cloze_line, cloze_line, (value,), "natural")
        checked = composer._checked(asked, document, "filler")
        ids = [held.end_of_text, *held.encode(checked.prompts[row.order].text)]
        assert row.ids[:len(ids)].tolist() == ids
        assert row.prefix == len(ids) - checked.tail_tokens[row.order]
        assert row.answers[0] == len(ids) - 1                # the last token of the prompt predicts the first answer
        compared.add(row.order)
    assert len(found) == 60 and compared == {"default", "question_first", "twice", "alternate", "repeat"}


# --------------------------------------------------------------------------------------------------------- other tasks
def test_disjoint_prompts_have_both_orders_and_no_tail():
    found = rows(lambda split: [], cloze.load_tokenizer("ids:256"), task="disjoint", limit=20)
    grouped = by_item(found)
    assert len(grouped) == 60 and len(found) == 60 * 6
    for each in grouped.values():
        small, large = each["small_first", "none"], each["large_first", "none"]
        assert small.tokens == large.tokens == sum(map(int, small.column.split("|"))) + 3
        assert small.tail == "" and small.tail_tokens == 0
        assert each["small_first", "empty"].prompt == "1 2 3"
        assert small.answers[0] not in each["small_first", "other"].prompt.split()


def test_lookup_prompts_fit_and_hold_their_line():
    held = tokenizer()
    found = rows(task="lookup", limit=20, task_options={"lines": [4, 8]}, document_tokens=40, held=held)
    assert len(by_item(found)) == 20
    assert max(len(held.encode(document_of(row))) for row in found if row.order == "default") <= 40
    assert all(f"{row.tail} {row.answers[0]}" in row.prompt.split("\n") for row in found if row.control == "none")


# ------------------------------------------------------------------------------------------------------------ mistakes
@pytest.mark.parametrize("settings, message", [
    ({"task": "pydocs", "orders": ("small_first",)}, "choose from default"),
    ({"task": "disjoint", "orders": ("default",)}, "choose from small_first, large_first"),
    ({"task": "pydocs", "orders": ("default", "default")}, "each once"),
    ({"task": "nothing"}, "choose one of"),
])
def test_what_cannot_be_asked_is_refused(settings, message):
    with pytest.raises(SpecError, match=message):
        cloze.resolve(ClozeSpec(**settings))


def test_orders_default_to_the_tasks_own():
    assert cloze.resolve(ClozeSpec(task="disjoint"))[2].orders == ("small_first", "large_first")
    assert cloze.resolve(ClozeSpec(task="pydocs"))[2].orders == ("default", "question_first", "twice")


# ----------------------------------------------------------------------------------------------------------- artifacts
def test_prompts_become_an_artifact_once(home):
    store = Store()
    corpus, shards = artifacts(store)
    spec = ClozeSpec(task="pydocs", limit=6)
    planned = cloze.plan(spec, store, corpus=corpus, shards=shards, rows="rows-0")
    assert not store.exists(planned)
    made = cloze.run(spec, store, corpus=corpus, shards=shards)
    assert made == planned and cloze.run(spec, store, corpus=corpus, shards=shards) == made
    table = RowTable(store.path(made) / "prompts.arrow")
    assert len(table) == 3 * 6 * 9 and table.names == cloze.SCHEMA.names
    manifest = store.manifest(made)
    assert manifest.counts["documents"] == {"natural": 6, "swap": 6, "held_out": 6}
    assert manifest.counts["longest"] == max(table.column("tokens")) and manifest.counts["prompts"] == len(table)
    assert manifest.counts["generation_tokens"] == 48 and manifest.counts["end_of_text_first"] is True
    assert manifest.inputs == {"corpus": corpus, "shards": shards}
    assert manifest.spec["task_options"]["questions_per_document"] == 1


def test_the_prompts_are_those_of_the_plain_documents(home):
    store = Store()
    corpus, shards = artifacts(store)
    made = cloze.run(ClozeSpec(task="pydocs", limit=6), store, corpus=corpus, shards=shards)
    table = RowTable(store.path(made) / "prompts.arrow")
    assert table.column("prompt") == [row.prompt for row in rows(limit=6)]


def test_disjoint_needs_no_corpus_and_pydocs_does(home):
    store = Store()
    made = cloze.run(ClozeSpec(task="disjoint", limit=3), store, corpus="corpus-0", rows="rows-0")
    assert store.manifest(made).inputs == {}
    assert store.manifest(made).counts["generation_tokens"] == 1 and store.manifest(made).counts["metric"] == "exact"
    with pytest.raises(SpecError, match="corpus and the shards"):
        cloze.run(ClozeSpec(task="pydocs"), store)


def test_prompts_that_would_be_none_are_refused(home, monkeypatch):
    store = Store()
    corpus, shards = artifacts(store)
    with pytest.raises(CorpusError, match="no prompt of task 'pydocs' can be written: rejected are .*prompt_too_long"):
        cloze.run(ClozeSpec(task="pydocs", total_tokens=60), store, corpus=corpus, shards=shards)
    monkeypatch.setattr(cloze, "_splits", lambda path: lambda split: [])
    with pytest.raises(CorpusError, match="the test split has no documents"):
        cloze.run(ClozeSpec(task="pydocs"), store, corpus=corpus, shards=shards)


# ------------------------------------------------------------------------------------------------------------- preview
def test_a_preview_needs_documents_only():
    found = cloze.preview(ClozeSpec(task="pydocs", orders=("twice",), limit=4), splits("test"))
    assert set(found) == {"prompts", "rejected"} and len(found["prompts"]) == 4
    assert all(set(prompt) == {"id", "prompt", "answers", "tokens"} for prompt in found["prompts"])
    assert all(prompt["id"].startswith("natural/") for prompt in found["prompts"])
    json.dumps(found)
    one = cloze.preview(ClozeSpec(task="pydocs", orders=("default",)), splits("test")[:1])
    assert len(one["prompts"]) == 1
    raw = [Document(d.id, "\n  " + d.text.replace("\n", "  \r\n")) for d in splits("test")[:1]]
    assert cloze.preview(ClozeSpec(task="pydocs", orders=("default",)), raw) == one
    assert len(cloze.preview(ClozeSpec(task="disjoint", limit=2, orders=("small_first",)))["prompts"]) == 2
    with pytest.raises(SpecError, match="give a .txt or .jsonl file"):
        cloze.preview(ClozeSpec(task="pydocs"))


# -------------------------------------------------------------------------------------------------------------- golden
@pytest.mark.parametrize("task", ["pydocs", "lookup", "disjoint"])
def test_the_first_prompts_are_byte_for_byte_those_of_before(task):
    """Whoever changes a prompt on purpose changes the template's version, and this file."""
    held = cloze.load_tokenizer("ids:256" if task == "disjoint" else "bytes")
    settings = {} if task == "disjoint" else {"orders": tuple(ORDERS), "document_tokens": 300, "total_tokens": 4096}
    found = rows(held=held, task=task, limit=4, **settings)
    digest = hashlib.sha256("\0".join(row.prompt for row in found[:64]).encode()).hexdigest()
    assert digest == json.loads(GOLDEN.read_text())[f"clean/{task}"]
