"""Recall, distance and buckets against definitions written out slowly."""

import numpy as np
import pytest

from tasks.slices import bucket, identify, nearest_repeats, slices
from tasks.specs import PerplexitySpec


def slowly(ids: list[int], begins: list[int] | None = None) -> list[int]:
    """Distance of each target by looking back pair by pair."""
    document = [sum(b <= i for b in begins or ()) for i in range(len(ids))]
    found = []
    for i in range(1, len(ids)):
        earlier = [j for j in range(1, i) if ids[j - 1:j + 1] == ids[i - 1:i + 1]
                   and document[j - 1] == document[j] == document[i - 1] == document[i]]
        found.append(i - earlier[-1] if earlier else 0)
    return found


@pytest.mark.parametrize("alphabet", [1, 2, 5, 30])
def test_distance_as_by_looking_back(alphabet):
    rng = np.random.default_rng(alphabet)
    ids_BN = rng.integers(0, alphabet, (7, 60)).astype(np.uint16)
    assert nearest_repeats(ids_BN).tolist() == [slowly(row.tolist()) for row in ids_BN]


@pytest.mark.parametrize("alphabet", [2, 4])
def test_documents_of_a_row_do_not_share_repeats(alphabet):
    rng = np.random.default_rng(alphabet)
    ids_BN = rng.integers(0, alphabet, (9, 50))
    starts = [np.flatnonzero(rng.random(50) < 0.12).astype(np.int32) for _ in ids_BN]
    starts[0], starts[1] = np.array([0, 49], np.int32), np.zeros(0, np.int32)
    apart = nearest_repeats(ids_BN, starts)
    assert apart.tolist() == [slowly(row.tolist(), begins.tolist()) for row, begins in zip(ids_BN, starts)]
    assert (apart != nearest_repeats(ids_BN)).any()


def test_rows_do_not_share_repeats():
    assert not nearest_repeats(np.array([[1, 2], [1, 2], [1, 2]])).any()


def test_buckets_hold_their_lower_end_and_not_their_upper():
    assert bucket(np.array([0, 1, 9, 10, 99, 100, 10**9]), (1, 10, 100)).tolist() == [-1, 0, 0, 1, 1, 2, 2]


def table(n: int = 4000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    distance = np.where(rng.random(n) < 0.4, 0, rng.integers(1, 200, n))
    return {"distance": distance, "count": (10 ** (rng.random(n) * 5) - 1).astype(np.int64)}


SPEC = PerplexitySpec(minimum_distance=64, maximum_count=50, frequency_edges=(0, 1, 10, 1000), distance_edges=(1, 5, 90))


def test_every_slice_holds_what_its_name_says():
    data, found = table(), list(slices(table(), SPEC))
    distances, counts = data["distance"].tolist(), data["count"].tolist()
    for part in found:
        low, high = part.low if part.low is not None else 0, part.high if part.high is not None else 10**12
        wanted = []
        for distance, count in zip(distances, counts):
            fits = part.kind == "all" or (part.kind == "ar") == (distance > 0)
            if part.name == "frequency":
                fits = fits and low <= count < high and (part.kind == "other" or distance >= 64)
            if part.name == "distance":
                fits = fits and count < 50 and (part.kind == "other" or low <= distance < high)
            wanted.append(fits)
        assert part.mask_T.tolist() == wanted, part
    assert [(p.name, p.kind, p.low, p.high) for p in found if p.name == "frequency" and p.kind == "ar"] == [
        ("frequency", "ar", 0, 1), ("frequency", "ar", 1, 10), ("frequency", "ar", 10, 1000), ("frequency", "ar", 1000, None)]
    assert {p.condition for p in found if p.name == "distance"} == {"training count < 50"}
    assert {p.condition for p in found if p.name == "frequency" and p.kind == "ar"} == {"distance >= 64"}


def test_the_slices_that_should_add_up_do():
    data, found = table(), list(slices(table(), SPEC))
    def total(name, kind):
        return sum(p.mask_T.sum() for p in found if p.name == name and p.kind == kind)
    assert total("kind", "ar") + total("kind", "other") == total("all", "all") == 4000
    assert total("frequency", "other") == total("kind", "other")
    assert total("distance", "ar") == ((data["distance"] > 0) & (data["count"] < 50)).sum()


def test_without_counts_there_is_no_frequency_and_it_is_said():
    data = table() | {"count": np.full(4000, -1)}
    found = list(slices(data, SPEC))
    assert "frequency" not in {p.name for p in found}
    assert {p.condition for p in found if p.name == "distance"} == {"training counts not asked"}
    assert sum(p.mask_T.sum() for p in found if p.name == "distance") == 4000


def test_identify_reads_pairs_at_the_slots_asked():
    class Counts:
        def count(self, first, second):
            return np.asarray(first, np.int64) * 1000 + second

    ids_BN = np.array([[1, 2, 1, 2], [3, 4, 5, 3]])
    found = identify(ids_BN, None, np.array([2, 3, 5]), Counts())
    assert found["count"].tolist() == [1002, 3004, 5003]
    assert found["distance"].tolist() == [2, 0, 0] and found["is_ar"].tolist() == [True, False, False]
    assert identify(ids_BN, None, np.array([2]), None)["count"].tolist() == [-1]
