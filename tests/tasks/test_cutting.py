"""Cuts around an answer: within the limit to the token, the answer inside, at lines, sentences or words."""

import random
import re
import time

import pytest

from tasks.cutting import cut_around
from tasks.tokenizers import load_tokenizer
from tests.tasks.documents import byte_tokenizer

WORDS = "river bridge stone mayor opened quarry town report nothing over under the a of".split()


def line(words, seed=0, stops=True):
    """One line of this many words, in sentences of 5 to 12."""
    draw, found = random.Random(seed), []
    while len(found) < words:
        sentence = [draw.choice(WORDS) for _ in range(draw.randint(5, 12))]
        found += [*sentence[:-1], sentence[-1] + "."] if stops else sentence
    return " ".join(found[:words])


def with_answer(text, share):
    """(text with an answer put in at a share of its length, the answer's characters)"""
    at = text.index(" ", int(share * (len(text) - 200))) + 1 if share else 0
    return f"{text[:at]}Zanzibar-77 {text[at:]}", (at, at + len("Zanzibar-77"))


@pytest.mark.parametrize("name", ["bytes", "gpt2"])
@pytest.mark.parametrize("share", [0, 0.01, 0.4, 0.99])
def test_a_line_that_is_too_long_is_cut_at_sentences_around_the_answer(name, share):
    held, limit = load_tokenizer(name), 200
    text, keep = with_answer(line(3000), share)
    found = cut_around(text, held, limit, keep)
    start = text.index(found)
    assert start <= keep[0] and keep[1] <= start + len(found)
    assert limit - 80 < len(held.encode(found)) <= limit
    assert start == 0 or text[start - 2:start] == ". "
    assert start + len(found) == len(text) or found.endswith(".")


def test_a_sentence_that_is_too_long_is_cut_at_words_and_fills_the_limit():
    held = load_tokenizer("gpt2")
    text, keep = with_answer(line(3000, stops=False), 0.5)
    for limit in (8, 20, 64, 301):
        found = cut_around(text, held, limit, keep)
        start = text.index(found)
        assert text[start - 1] == " " and text[start + len(found)] == " " and "Zanzibar-77" in found
        assert limit - 3 < len(held.encode(found)) <= limit
        assert abs((keep[0] - start) - (start + len(found) - keep[1])) < 40        # characters on either side


def test_an_answer_at_the_end_has_all_its_room_before_it():
    held = byte_tokenizer()
    text, keep = with_answer(line(500), 0)
    text, keep = text[12:] + " Zanzibar-77", (len(text) - 11, len(text))
    assert text[slice(*keep)] == "Zanzibar-77"
    found = cut_around(text, held, 300, keep)
    assert text.endswith(found) and len(found) > 220


def test_a_title_over_a_page_in_one_line_is_no_document():
    held, body = byte_tokenizer(), line(2000)
    found = cut_around(f"Zanzibar\n{body}", held, 400, (0, 8))
    assert found.startswith("Zanzibar\n" + body[:200]) and found.endswith(".") and 320 < len(found) <= 400
    assert cut_around(f"Zanzibar\n{body}", held, 400, None) == "Zanzibar"


def test_lines_that_fit_are_not_broken():
    held = byte_tokenizer()
    lines = [f"Line {k:02d} has two. Short sentences." for k in range(40)]
    text = "\n".join(lines)
    for k in (0, 7, 20, 39):
        at = text.index(lines[k]) + 5
        found = cut_around(text, held, 200, (at, at + 2))
        assert set(found.split("\n")) <= set(lines) and f"Line {k:02d}" in found


def test_an_answer_over_two_lines_or_sentences_stays_whole():
    held = byte_tokenizer()
    text = f"{line(300)}\nThe name is Tolm.\nIda Krull. And more. {line(300, 1)}"
    keep = (text.index("Tolm"), text.index("Krull") + 5)
    assert "Tolm.\nIda Krull." in cut_around(text, held, 60, keep)
    assert cut_around(text, held, 15, keep) is None               # the answer alone has sixteen bytes


def test_a_text_without_white_space_has_sentences_or_nothing():
    held = byte_tokenizer()
    text = "".join(f"第{k:03d}句没有空格。" for k in range(400))
    at = text.index("第200句")
    found = cut_around(text, held, 120, (at, at + 5))
    assert "第200句没有空格。" in found and found.startswith("第") and found.endswith("。") and len(found.encode()) <= 120
    assert cut_around("x" * 5000, held, 100, (50, 55)) is None


def test_no_cut_is_over_its_limit_or_without_its_answer():
    """Over random texts of lines, sentences and words of all sizes; None only when the answer's own words are too many."""
    held, draw = load_tokenizer("gpt2"), random.Random(3)
    outcomes = set()
    for case in range(150):
        pieces = [line(draw.choice([1, 3, 10, 60, 400]), case * 10 + k, draw.random() < 0.7) for k in range(draw.randint(1, 6))]
        text = "\n".join(pieces)
        start = draw.randrange(len(text))
        keep = (start, min(len(text), start + draw.choice([1, 4, 30])))
        limit = draw.choice([4, 8, 30, 200])
        found = cut_around(text, held, limit, keep)
        first, last = re.search(r"\S*$", text[:keep[0]]).start(), keep[1] + re.match(r"\S*", text[keep[1]:]).end()
        if found is None:
            assert len(held.encode(text[first:last].strip())) > limit
        else:
            assert found == found.strip() and len(held.encode(found)) <= limit
            assert text[slice(*keep)].strip() in found and found in text
        outcomes.add(found is None)
    assert outcomes == {True, False}


class Dear:
    """A token a byte, and one more for a line feed inside a text: lines together cost more than alone."""

    def encode_batch(self, texts):
        return [[each for k, byte in enumerate(text.encode()) for each in ([byte, 256] if byte == 10 and k else [byte])]
                for text in texts]

    def token_bytes(self, token):
        return bytes([token]) if token < 256 else b""


@pytest.mark.parametrize("at", [0, 25, 39])
def test_what_costs_more_together_than_alone_is_still_within_the_limit(at):
    lines = [f"line {k:03d}" for k in range(40)]
    text = "\n".join(lines)
    found = cut_around(text, Dear(), 100, (9 * at, 9 * at + 8))
    assert lines[at] in found and 90 <= len(Dear().encode_batch([found])[0]) <= 100


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stops", [True, False])
def test_a_line_of_two_hundred_thousand_tokens_takes_less_than_three_seconds(stops):
    held = load_tokenizer("gpt2")
    text, keep = with_answer(line(200_000, stops=stops), 0.7)
    assert len(held.encode(text)) > 200_000
    began = time.process_time()
    found = cut_around(text, held, 1000, keep)
    assert time.process_time() - began < 3
    assert "Zanzibar-77" in found and 900 < len(held.encode(found)) <= 1000
