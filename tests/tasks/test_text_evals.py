"""Eval tasks made from any text: last words, copies, phone books. Oracles read the document as a person would."""

import random
import re
from collections import Counter

import pytest

from storage.errors import SpecError
from tasks import prompts
from tasks.evals.base import Document, Item, Material, Rejection, get_task
from tasks.evals.lambada import sentences
from tasks.evals.phonebook import names_of
from tests.tasks.documents import splits, tokenizer

PROSE = """The harbour of Veld was quiet. Only the keeper stayed awake, and he watched the lantern.
Nobody had told him of the storm. When it came from the north, he ran to the
lantern. The sea was loud. He could not save the harbour!

  A list of ships
    the Aurora, lost in the storm
    the Bold, never seen
"""


def material(documents=splits, limit=200, **settings):
    held = tokenizer()
    return Material(documents, lambda texts: prompts.cut_all([text.strip() for text in texts], held, limit), **settings)


def items(name, given=None, held=None):
    task = get_task(name)
    options = task.options(given or {})
    held = held or material()
    return [item for column in task.columns(options) for item in task.items(held, options, column)]


def one(text, **settings):
    return material(lambda split: [Document("it", text)] if split == "test" else [], limit=10_000, **settings)


@pytest.mark.parametrize("name, given", [("lambada", {"passages_per_document": 9}), ("copy", {"spans_per_document": 9}),
                                         ("phonebook", {"books": 9})])
def test_the_draw_depends_on_the_seed_and_on_nothing_else(name, given):
    first, again, other = (items(name, given, material(seed=seed)) for seed in (0, 0, 1))
    assert first == again and first != other
    asked = [item for item in first if isinstance(item, Item)]
    assert len({item.id for item in asked}) == len(asked) > 20
    assert all(item.document[slice(*item.keep)].endswith(item.answers[0]) for item in asked)


# ---------------------------------------------------------------------------------------------------------- phonebook
def test_phone_books_have_one_answer_that_a_reader_finds():
    found = items("phonebook", {"entries": (1, 5, 40), "books": 20})
    assert Counter(item.column for item in found) == {"1_entries": 20, "5_entries": 20, "40_entries": 20}
    for item in found:
        lines = [line.split(": ") for line in item.document.split("\n")]
        assert len(lines) == int(item.column.split("_")[0])
        assert [number for name, number in lines if f"{name}:" == item.cloze] == list(item.answers)
        for name, number in lines:
            assert re.fullmatch(r"[1-9]\d\d-\d{4}", number)
            assert sum(number in text for _, text in lines) == 1 == sum(name in text for text, _ in lines)


class Narrow(random.Random):
    """Draws among two parts of a word only, of which one is the other's beginning at the end of a word: r and rs."""

    def choice(self, parts):
        return super().choice(parts[-5:-3])


def test_no_name_is_part_of_another_even_among_few():
    names = names_of(Narrow(0), 200)
    assert len(names) == 200
    assert not any(name in other for name in names for other in names if name is not other)


def test_every_line_of_a_phone_book_is_asked_alike():
    places = Counter(item.document.split("\n").index(f"{item.cloze} {item.answers[0]}")
                     for item in items("phonebook", {"entries": (4,), "books": 400}))
    assert set(places) == {0, 1, 2, 3} and min(places.values()) > 70


@pytest.mark.parametrize("given", [{"entries": (4, 4)}, {"entries": (0,)}, {"digits": 3}])
def test_impossible_phone_books_are_refused(given):
    with pytest.raises(SpecError, match=next(iter(given))):
        get_task("phonebook").options(given)


# --------------------------------------------------------------------------------------------------------------- copy
def test_a_copied_span_can_only_go_on_one_way():
    found = [item for item in items("copy", {"cue_words": 2, "answer_words": (2, 3), "spans_per_document": 99},
                                    one(PROSE)) if isinstance(item, Item)]
    assert len(found) > 20
    for item in found:
        assert item.document == PROSE.strip() and item.document.count(item.cloze) == 1
        following = item.document.split(item.cloze)[1]
        assert following.split("\n")[0].lstrip().startswith(item.answers[0])
        assert len(item.cloze.split()) == 2 <= len(item.answers[0].split()) <= 3 and "\n" not in item.cloze
        assert item.answers[0][-1].isalnum()


def test_copy_needs_a_cue_that_occurs_once():
    twice = items("copy", {"cue_words": 2, "answer_words": (1, 1)}, one("one two three\none two four"))
    assert twice == [Rejection("it", "no_span_that_occurs_once")]
    with pytest.raises(SpecError, match="fewest <= most"):
        get_task("copy").options({"answer_words": (3, 2)})


# ------------------------------------------------------------------------------------------------------------ lambada
def test_sentences_end_with_punctuation_paragraphs_and_lists():
    held = [PROSE[start:end] for start, end in sentences(PROSE)]
    assert held == [
        "The harbour of Veld was quiet.", "Only the keeper stayed awake, and he watched the lantern.",
        "Nobody had told him of the storm.", "When it came from the north, he ran to the\nlantern.",
        "The sea was loud.", "He could not save the harbour!", "A list of ships",
        "the Aurora, lost in the storm\n    the Bold, never seen"]


def test_last_words_were_said_before_and_not_in_their_own_sentence():
    found = items("lambada", {"passages_per_document": 9}, one(PROSE))
    assert [(item.cloze, item.answers) for item in sorted(found, key=lambda item: len(item.document))] == [
        ("When it came from the north, he ran to the", ("lantern",)), ("He could not save the", ("harbour",))]
    for item in found:
        assert re.search(rf"\b{item.answers[0]}\b", item.document) and item.answers[0] not in item.cloze
        assert PROSE.split(item.document)[1].split()[:2] == item.cloze.split()[:2]
        assert item.document[slice(*item.keep)] == item.answers[0]


def test_closed_short_and_unsaid_words_are_not_asked():
    text = "Go up. They met him. It was new. He asked for it. Then she saw him. It is new."
    asked = items("lambada", {"words_before": 1, "letters": 1, "passages_per_document": 9}, one(text))
    assert [item.answers for item in asked] == [("new",)]
    assert items("lambada", {"words_before": 1, "letters": 4}, one(text)) == [Rejection("it", "no_last_word_said_before")]
    assert items("lambada", {}, one("A cat. A dog. Two hens.")) == [Rejection("it", "no_last_word_said_before")]


def test_a_word_that_its_own_sentence_gives_away_is_not_asked():
    assert items("lambada", {}, one("The dog ran. A cat sat. The dogma of the dog.")) == [
        Rejection("it", "no_last_word_said_before")]


def test_a_word_inside_another_was_not_said():
    assert items("lambada", {}, one("The hens-house. A henhouse. There were hens.")) == [
        Rejection("it", "no_last_word_said_before")]
