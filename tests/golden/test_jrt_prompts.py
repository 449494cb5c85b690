"""The released prompts and truncation, against strings that the released code gave."""

import json

import pytest

from tasks.templates import jrt_2407, jrt_cut, jrt_recipes
from tasks.tokenizers import load_tokenizer

TASKS = ("fda", "swde", "nq", "squad", "triviaqa", "drop")


def examples(shared, task):
    return json.loads((shared / "golden/jrt/prompts.json").read_text())["tasks"][f"based_{task}"]["examples"]


@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_the_released_ones_byte_for_byte(shared, task):
    found = examples(shared, task)
    assert len(found) >= 2
    for example in found:
        fields = example["doc"]
        document = jrt_2407.source(task, fields)
        for order in jrt_2407.ORDERS:
            assert jrt_2407.prompt(task, order, fields, document).text == example[order]
        assert jrt_2407.target(task, fields) == example["target"]


@pytest.mark.parametrize("name", ["byte", "gpt2"])
def test_truncation_is_the_released_one(shared, name):
    golden = json.loads((shared / "golden/jrt/truncation.json").read_text())
    tokenizer = load_tokenizer({"byte": "bytes"}.get(name, name))
    assert len(golden["cases"]) == 12
    for case in golden["cases"]:
        document = golden["long_context"] if case["context"] == "<long_context>" else case["context"]
        found = jrt_cut.truncate(document, case["doc"], case["ak"], tokenizer, case["L"] - case["A"])
        wanted = case[name]
        if wanted is None:
            assert found is None, case["name"]
        else:
            assert (found.text, found.tokens, found.new_id) == (wanted["text"], wanted["n_tokens"],
                                                                wanted["new_id"]), case["name"]


def test_every_task_is_cut_by_the_fields_the_released_code_names():
    found = {task: (recipe.document, recipe.searched) for task, recipe in jrt_recipes.RECIPES.items()}
    assert found == {"fda": ("text", ("key", "value")), "swde": ("text", ("key", "value")),
                     "squad": ("text", ("value",)), "nq": ("context", ("answers",)), "triviaqa": ("context", ()),
                     "drop": ("context", ())}
