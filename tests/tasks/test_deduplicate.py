"""Duplicates against a brute-force oracle on sets of word tuples."""

import random

import numpy as np
import pytest

from tasks import deduplicate as dd


def _word(number, start="w"):
    """A word without digits, which folding would make equal."""
    return start + "".join(chr(97 + int(digit)) for digit in str(number))


def _oracle(texts, threshold):
    """All pairs, real sets: keep a document unless an earlier kept one is alike."""
    def shingle_set(text):
        found = [word if not word.isdigit() else "0" * len(word) for word in text.lower().split()]
        return {tuple(found[k : k + 5]) for k in range(len(found) - 4)} or {tuple(found)}

    kept = []
    for k, text in enumerate(texts):
        mine = shingle_set(text)
        if not any(len(mine & other) / len(mine | other) >= threshold for _, other in kept):
            kept.append((k, mine))
    return [k for k, _ in kept]


def family(seed, originals=60, copies=4):
    """Random documents and copies of them with a few words changed."""
    draw = random.Random(seed)
    texts = []
    for _ in range(originals):
        text = [_word(draw.randrange(400)) if draw.random() < 0.9 else str(draw.randrange(99)) for _ in range(200)]
        for _ in range(copies):
            copy = list(text)
            for _ in range(draw.randrange(0, 14)):
                copy[draw.randrange(200)] = _word(draw.randrange(999), "x")
            texts.append(" ".join(copy))
    draw.shuffle(texts)
    return texts


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9])
def test_keeps_what_comparing_all_pairs_keeps(threshold):
    texts = family(seed=3)
    found = dd.deduplicate(texts, threshold)
    assert found.kept == _oracle(texts, threshold)
    assert found.exact + found.near + len(found.kept) == len(texts) and found.near > 0


def test_exact_duplicates_differ_in_case_space_and_digits_only():
    texts = ["The  size is\n12 of 40", "the size is 99 of 11", "The size is 123 of 40", "the size is", "another text"]
    found = dd.deduplicate(texts)
    assert (found.kept, found.exact, found.near) == ([0, 2, 3, 4], 1, 0)


def test_the_first_stays_whatever_the_order():
    texts = family(seed=5, originals=5)
    kept = {texts[k] for k in dd.deduplicate(texts).kept}
    assert texts[0] in kept
    backwards = texts[::-1]
    assert backwards[0] in {backwards[k] for k in dd.deduplicate(backwards).kept}


def test_signatures_do_not_depend_on_the_neighbours():
    texts = family(seed=7, originals=9)
    together = dd._sketch(texts)[1]
    apart = np.concatenate([dd._sketch([text])[1] for text in texts])
    assert np.array_equal(together, apart)


def test_estimate_is_the_jaccard_similarity():
    draw = random.Random(0)
    pool = [_word(k) for k in range(3000)]
    first = draw.choices(pool, k=1500)      # all 5-word runs differ
    second = first[:1000] + draw.choices(pool, k=500)
    one, other = " ".join(first), " ".join(second)
    true = dd.jaccard(dd.shingles(one), dd.shingles(other))
    signatures = dd._sketch([one, other])[1]
    assert true == pytest.approx(996 / (2 * 1496 - 996), abs=0.01)
    assert (signatures[0] == signatures[1]).mean() == pytest.approx(true, abs=4 * 0.046)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_miss_less_than_one_in_a_thousand_at_the_threshold(threshold):
    bands, rows = dd.bands_for(threshold)
    assert bands * rows <= dd.PERMUTATIONS and (1 - threshold**rows) ** bands < 1.1e-3


def test_nothing_gives_nothing():
    assert dd.deduplicate([]).kept == []
    assert dd.deduplicate(["", "", "a"]).kept == [0, 2]
