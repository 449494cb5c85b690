"""What is checked of every cloze, and that GPT-2's tokens go on where it ends."""

import pytest

from tasks.datasets.records import Record
from tasks.rewriting.validation import occurs, tokens_agree, why_not
from tasks.tokenizers import load_tokenizer

TEXT = "Ada Reed was born in Veld on 3 May. Her party numbers 12."


def record(*answers, document=TEXT, span=None):
    return Record("r", "d", document, "question", answers or ("Veld",), span=span)


@pytest.mark.parametrize("cloze, reason", [
    ("Ada was born in", None), ("Place of birth:", None), ('The town called "Home" is', None), ('It is not "Orm" but "Home"', None), ("The price (in pounds) is", None),
    ("", "empty"), ("  ", "empty"),
    (" Ada was born in", "white_space"), ("Ada was born in ", "white_space"), ("Ada was\nborn in", "white_space"),
    ("Ada was born.", "ends_sentence"), ("Where was Ada born?", "ends_sentence"), ("Ada was born;", "ends_sentence"),
    ("The price is $", "ends_mid_word"), ("The town is (", "ends_mid_word"), ("The anti-", "ends_mid_word"),
    ('The town is "', "ends_mid_word"), ("The town is “", "ends_mid_word"),
    ("Ada was born in ___", "placeholder"), ("Ada was born in ...", "placeholder"), ("Ada was born in [MASK]", "placeholder"),
    ("Ada was born in veld, and it is", "answer_in_cloze"), ("The Velder town is", "answer_in_cloze"),
])
def test_every_rule_has_its_reason(cloze, reason):
    assert why_not(cloze, record()) == reason


@pytest.mark.parametrize("cloze, answers, reason", [
    ("The number of people in the party is", ("12",), None), ("In 1912 the number of people was", ("12",), None),
    ("In all 12 the number was", ("12",), "answer_in_cloze"), ("The A to Z of it is", ("a",), "answer_in_cloze"),
    ("Ada was born in", ("Veld", "born"), "answer_in_cloze"), ("Ada was born in", ("Veld", " "), "empty"),
    ("Ada was born in", ("Orm",), "answer_not_in_document"), ("Ada was born in", ("VELD",), None),
])
def test_answers_are_looked_for_in_cloze_and_document(cloze, answers, reason):
    assert why_not(cloze, record(*answers)) == reason


def test_a_span_must_hold_the_answer():
    start = TEXT.index("Veld")
    assert why_not("Ada was born in", record(span=(start, start + 4))) is None
    assert why_not("Ada was born in", record(span=(start + 1, start + 5))) == "answer_not_in_document"
    assert why_not("Ada was born in", record(span=(900, 904))) == "answer_not_in_document"


@pytest.mark.parametrize("document", ["", " \n"])
def test_an_empty_document_is_its_own_reason(document):
    assert why_not("Ada was born in", record(document=document)) == "empty_document"


def test_no_answer_is_empty():
    assert why_not("Ada was born in", Record("r", "d", TEXT, "question", ())) == "empty"


def test_short_answers_are_whole_words_and_letter_case_is_folded():
    assert occurs("ST", "a st b") and not occurs("st", "past") and occurs("STRASSE", "die straße")
    assert occurs("art", "party") and not occurs("c#", "c") and occurs("c#", "in C# it")


class Pairs:
    """A tokenizer of two characters an id: an odd prompt shares its last id with the blank behind it."""

    def encode_batch(self, texts):
        return [[text[k:k + 2] for k in range(0, len(text), 2)] for text in texts]


def test_tokens_of_the_prompt_begin_those_of_prompt_and_answer():
    assert tokens_agree(load_tokenizer("gpt2"), "Ada was born in", "Veld")
    assert tokens_agree(Pairs(), "Even", "Veld") and not tokens_agree(Pairs(), "Odd", "Veld")
