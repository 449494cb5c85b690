"""Worked examples: other documents, no answer given away, the same form as the question, all within the budget."""

from dataclasses import replace

import pytest

from storage.errors import SpecError
from tasks import cloze
from tasks.composing import Composer
from tasks.evals.base import Item, Material, get_task
from tasks.specs import ORDERS, ClozeSpec
from tasks.templates import jrt_2407
from tests.tasks.documents import byte_tokenizer, splits
from tests.tasks.question_documents import by_item, prompts_of, question_rows

SHOWN = tuple(order for order in ORDERS if order != "filler")


def blocks(row):
    """The parts of a prompt of the clean template between blank lines: head and cloze of each example, then its own."""
    return row.prompt.split("\n\n")


@pytest.mark.parametrize("shots", [1, 2])
def test_an_example_has_the_form_of_the_question_and_its_answer(shots):
    rows = {row.id: row for row in question_rows("squad")}
    by_text = {row.document: row for row in rows.values()}
    for item, cells in by_item(prompts_of("squad", shots=shots, orders=SHOWN)).items():
        for order in SHOWN:
            parts = blocks(cells[order, "none"])
            assert len(parts) == 2 * (shots + 1) and parts[-1] == cells[order, "none"].tail
            for k in range(shots):
                head, answered = parts[2 * k], parts[2 * k + 1]
                shown = [row for row in rows.values() if f"{row.cloze} {row.answers[0]}" == answered]
                assert len(shown) == 1
                document, question = shown[0].document, shown[0].question
                assert head == {"default": document, "question_first": f"{question}\n{document}",
                                "twice": f"{question}\n{document}\n{document}", "repeat": f"{document}\n{document}",
                                "alternate": f"{document}\n{question}\n{document}"}[order]
        own = by_text[blocks(cells["default", "none"])[-2]]
        assert own.document_id == rows[item].document_id


def documents_of(row, rows):
    """Ids of the documents that stand in a prompt of order default."""
    ids = {each.document: each.document_id for each in rows}
    return [ids[part] for part in blocks(row)[::2] if part in ids]


def test_no_document_stands_twice_in_a_prompt_and_no_control_holds_the_answer():
    rows = question_rows("squad")
    for item, cells in by_item(prompts_of("squad", shots=2, orders=("default",), limit=20)).items():
        own = next(row.document_id for row in rows if row.id == item)
        shown, other, empty = (documents_of(cells["default", control], rows) for control in ("none", "other", "empty"))
        assert len(set(shown)) == 3 and shown[-1] == own
        assert len(set(other)) == 3 and own not in other and other[:2] == shown[:2] == empty
        assert cells["default", "none"].answers[0] not in cells["default", "other"].prompt
        assert cells["default", "none"].answers[0] not in cells["default", "empty"].prompt


def test_the_tail_is_the_asked_cloze_alone_so_examples_are_prefix():
    held = byte_tokenizer()
    for cells in by_item(prompts_of("squad", shots=1, orders=("default",))).values():
        for control in ("none", "empty", "other"):
            row = cells["default", control]
            assert row.tail_tokens == len(held.encode(row.tail)) and "\n" not in row.tail
            assert row.prompt.removesuffix(row.tail).endswith("\n\n")


def test_the_draw_depends_on_the_item_and_two_begin_with_the_one():
    one, again, two = (by_item(prompts_of("squad", shots=k, orders=("default",))) for k in (1, 1, 2))
    assert one == again and len({blocks(cells["default", "none"])[1] for cells in one.values()}) > 5
    for item, cells in one.items():
        assert blocks(two[item]["default", "none"])[:2] == blocks(cells["default", "none"])[:2]
    other = by_item(prompts_of("squad", shots=1, orders=("default",), seed=1))
    assert any(blocks(cells["default", "none"])[:2] != blocks(one[item]["default", "none"])[:2]
               for item, cells in other.items() if item in one)


def test_an_example_that_gives_the_answer_away_is_passed_over():
    rows = question_rows("squad", documents=12)
    told = rows[0].answers[0]
    rows = [rows[0], *(row if number % 2 else replace(row, question=f"{row.question} ({told})")
                       for number, row in enumerate(rows[3:]))]
    for seed in range(8):
        cells = by_item(prompts_of("squad", rows=rows, shots=1, orders=("question_first",), seed=seed, limit=None))[rows[0].id]
        assert told not in blocks(cells["question_first", "none"])[0]


def test_too_few_documents_for_examples_is_counted():
    """Two documents: one is asked, the other is needed for the control or for the example. A copy is no other document."""
    rows, counts = question_rows("squad", documents=2), cloze.Written()
    assert prompts_of("squad", rows=rows, counts=cloze.Written(), orders=("default",))
    assert prompts_of("squad", rows=rows, shots=2, counts=counts, orders=("default",)) == []
    assert counts.rejected == {"too_few_examples": 6}
    copies = [replace(row, document_id=f"copy {k}") for k, row in enumerate(rows[:3])]
    counts = cloze.Written()
    assert prompts_of("squad", rows=copies, shots=1, counts=counts, orders=("default",)) == []
    assert counts.rejected == {"too_few_examples": 3}


def test_two_copies_of_a_document_are_one_example():
    asked, other, third = (question_rows("squad")[3 * k] for k in range(3))
    copy = replace(other, id="copy/0", document_id="copy")
    for rows, enough in (([asked, other, copy], False), ([asked, other, third], True)):
        cells = by_item(prompts_of("squad", rows=rows, shots=2, orders=("default",)))
        settings = cloze.resolve(ClozeSpec(task="squad", shots=2, orders=("default",), tokenizer="bytes"))
        composer = Composer(settings[2], settings[0], byte_tokenizer(), controls=("none",))
        items = {row.document_id: [Item(row.id, row.document_id, row.document, row.question, row.cloze, row.answers, "all",
                                        keep=row.keep)] for row in rows}
        drawn = composer.examples.drawn(items[asked.document_id][0], items, Material(lambda split: (), list))
        assert (drawn is not None) == enough and not cells          # no document is left for the control `other`


def test_examples_are_cut_to_the_budget_of_documents():
    held = byte_tokenizer()
    rows = question_rows("squad", long=True, documents=20)
    for cells in by_item(prompts_of("squad", rows=rows, shots=2, orders=("default", "twice"), document_tokens=150)).values():
        heads = blocks(cells["default", "none"])[::2]
        assert len(heads) == 3 and all(60 < len(held.encode(head)) <= 150 for head in heads)
        answers = [part.rpartition(" ")[2] for part in blocks(cells["default", "none"])[1:-1:2]]
        assert all(answer in head for answer, head in zip(answers, heads))


def test_a_total_budget_is_shared_by_all_documents_of_a_prompt():
    counts = cloze.Written()
    rows = question_rows("squad", long=True, documents=20)
    found = prompts_of("squad", rows=rows, shots=2, orders=("default", "twice"), budget="total", total_tokens=1500,
                       generation_tokens=20, counts=counts)
    assert counts.documents["all"] == 6 and not counts.rejected
    longest = max(row.tokens for row in found if row.control == "none")
    assert 1200 < longest <= 1500 - 20 - 1 and max(row.tokens for row in found) <= 1479
    for row in found:
        assert (row.answers[0] in row.prompt) == (row.control == "none")


@pytest.mark.parametrize("budget", ["document", "total"])
def test_examples_that_do_not_fit_are_the_reason(budget):
    rows = question_rows("squad", documents=20)
    settings = {"rows": rows, "orders": ("default",), "budget": budget, "total_tokens": 420, "generation_tokens": 20}
    counts, alone = cloze.Written(), cloze.Written()
    assert prompts_of("squad", shots=8, counts=counts, **settings) == []
    assert set(counts.rejected) == {"shots_do_not_fit"} and counts.rejected["shots_do_not_fit"] == 60
    assert prompts_of("squad", counts=alone, **settings) and not alone.rejected


def test_released_examples_are_joined_as_released():
    """Answers after a blank in NQ, TriviaQA and DROP alone, one blank line between examples."""
    for task, blank in (("fda", ""), ("swde", ""), ("squad", ""), ("nq", " "), ("triviaqa", " "), ("drop", " ")):
        column = get_task(task).columns(get_task(task).options({}))[0]
        rows = [row for row in question_rows(task) if row.column == column]
        for cells in by_item(prompts_of(task, rows=rows, shots=1, template="jrt-2407")).values():
            for order in jrt_2407.ORDERS:
                first, _, rest = cells[order, "none"].prompt.partition("\n\n")
                last = first.rpartition("\n")[2]
                assert any(last.endswith(f"{row.cloze}{blank}{row.answers[0]}") for row in rows), (task, last)
                assert "\n\n" not in rest


@pytest.mark.parametrize("settings, message", [
    ({"task": "disjoint", "shots": 1}, "no worked example can end; set shots to 0"),
    ({"task": "squad", "shots": 1, "orders": ("default", "filler")}, "leave it out, or set shots to 0"),
])
def test_impossible_examples_are_refused_before_any_work(settings, message):
    with pytest.raises(SpecError, match=message):
        cloze.resolve(ClozeSpec(**settings))


def test_tasks_over_a_corpus_have_examples_too():
    spec = ClozeSpec(task="pydocs", shots=1, orders=("default",), limit=4, document_tokens=300)
    task, options, resolved = cloze.resolve(spec)
    found = list(cloze.write(resolved, task, options, splits, byte_tokenizer(), cloze.Written()))
    assert len(by_item(found)) == 12
    for cells in by_item(found).values():
        assert cells["default", "none"].prompt.count("Return the") == 2       # each document begins so
        assert cells["default", "empty"].prompt.count("Return the") == 1
