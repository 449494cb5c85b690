"""Which targets are recall, how rare they are and how far back they repeat (JRT App. B.4, Figure 3).

A target x_i is recall (AR, associative recall) when its bigram (x_{i-1}, x_i) occurred earlier in the same sequence;
everything else is `other`. Its distance is to the nearest earlier occurrence, which the paper leaves open. Buckets are
given by their lower ends, the last one is open.

Letters: B sequences, N targets of each (a sequence holds N+1 tokens), T targets of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.bigrams import pair_keys
from tasks.specs import PerplexitySpec


@dataclass(frozen=True)
class Slice:
    """Some of the targets. `low` and `high`: the bucket [low, high), None where it is open or there is none."""

    name: str            # all, kind, frequency, distance
    kind: str            # all, ar, other
    low: int | None
    high: int | None
    condition: str       # what else holds for its targets
    mask_T: np.ndarray


def nearest_repeats(ids_BN: np.ndarray, starts: Sequence[np.ndarray] | None = None) -> np.ndarray:
    """int32 [B, N]: tokens from target i+1 back to the same bigram's last earlier end, 0 where there is none.

    ids_BN  N+1 tokens a row
    starts  where documents begin in each row; repeats across them do not count, nor do pairs that join two
    """
    B, N = len(ids_BN), ids_BN.shape[1] - 1
    segment_BN = np.repeat(np.arange(B)[:, None] * (N + 2), N, axis=1)
    wanted_BN = np.ones((B, N), bool)
    for row, begins in enumerate(starts or ()):
        at = np.asarray(begins, np.int64)
        at = at[at > 0] - 1
        wanted_BN[row, at] = False
        np.add.at(segment_BN[row], at, 1)
    if starts:
        segment_BN = segment_BN[:, :1] + np.cumsum(segment_BN - segment_BN[:, :1], axis=1)
    slot_T = np.flatnonzero(wanted_BN)
    key_T = pair_keys(ids_BN[:, :-1], ids_BN[:, 1:]).ravel()[slot_T]
    group_T = segment_BN.ravel()[slot_T]
    order = np.lexsort((slot_T, key_T, group_T))
    same = (key_T[order][1:] == key_T[order][:-1]) & (group_T[order][1:] == group_T[order][:-1])
    distance_BN = np.zeros(B * N, np.int32)
    distance_BN[slot_T[order[1:][same]]] = (slot_T[order][1:] - slot_T[order][:-1])[same]
    return distance_BN.reshape(B, N)


def bucket(values_T: np.ndarray, edges: Sequence[int]) -> np.ndarray:
    """Number of the bucket of each value, -1 below the first."""
    return np.searchsorted(np.asarray(edges), values_T, side="right") - 1


def slices(table: Mapping[str, np.ndarray], spec: PerplexitySpec) -> Iterator[Slice]:
    """Every slice of a table with `distance` and `count` (-1 where no bigrams were counted), empty buckets too.

    frequency  by training count: recall that repeats at least `minimum_distance` back, and other
    distance   by distance: recall with a training count below `maximum_count`; other of such counts as one slice
    """
    distance_T, count_T = table["distance"], table["count"]
    ar_T = distance_T > 0
    every_T = np.ones(len(ar_T), bool)
    yield Slice("all", "all", None, None, "", every_T)
    yield Slice("kind", "ar", None, None, "", ar_T)
    yield Slice("kind", "other", None, None, "", ~ar_T)
    counted = bool(len(count_T)) and int(count_T.min()) >= 0
    if counted:
        far = f"distance >= {spec.minimum_distance}"
        yield from _buckets("frequency", "ar", ar_T & (distance_T >= spec.minimum_distance), count_T,
                            spec.frequency_edges, far)
        yield from _buckets("frequency", "other", ~ar_T, count_T, spec.frequency_edges, "")
    rare = f"training count < {spec.maximum_count}" if counted else "training counts not asked"
    rare_T = count_T < spec.maximum_count
    yield from _buckets("distance", "ar", ar_T & rare_T, distance_T, spec.distance_edges, rare)
    yield Slice("distance", "other", None, None, rare, ~ar_T & rare_T)


def _buckets(name: str, kind: str, mask_T: np.ndarray, values_T: np.ndarray, edges: Sequence[int],
             condition: str) -> Iterator[Slice]:
    number_T = bucket(values_T, edges)
    for k, low in enumerate(edges):
        high = edges[k + 1] if k + 1 < len(edges) else None
        yield Slice(name, kind, low, high, condition, mask_T & (number_T == k))


def identify(ids_BN: np.ndarray, starts: Sequence[np.ndarray] | None, slot_S: np.ndarray, counts: Any,
             ) -> dict[str, np.ndarray]:
    """is_ar, distance and count of the targets at flat slots b·N + i. counts: `tasks.bigrams.Bigrams` or None."""
    distance_S = nearest_repeats(ids_BN, starts).ravel()[slot_S]
    first_S, second_S = ids_BN[:, :-1].ravel()[slot_S], ids_BN[:, 1:].ravel()[slot_S]
    count_S = np.full(len(slot_S), -1, np.int64) if counts is None else counts.count(first_S, second_S)
    return {"is_ar": distance_S > 0, "distance": distance_S, "count": count_S}
