"""Set intersection rows against the released generator, bit for bit (numpy's legacy generator, in its order of draws)."""

import numpy as np
import pytest

from tasks.disjoint_rows import disjoint_released
from tests.golden.reference import reference


@pytest.mark.parametrize(("vocabulary", "count", "first", "second", "seed"),
                         [(64, 6, 4, 8, 0), (64, 6, 8, 4, 0), (2048, 4, 16, 64, 123)])
def test_rows_are_the_released_ones(vocabulary, count, first, second, seed):
    golden = reference("synthetic_data")
    name = f"sd_v{vocabulary}_n{count}_A{first}_B{second}_seed{seed}"
    rows = disjoint_released(seed, count, first, second, vocabulary)
    assert np.array_equal(rows[:, :-1], golden[f"{name}__inputs"])
    # the only label stands at the last position, and is the answer
    labels = golden[f"{name}__labels"]
    assert (labels[:, :-1] == -100).all() and np.array_equal(rows[:, -1], labels[:, -1])


def test_exactly_one_element_in_common():
    rows = disjoint_released(3, 20, 5, 9, 64)
    for row in rows:
        assert (row[0], row[6], row[16]) == (1, 2, 3)
        common = set(row[1:6]) & set(row[7:16])
        assert common == {row[-1]}
