"""What the released evaluation does to documents and prompts, item by item of docs/prompts.md: there when asked for by
budget `released` and template `jrt-2407`, and absent otherwise."""

from dataclasses import replace

import pytest

from tasks import cloze
from tasks.composing import Composer
from tasks.evals.base import get_task
from tasks.specs import ClozeSpec
from tasks.templates import jrt_cut
from tests.tasks.documents import byte_tokenizer
from tests.tasks.question_documents import by_item, prompts_of, question_rows

HELD = byte_tokenizer()
FILL = "Nothing of interest was said about the river. "


def asked(task, before, after, answer=None, **changes):
    """Rows of the task; the first one's answer stands between these sentences of filling, in one line."""
    column = get_task(task).columns(get_task(task).options({}))[0]
    rows = [row for row in question_rows(task, documents=6) if row.column == column]
    answer = answer or rows[0].answers[0]
    lead = f"{FILL * before}It is "
    document = f"{lead}{answer}, they say. {FILL * after}".strip()
    return [replace(rows[0], document=document, answers=(answer,), keep_start=len(lead), keep_end=len(lead) + len(answer),
                    **changes), *rows[3:]]


def shown(rows, budget, task, counts=None, **settings):
    """The prompt of the first row, or None."""
    given = {"template": "jrt-2407", "orders": ("default",), "document_tokens": 200, "limit": None, **settings}
    found = by_item(prompts_of(task, rows=rows, budget=budget, counts=counts, **given))
    cells = found.get(rows[0].id)
    return None if cells is None else cells[given["orders"][0], "none"].prompt


@pytest.mark.parametrize("task", ["drop", "triviaqa"])
def test_the_head_is_kept_whatever_the_answer(task):
    counts = cloze.Written()
    rows = asked(task, 20, 5)
    assert rows[0].answers[0] not in shown(rows, "released", task, counts)
    assert counts.notes["answer_cut_away"] >= 1
    for budget in ("document", "total"):
        assert rows[0].answers[0] in shown(rows, budget, task, total_tokens=500)


def test_the_window_is_not_moved_at_the_end_of_a_document():
    rows = asked("nq", 20, 0)
    length = {budget: len(shown(rows, budget, "nq")) - len(rows[0].cloze) for budget in ("released", "document")}
    assert length["released"] < 200 // 2 + 30 and 200 - 50 < length["document"] <= 203


def test_a_short_answer_drops_its_document():
    counts, rows = cloze.Written(), asked("nq", 3, 1, "7")
    options = {"task_options": {"minimum_answer_characters": 1}}
    assert shown(rows, "released", "nq", counts, **options) is None and counts.rejected["answer_too_short"] == 1
    assert shown(rows, "document", "nq", **options).count("7") >= 1


def test_the_window_is_centred_on_the_key_if_that_comes_first():
    counts = cloze.Written()
    rows = asked("fda", 20, 20)
    key = rows[0].cloze.removesuffix(":")
    rows[0] = replace(rows[0], document=f"{key} and others. {rows[0].document}", keep_start=-1, keep_end=-1)
    found = shown(rows, "released", "fda", counts)
    assert found.startswith(f"{key} and others.") and rows[0].answers[0] not in found
    assert counts.notes["answer_cut_away"] == 1
    assert rows[0].answers[0] in shown(rows, "document", "fda")


def test_a_window_cuts_inside_words_and_ours_does_not():
    rows = asked("nq", 20, 20)
    whole = set(rows[0].document.split()) | {"river"}
    outside = {budget: set(shown(rows, budget, "nq").split()[:-len(rows[0].cloze.split())]) - whole
               for budget in ("released", "document")}
    assert outside["released"] and not {word.rstrip(".") for word in outside["document"]} - whole


def test_a_window_without_the_answer_keeps_half_of_the_end():
    fields = {"context": FILL * 30 + "The end.", "answers": ["nowhere"]}
    found = jrt_cut.cut("nq", fields, HELD, 100)
    assert found.tokens == 51 and found.text.endswith("The end.")
    counts, rows = cloze.Written(), asked("nq", 3, 1)
    rows[0] = replace(rows[0], document=FILL * 30, keep_start=-1, keep_end=-1)
    assert shown(rows, "document", "nq", counts, template="clean") is None
    assert counts.rejected["answer_not_in_document"] == 1


def test_only_the_first_answer_is_looked_for_and_alternatives_when_it_is_nowhere():
    fields = {"context": f"{FILL * 10}Vey. {FILL * 10}Krull. {FILL * 10}", "answers": ["Krull", "Vey"]}
    assert "Krull" in jrt_cut.cut("nq", fields, HELD, 60).text
    assert "Vey" in jrt_cut.cut("nq", fields | {"answers": ["absent"], "alt_answers": ["missing", "vey"]}, HELD, 60).text
    at = jrt_cut.cut("nq", fields | {"answers": ["absent"], "tok_pos": 460}, HELD, 60)
    assert at.text == fields["context"][430:490]
    short = {"context": FILL, "answers": ["absent"], "tok_pos": 0}      # a place is taken over only beyond the window
    assert jrt_cut.cut("nq", short, HELD, 60).text == FILL.strip()[-31:]


def test_kept_documents_are_numbered_from_one():
    fields = {"context": "Tolm", "answers": ["Tolm"]}
    assert [jrt_cut.cut("nq", fields, HELD, 60, kept).new_id for kept in (0, 7)] == [1, 8]


def test_squads_cloze_is_cut_away_with_the_end_of_its_text():
    counts, rows = cloze.Written(), asked("squad", 2, 20)
    found = shown(rows, "released", "squad", counts)
    assert rows[0].cloze not in found and found.endswith("about the r") and counts.notes["cloze_cut_away"] >= 1
    for budget in ("document", "total"):
        counts = cloze.Written()
        assert shown(rows, budget, "squad", counts, total_tokens=500).endswith(rows[0].cloze)
        assert not counts.notes["cloze_cut_away"]


def test_squads_first_copy_is_not_cut_and_ours_is():
    rows = asked("squad", 20, 20)
    assert rows[0].document in shown(rows, "released", "squad", orders=("twice",))
    found = shown(rows, "document", "squad", orders=("twice",))
    assert found.count(rows[0].answers[0]) == 2 and len(found) < 2 * 200 + 200


def test_a_long_prompt_would_be_cut_from_the_left_and_ours_is_rejected():
    """The released harness drops the first tokens, which in `twice` are the question."""
    rows = asked("nq", 20, 20)
    for budget in ("released", "document"):
        counts = cloze.Written()
        assert shown(rows, budget, "nq", counts, orders=("twice",), total_tokens=420) is None
        assert counts.rejected["prompt_too_long"] >= 1
    assert shown(rows, "total", "nq", orders=("twice",), total_tokens=420).startswith(rows[0].question)


def test_an_empty_answer_counts_as_right_and_is_never_asked():
    counts, rows = cloze.Written(), asked("nq", 1, 1)
    rows[0] = replace(rows[0], answers=(rows[0].answers[0], "  "))
    for template in ("clean", "jrt-2407"):
        assert shown(rows, "document", "nq", counts, template=template) is None
    assert counts.rejected["no_answer"] == 2


def test_no_limit_means_all_questions():
    rows, counts = question_rows("squad", documents=9), cloze.Written()
    prompts_of("squad", rows=rows, limit=None, counts=counts, orders=("default",))
    assert sum(counts.items.values()) == len(rows) == 27


def test_the_released_window_holds_its_answer_and_clean_prompts_have_no_accidents():
    rows = [row for row in question_rows("nq", documents=8, long=True) if row.column == "512"]
    counts = cloze.Written()
    found = prompts_of("nq", rows=rows, template="jrt-2407", budget="released", document_tokens=300, counts=counts)
    assert len(found) == 3 * 6 * 6 and counts.notes["document_cut"] == 18 and not counts.notes["answer_cut_away"]
    composer = Composer(ClozeSpec(task="nq", template="clean", orders=("default",)), get_task("nq"), HELD)
    assert composer.released is None and composer.room == 2048 - 48 - 1
    released = Composer(ClozeSpec(task="nq", template="jrt-2407", orders=("default",)), get_task("nq"), HELD)
    assert released.room == 2048 - 48                           # the released code puts no token before a prompt
