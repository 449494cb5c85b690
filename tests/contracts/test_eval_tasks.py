"""What every eval task must hold, whichever they are: the prompts it gives are fair, repeatable and complete."""

import pytest

from tasks import cloze
from tasks.evals.base import get_task, task_names
from tasks.specs import ClozeSpec
from tests.tasks.documents import byte_tokenizer, splits

LIMIT = 12
ROOM = {"document_tokens": 400, "total_tokens": 4096}


def written(name):
    """(task, resolved spec, tokenizer, rows, counts) with every order the task knows."""
    spec = ClozeSpec(task=name, orders=get_task(name).orders, limit=LIMIT, **ROOM)
    task, options, resolved = cloze.resolve(spec)
    own = task.vocabulary_tokenizer(options)
    tokenizer = cloze.load_tokenizer(own) if own else byte_tokenizer()
    counts = cloze.Written()
    return task, resolved, tokenizer, list(cloze.write(resolved, task, options, splits, tokenizer, counts)), counts


@pytest.fixture(scope="module", params=task_names())
def made(request):
    return written(request.param)


def test_items_exist_in_every_order_and_control_under_one_id(made):
    _, spec, _, rows, counts = made
    cells = {}
    for row in rows:
        cells.setdefault(row.id, []).append((row.order, row.control))
    wanted = sorted((order, control) for order in spec.orders for control in ("none", "empty", "other"))
    assert cells and all(sorted(found) == wanted for found in cells.values())
    assert sum(counts.items.values()) == len(cells) and all(0 < n <= LIMIT for n in counts.documents.values())


def test_the_same_settings_give_the_same_prompts(made):
    task, _, _, rows, _ = made
    assert rows == written(task.name)[3]


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
