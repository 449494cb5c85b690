"""Orders, attributes and cuts."""

import pytest

from storage.errors import SpecError
from tasks import prompts
from tasks.specs import ORDERS


class Bytes:
    """One token a byte."""

    def encode_batch(self, texts):
        return [list(text.encode()) for text in texts]

    def token_bytes(self, token):
        return bytes([token])


DOCUMENT = "Title\nsize : big one\nshape : (n, m)\n\nsize of it"


@pytest.mark.parametrize("order, head", [
    ("default", "D"), ("question_first", "Q\nD"), ("twice", "Q\nD\nD"), ("repeat", "D\nD"), ("alternate", "D\nQ\nD"),
    ("filler", "D\nX"),
])
def test_every_order_is_written_out(order, head):
    prompt = prompts.compose(order, "D", "Q", "C :", filler="X")
    assert prompt.text == head + "\n\nC :"
    assert prompt.tail == "C :" and prompt.head == head + "\n\n"


def test_orders_are_those_of_the_specs():
    assert set(prompts.PARTS) == set(ORDERS)


def test_wrong_orders_say_what_to_do():
    with pytest.raises(SpecError, match="choose one of default"):
        prompts.compose("backwards", "D", "Q", "C")
    with pytest.raises(SpecError, match="pass `filler`"):
        prompts.compose("filler", "D", "Q", "C")


def test_attributes_are_margin_lines_with_values_of_3_to_60_characters():
    text = "a : xyz\nb: tight colon\n  c : indented\nd : xy\ne : " + "v" * 60 + "\nf : " + "v" * 61 + "\ng :  two spaces"
    found = prompts.attributes(text)
    assert [(a.name, len(a.value)) for a in found] == [("a", 3), ("b", 11), ("e", 60)]
    assert all(text[a.start : a.end] == a.value for a in found)


def test_a_name_with_two_values_cannot_be_asked():
    text = "x : int\ny : float\nx : str\nz : one\nz : one"
    assert [(a.name, a.value) for a in prompts.askable(text)] == [("y", "float"), ("z", "one")]


def test_values_are_replaced_wherever_their_name_occurs():
    text = "x : int\ny : float\nx : int\nend"
    assert prompts.with_values(text, {"x": "long value"}) == "x : long value\ny : float\nx : long value\nend"
    assert prompts.with_values(text, {}) == text


@pytest.mark.parametrize("limit, expected", [
    (4, ""), (5, "Title"), (6, "Title"), (19, "Title"), (20, "Title\nsize : big one"),
    (36, "Title\nsize : big one\nshape : (n, m)"), (1000, DOCUMENT),
])
def test_cut_keeps_full_lines_only(limit, expected):
    assert prompts.cut(DOCUMENT, Bytes(), limit) == expected


def test_cut_looks_further_when_tokens_are_long():
    class Words(Bytes):
        def encode_batch(self, texts):
            return [[len(text.encode())] * (text.count("\n") + 1) for text in texts]

    text = "\n".join("w" * 50 for _ in range(40))
    assert prompts.cut(text, Words(), 40) == text


def test_cut_counts_bytes_not_characters():
    assert prompts.cut("äö\nüß", Bytes(), 5) == "äö"
    assert prompts.cut("äö\nüß", Bytes(), 3) == ""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("limit", [0, -3])
def test_without_room_nothing_is_left_of_a_document(limit):
    assert prompts.cut(DOCUMENT, Bytes(), limit) == ""


def test_a_cut_looks_at_the_beginning_of_a_long_line_only_and_is_the_same():
    """Against the whole document's tokens, over texts of short and very long lines."""
    seen = []

    class Watched(Bytes):
        def encode_batch(self, texts):
            seen.extend(map(len, texts))
            return super().encode_batch(texts)

    for length in (1, 7, 8, 15, 16, 17, 100, 5000):
        for before in ("", "a\n", "ab\ncde\n"):
            text = f"{before}{'w' * length}\nlast"
            for limit in range(1, 12):
                kept = text[:limit]
                whole = kept if text[limit:limit + 1] in ("\n", "") else kept[:max(kept.rfind("\n"), 0)]
                assert prompts.cut(text, Watched(), limit) == whole.rstrip(), (text[:20], limit)
    assert max(seen) < 5000


def test_an_answer_is_placed_by_the_first_that_occurs_in_any_case():
    assert prompts.place("The Vey at Tolm", ("krull", "tolm")) == (11, 15)
    assert prompts.place("A+B", ("", "a+b")) == (0, 3) and prompts.place("text", ("", "none")) is None
