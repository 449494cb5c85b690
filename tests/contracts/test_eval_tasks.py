"""What every eval task must hold, whichever they are: the prompts it gives are fair, repeatable and complete.

Tasks that ask questions are held to it in every template, and every task that is written in text with worked examples.
"""

import pytest

from tasks import cloze, templates
from tasks.evals.base import get_task, task_names
from tasks.specs import ClozeSpec
from tests.tasks.documents import byte_tokenizer, splits
from tests.tasks.question_documents import question_rows

LIMIT = 8
ROOM = {"document_tokens": 400, "total_tokens": 4096}


def orders_of(task, template, shots):
    known = templates.RELEASED[template].ORDERS if template in templates.RELEASED else task.orders
    return tuple(order for order in known if not (shots and order == "filler"))


def written(name, template="clean", shots=0):
    """(task, resolved spec, tokenizer, rows, counts) with every order the task knows."""
    spec = ClozeSpec(task=name, orders=orders_of(get_task(name), template, shots), limit=LIMIT, template=template,
                     shots=shots, **ROOM)
    task, options, resolved = cloze.resolve(spec)
    tokenizer = cloze.chosen(task, options, None) or byte_tokenizer()
    counts = cloze.Written()
    questions = question_rows(name) if task.needs_questions else ()
    return task, resolved, tokenizer, list(cloze.write(resolved, task, options, splits, tokenizer, counts,
                                                       questions=questions)), counts


def cases():
    for name in task_names():
        task = get_task(name)
        for template in task.templates:
            for shots in (0, 1) if task.vocabulary_tokenizer(task.options({})) is None else (0,):
                yield pytest.param((name, template, shots), id=f"{name}-{template}-{shots}")


@pytest.fixture(scope="module", params=cases())
def made(request):
    return written(*request.param)


def test_tasks_of_questions_have_the_released_template():
    asked = [get_task(name) for name in task_names() if get_task(name).needs_questions]
    assert {task.name for task in asked} >= {"fda", "swde", "nq", "squad", "triviaqa", "drop"}
    assert all("jrt-2407" in task.templates for task in asked)


def test_items_exist_in_every_order_and_control_under_one_id(made):
    _, spec, _, rows, counts = made
    cells = {}
    for row in rows:
        cells.setdefault(row.id, []).append((row.order, row.control))
    wanted = sorted((order, control) for order in spec.orders for control in ("none", "empty", "other"))
    assert cells and all(sorted(found) == wanted for found in cells.values())
    assert sum(counts.items.values()) == len(cells) and all(0 < n <= LIMIT for n in counts.documents.values())


def test_the_same_settings_give_the_same_prompts(made):
    task, spec, _, rows, _ = made
    assert rows == written(task.name, spec.template, spec.shots)[3]


def test_prompts_are_clean_and_within_their_budget(made):
    task, spec, tokenizer, rows, _ = made
    for row in rows:
        ids = tokenizer.encode(row.prompt)
        assert row.prompt == row.prompt.strip() and row.prompt.endswith(row.tail) and row.tokens == len(ids)
        assert row.answers and all(answer == answer.strip() != "" for answer in row.answers)
        for answer in row.answers:
            assert tokenizer.encode(f"{row.prompt} {answer}")[:len(ids)] == ids
        assert row.tokens + task.end_of_text_first + (task.generation_tokens or spec.generation_tokens) <= 4096


def test_the_answer_is_in_the_prompt_and_in_no_control(made):
    _, _, _, rows, _ = made
    for row in rows:
        words = row.prompt.lower() if row.tail else row.prompt.split()
        assert all((answer.lower() in words) == (row.control == "none") for answer in row.answers), row
