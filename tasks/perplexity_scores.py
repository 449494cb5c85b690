"""Perplexity, loss and bits per byte of slices, with intervals, from the table of targets alone.

A sequence's targets are not independent, so sequences are resampled (tasks/statistics.py says why): a resample's loss is
the mean over all its targets. Bits per byte are a ratio of two sums over the same sequences, which one draw resamples
together. Perplexity is exp of the mean loss, and its interval exp of the loss's.

Letters: T targets, D sequences that hold one of them, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.slices import Slice, slices
from tasks.specs import PerplexitySpec
from tasks.statistics import bootstrap

CELLS = 4_000_000       # resampled sequences held at once
TOO_LONG = 700.0        # nats; exp of more is no float


def score(table: Mapping[str, np.ndarray], byte_lengths: np.ndarray, spec: PerplexitySpec) -> list[dict[str, Any]]:
    """One row a slice, in the order of `tasks.slices.slices`. `byte_lengths` by token id."""
    bytes_T = byte_lengths[np.minimum(table["id"], len(byte_lengths) - 1)] * (table["id"] < len(byte_lengths))
    return [_row(part, table, bytes_T, spec) for part in slices(table, spec)]


def _row(part: Slice, table: Mapping[str, np.ndarray], bytes_T: np.ndarray, spec: PerplexitySpec) -> dict[str, Any]:
    mask_T = part.mask_T
    nll_T, sequence_T = np.asarray(table["nll"], np.float64)[mask_T], np.asarray(table["sequence"])[mask_T]
    found = {"slice": part.name, "kind": part.kind, "from": part.low, "to": part.high, "condition": part.condition,
             "share": round(float(mask_T.mean()), 6) if len(mask_T) else None}
    return found | figures(nll_T, bytes_T[mask_T], sequence_T, resamples=spec.bootstrap, seed=spec.seed)


def figures(nll_T: np.ndarray, bytes_T: np.ndarray, unit_T: np.ndarray, *, resamples: int, seed: int) -> dict[str, Any]:
    """{n, sequences, nll, nll_low, nll_high, perplexity, low, high, bits_per_byte, bits_low, bits_high[, reason]}.

    unit_T  what is resampled: the sequence of each target
    """
    loss = bootstrap(nll_T, unit_T, resamples=resamples, seed=seed)
    bits = bits_per_byte(nll_T, bytes_T, unit_T, resamples=resamples, seed=seed)
    row = {"n": loss.n, "sequences": loss.documents, "nll": loss.value, "nll_low": loss.low, "nll_high": loss.high,
           "perplexity": perplexity(loss.value), "low": perplexity(loss.low), "high": perplexity(loss.high),
           "bits_per_byte": bits[0], "bits_low": bits[1], "bits_high": bits[2]}
    return row if loss.reason is None else row | {"reason": loss.reason}


def perplexity(nll: float | None) -> float | None:
    """exp of a mean loss [nats]; None for none, or for more than a float holds."""
    return None if nll is None or nll > TOO_LONG else math.exp(nll)


def bits_per_byte(nll_T: np.ndarray, bytes_T: np.ndarray, unit_T: np.ndarray, *, resamples: int, seed: int,
                  level: float = 0.95) -> tuple[float | None, float | None, float | None]:
    """(value, low, high); None where the targets have no bytes, and no interval from one sequence."""
    if not bytes_T.sum():
        return None, None, None
    _, index_T = np.unique(unit_T, return_inverse=True)
    bits_D = np.bincount(index_T, weights=nll_T) / math.log(2)
    bytes_D = np.bincount(index_T, weights=bytes_T)
    value = float(bits_D.sum() / bytes_D.sum())
    if len(bits_D) == 1:
        return value, None, None
    generator = np.random.default_rng(seed)
    ratios, piece = [], max(1, CELLS // len(bits_D))
    for first in range(0, resamples, piece):
        drawn_RD = generator.integers(0, len(bits_D), (min(piece, resamples - first), len(bits_D)))
        totals_R = bytes_D[drawn_RD].sum(1)
        ratios.append((bits_D[drawn_RD].sum(1) / np.maximum(totals_R, 1))[totals_R > 0])
    low, high = np.quantile(np.concatenate(ratios), [(1 - level) / 2, (1 + level) / 2])
    return value, float(low), float(high)
