"""Eval tasks: what they ask, and that the answer is right, unique and repeatable."""

from collections import Counter

import pytest

import tasks.evals
from storage.errors import ConfigError, CorpusError, SpecError
from tasks import prompts
from tasks.evals.base import Document, EvalTask, Item, Material, Rejection, get_task, task_names
from tasks.evals.pool import AttributePool
from tests.tasks.documents import splits, tokenizer


def material(documents=splits, limit=60, **settings):
    held = tokenizer()
    return Material(documents, lambda texts: prompts.cut_all(texts, held, limit), **settings)


def items(name, column, given=None, held=None):
    task = get_task(name)
    return list(task.items(held or material(), task.options(given or {}), column))


# -------------------------------------------------------------------------------------------------------- discovery
def test_the_tasks_are_found_by_their_files():
    assert {"pydocs", "lookup", "disjoint"} <= set(task_names())
    for name in task_names():
        task = get_task(name)
        assert isinstance(task, EvalTask) and task.columns(task.options({}))


def test_a_new_file_is_a_new_task(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks.evals, "__path__", [*tasks.evals.__path__, str(tmp_path)])
    (tmp_path / "capitals.py").write_text("from tasks.evals.base import EvalTask\n"
                                          "class Capitals(EvalTask):\n    name = 'capitals'\n")
    (tmp_path / "two.py").write_text("from tasks.evals.base import EvalTask\n"
                                     "class A(EvalTask):\n    name = 'two'\nclass B(EvalTask):\n    name = 'two'\n")
    (tmp_path / "broken.py").write_text("import not_there\n")
    assert "capitals" in task_names() and get_task("capitals").name == "capitals"
    with pytest.raises(ConfigError, match="exactly one EvalTask"):
        get_task("two")
    with pytest.raises(ConfigError, match="not_there"):
        get_task("broken")


def test_unknown_tasks_and_options_name_what_there_is():
    with pytest.raises(SpecError, match="did you mean .squad.*lookup.*pydocs"):
        get_task("squadron")
    with pytest.raises(SpecError, match="question_per_document.*Options: columns, questions_per_document"):
        get_task("pydocs").options({"question_per_document": 2})


@pytest.mark.parametrize("name, given, message", [
    ("lookup", {"lines": (5, 4)}, "fewest <= most"),
    ("disjoint", {"sizes": [(4, 200)]}, "half of the content ids"),
    ("disjoint", {"sizes": [(8, 4)]}, "small <= large"),
])
def test_impossible_options_are_refused(name, given, message):
    with pytest.raises(SpecError, match=message):
        get_task(name).options(given)


# ----------------------------------------------------------------------------------------------------------- pydocs
def test_pydocs_asks_about_lines_of_the_view_of_held_out_documents():
    found = items("pydocs", "natural")
    assert len(found) == 30 and all(item.document_id.startswith("test-") for item in found)
    texts = {document.id: document.text for document in splits("test")}
    for item in found:
        name = item.question.removesuffix(" :")
        assert item.question == item.cloze and f"{name} : {item.answers[0]}" in item.document.split("\n")
        assert texts[item.document_id].startswith(item.document)
        assert item.document[slice(*item.keep)] == item.answers[0]
        assert len(tokenizer().encode(item.document)) <= 60


def test_pydocs_asks_held_out_packages_and_the_chosen_split():
    assert {item.document_id.split("-")[0] for item in items("pydocs", "held_out")} == {"held_out"}
    found = items("pydocs", "natural", held=material(split="validation"))
    assert {item.document_id.split("-")[0] for item in found} == {"validation"}


def test_swapped_values_come_from_training_and_are_not_the_documents_own():
    natural = {document.id: document.text for document in splits("test")}
    pool = material().pool
    for item in items("pydocs", "swap", held=material(limit=10_000)):
        own = {a.value for a in prompts.attributes(natural[item.document_id])}
        now = [a.value for a in prompts.attributes(item.document)]
        assert not own & set(now) and len(set(now)) == len(now) and set(now) <= set(pool.values)
        assert item.answers[0] in now
        assert prompts.ATTRIBUTE_LINE.sub("", item.document) == prompts.ATTRIBUTE_LINE.sub(
            "", natural[item.document_id])


def test_uncommon_is_what_guessing_from_training_misses():
    counts = Counter((a.name, a.value) for document in splits("train") for a in prompts.attributes(document.text))
    for item in items("pydocs", "natural"):
        name = item.question.removesuffix(" :")
        most = max(count for (each, _), count in counts.items() if each == name)
        if counts[name, item.answers[0]] < most:
            assert item.uncommon
        elif sum(count == most for (each, _), count in counts.items() if each == name) == 1:
            assert not item.uncommon
    assert AttributePool.of(["x : abc\nx : abc\nx : abd"]).uncommon("x", "abd")
    assert AttributePool.of([]).uncommon("x", "abc")


def test_several_questions_follow_each_other_and_differ():
    found = items("pydocs", "natural", {"questions_per_document": 3})
    order = list(dict.fromkeys(item.document_id for item in found))
    assert [item.document_id for item in found] == sorted((i.document_id for i in found), key=order.index)
    assert len({item.id for item in found}) == len(found) > 30


def test_draws_depend_on_the_seed_and_the_document_alone():
    first = items("pydocs", "swap")
    assert first == items("pydocs", "swap")
    fewer = items("pydocs", "swap", held=material(lambda s: splits(s)[:7] if s == "test" else splits(s)))
    assert set(fewer) < set(first)
    other = items("pydocs", "swap", held=material(seed=1))
    assert [item.document_id for item in other] != [item.document_id for item in first]
    by_id = {item.document_id: item for item in first}
    assert any(item.document != by_id[item.document_id].document for item in other)


def test_documents_that_cannot_be_asked_say_why():
    short = {"train": [Document("t", "x : only value")], "test": [
        Document("a", "no attribute here"), Document("b", "x : one\nx : two"), Document("c", "x : fine\nafter")]}
    held = material(lambda split: short.get(split, []))
    reasons = {entry.document_id: entry.reason for entry in items("pydocs", "natural", held=held)
               if isinstance(entry, Rejection)}
    assert reasons == {"a": "no_attribute_in_view", "b": "no_attribute_in_view"}
    swapped = {entry.document_id: entry for entry in items("pydocs", "swap", held=held)}
    assert swapped["b"].reason == "no_other_value"


# ----------------------------------------------------------------------------------------------------------- lookup
def test_lists_have_one_right_answer_and_the_asked_number_of_lines():
    found = items("lookup", "list", {"lines": (3, 5), "lists": 200})
    assert len(found) == 200
    lengths = Counter(len(item.document.split("\n")) for item in found)
    assert set(lengths) == {3, 4, 5} and min(lengths.values()) > 30
    pool = material().pool
    for item in found:
        held = prompts.attributes(item.document)
        assert len(held) == len(item.document.split("\n")) == len({a.name for a in held})
        assert [a.value for a in held if prompts.question_for(a.name) == item.question] == list(item.answers)
        assert sum(item.answers[0].lower() in a.value.lower() for a in held) == 1
        assert {a.name for a in held} <= set(pool.names) and {a.value for a in held} <= set(pool.values)


def test_too_small_a_corpus_for_lists_says_so():
    held = material(lambda split: [Document("t", "x : abc\ny : abcd")] if split == "train" else [])
    with pytest.raises(CorpusError, match="2"):
        items("lookup", "list", held=held)
    with pytest.raises(CorpusError, match="too few different"):
        items("lookup", "list", {"lines": (2, 2)}, held)


# --------------------------------------------------------------------------------------------------------- disjoint
@pytest.mark.parametrize("column", ["4|16", "1|32"])
def test_sets_meet_in_exactly_one_element(column):
    found = items("disjoint", column, {"sizes": [(4, 16), (1, 32)], "vocabulary": 128, "examples": 2000})
    small, large = map(int, column.split("|"))
    task, places, answers = get_task("disjoint"), Counter(), Counter()
    for item in found:
        first = task.compose("small_first", item.document, item).text.split()
        second = task.compose("large_first", item.document, item).text.split()
        a, b = first[1:1 + small], first[2 + small:-1]
        assert first[0] == "1" and first[1 + small] == "2" and first[-1] == "3" and len(b) == large
        assert second == ["1", *b, "2", *a, "3"]
        assert len(set(a)) == small and len(set(b)) == large and set(a) & set(b) == set(item.answers)
        assert all(4 <= int(token) < 128 for token in a + b)
        places[b.index(item.answers[0])] += 1
        answers[item.answers[0]] += 1
    assert len(found) == 2000 and len(places) == large and max(places.values()) < 3 * 2000 / large
    assert len(answers) == 124                                 # every content id is the answer now and then


def test_disjoint_without_its_sets_is_the_three_marks():
    task = get_task("disjoint")
    item = Item("i", "d", "4 5 2 6 5", "", "", ("5",), "2|2")
    assert task.compose("large_first", None, item).text == "1 2 3"
    assert task.mentions("4 5 2 6 7", item) and not task.mentions("4 55 2 6 7", item)


def test_no_value_of_a_list_is_part_of_another():
    pool = AttributePool(("a", "b"), ("int", "an INT", "str", "a str"), {})
    seen = set()
    for seed in range(40):
        values = {value for _, value in pool.listed(2, Material(lambda s: [], list, seed=seed).draw("x"))}
        seen.add(frozenset(values))
    assert seen == {frozenset(pair) for pair in [("int", "str"), ("int", "a str"), ("an INT", "str"),
                                                 ("an INT", "a str")]}
