"""What a training batch asks of a model: next tokens, JRT's prefix objective, or the answers in recall rows.

A batch is built on the host from plain arrays and is a function of its rows and of (seed, epoch, row number) alone, so
that neither the number of workers nor a restart changes a label. Every objective is a set of *terms*; a term is a list
of slots, the token wanted at each, and a weight. Only those slots go through the head, which is the largest single
saving in training small models (×1.4–1.75 measured).

Letters: B rows, L slots, N tokens of a shard row (it holds N+1), S targets of one term, D width, E vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from kernels.errors import LayoutError
from kernels.layout import Layout

Normalisation = Literal["paper", "released"]
Boundary = Literal["released", "predict"]


class Scorer(Protocol):
    """The two halves of a language model that the objectives use."""

    def hidden(self, ids_BL: torch.Tensor, layout: Layout) -> torch.Tensor: ...

    def head(self, x_SD: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class Term:
    """Targets of one kind. The term's loss is the sum over its targets divided by `divisor` (None: their number)."""

    index_S: torch.Tensor  # flat slots b·L + i, int64
    target_S: torch.Tensor  # token ids, int64
    weight: float
    divisor: float | None = None


@dataclass(frozen=True)
class Batch:
    """Inputs (masked ones already replaced), their layout, and what is asked of them."""

    ids_BL: torch.Tensor
    layout: Layout
    terms: dict[str, Term]
    tokens: int  # real tokens of the rows
    supervised: int  # targets over all terms
    silent: int = 0  # documents that are all prefix and so have no next token to predict (contract 3)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        if torch.device(device) == self.ids_BL.device:
            return self
        terms = {name: replace(term, index_S=term.index_S.to(device, non_blocking=True),
                               target_S=term.target_S.to(device, non_blocking=True))
                 for name, term in self.terms.items()}
        return replace(self, ids_BL=self.ids_BL.to(device, non_blocking=True), layout=self.layout.to(device),
                       terms=terms)


def target_losses(model: Scorer, batch: Batch) -> dict[str, torch.Tensor]:
    """Cross entropy of every target [nats], by term; the head sees the target slots only."""
    x_BLD = model.hidden(batch.ids_BL, batch.layout)
    index_S = torch.cat([term.index_S for term in batch.terms.values()])
    target_S = torch.cat([term.target_S for term in batch.terms.values()])
    logits_SE = model.head(x_BLD.flatten(0, 1).index_select(0, index_S))
    if logits_SE.dtype in (torch.bfloat16, torch.float16):
        logits_SE = logits_SE.float()
    loss_S = F.cross_entropy(logits_SE, target_S, reduction="none")
    return dict(zip(batch.terms, loss_S.split([len(term.target_S) for term in batch.terms.values()])))


def losses(model: Scorer, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """(Σ weight · mean, {term: mean}) [nats]. A term without targets counts 0 and stays in the graph."""
    means = {}
    for name, loss_S in target_losses(model, batch).items():
        divisor = batch.terms[name].divisor
        means[name] = loss_S.sum() / max(len(loss_S) if divisor is None else divisor, 1e-9)
    total = sum(batch.terms[name].weight * mean for name, mean in means.items())
    return total, {name: mean.detach() for name, mean in means.items()}


# ------------------------------------------------------------------------------------------------------------- draws
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit moves every output bit. uint64, wraps."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def uniform_draws(seed: int, epoch: int | np.ndarray, rows_B: Sequence[int], length: int) -> np.ndarray:
    """Uniform numbers in [0, 1), float64 [B, length]: entry (b, i) depends on (seed, epoch, rows_B[b], i) alone.

    `epoch` is one number, or one for each row.
    """
    with np.errstate(over="ignore"):
        key = _mix(np.full(1, seed, np.uint64) + _STEP)
        key_B = _mix(key + np.asarray(epoch, np.uint64) * _STEP + _STEP)
        key_B = _mix(key_B + np.asarray(rows_B, np.uint64) * _STEP + _STEP)
        bits_BL = _mix(key_B[:, None] + (np.arange(length, dtype=np.uint64)[None] + np.uint64(1)) * _STEP)
    return (bits_BL >> np.uint64(11)).astype(np.float64) * 2.0**-53


# ------------------------------------------------------------------------------------------------- rows of the shards
def next_token_batch(rows_BN: np.ndarray, starts: Sequence[np.ndarray] | None, *, first_slot: int = 0) -> Batch:
    """Every token from its past. `rows_BN` holds N+1 tokens a row; `first_slot` > 0 asks for later slots only.

    `starts`: where documents begin in each row; they then do not see each other and no target crosses a border.
    None: the row is one text, as in the released JRT training.
    """
    wanted_BN = _continues(rows_BN, starts)
    wanted_BN[:, :first_slot] = False
    terms = {"next": _term(wanted_BN, rows_BN[:, 1:], 1.0)}
    return _batch(rows_BN[:, :-1], _row_layout(rows_BN, starts, prefix=0), terms, rows_BN[:, :-1].size)


def prefix_lm_batch(
    rows_BN: np.ndarray, starts: Sequence[np.ndarray] | None, *, prefix: int, mask_id: int, draws_BN: np.ndarray,
    mask_share: float = 0.15, mask_weight: float = 0.25, boundary: Boundary = "released",
    normalisation: Normalisation = "paper", target_zero: bool = True,
) -> Batch:
    """JRT §5: the first `prefix` slots of a row are read both ways and some of them guessed, the rest is predicted.

    * `masked`: slots i < M with draws < `mask_share`; the input becomes `mask_id` always, the target is the token that
      stood there. `target_zero=False` drops targets with id 0, as the released loss does by selecting labels > 0.
    * `next`: slot i asks for token i+1 of the same document for i ≥ M; with boundary "predict" also i = M−1 (which
      sees only tokens < M, so nothing leaks; the released code never trains it).
    With `starts`, a document that straddles slot M has its own m = M − start, one that ends before M is all prefix and
    gives no `next` target, one that begins later is causal. "paper" divides the weights by their sum (JRT Eq. 5).
    """
    chosen_BN = draws_BN < mask_share
    chosen_BN[:, prefix:] = False
    wanted_BN = _continues(rows_BN, starts)
    wanted_BN[:, : max(0, prefix - (boundary == "predict"))] = False
    ids_BN = np.where(chosen_BN, mask_id, rows_BN[:, :-1])
    terms = {"next": _term(wanted_BN, rows_BN[:, 1:], 1.0)}
    if mask_share > 0:
        labelled_BN = chosen_BN if target_zero else chosen_BN & (rows_BN[:, :-1] != 0)
        terms["masked"] = _term(labelled_BN, rows_BN[:, :-1], mask_weight)
    layout = _row_layout(rows_BN, starts, prefix)
    batch = _batch(ids_BN, layout, _weighted(terms, normalisation), ids_BN.size)
    return replace(batch, silent=sum(m == n for _, n, m in layout.documents))


# ------------------------------------------------------------------------------------------------------- recall rows
def answers_batch(
    flat_ids: np.ndarray, lengths_B: np.ndarray, prefix_B: np.ndarray, answers: Sequence[np.ndarray], *,
    reads_prefix: bool, mask_id: int, draws_BL: np.ndarray | None = None, mask_share: float = 0.15,
    mask_weight: float = 0.25, document_share: float = 0.10, document_weight: float = 1.0,
    normalisation: Normalisation = "paper",
) -> Batch:
    """Recall rows: the answers, plus a little of the document so that its words are learnt too.

    `flat_ids` are the rows' tokens one after another, `lengths_B` their numbers n, `prefix_B` m (tokens up to and with
    the blank line, or the whole prompt), `answers[b]` the slots i whose token i+1 is wanted. A row enters as n−1
    tokens, since its last token is only ever a target.
    * `answer`: those slots, weight 1. The first may be slot m−1: this objective always has boundary "predict". Text
      rows never use it (their answers lie in the lines after m); in set-intersection rows it is the only target.
    * causal models, `document`: slots i < m−1 with draws < `document_share` predict token i+1.
    * prefix models, `masked`: slots i < m with draws < `mask_share`, input replaced by `mask_id`, same token wanted;
      the layout carries m.
    Raises LayoutError for an answer inside the prefix, which a prefix model would read rather than recall.
    """
    rows_BL = np.zeros((len(lengths_B), int(lengths_B.max())), np.int64)
    rows_BL[np.arange(rows_BL.shape[1])[None] < lengths_B[:, None]] = flat_ids
    slots = rows_BL.shape[1] - 1
    row_S = np.repeat(np.arange(len(answers)), [len(slots_of_row) for slots_of_row in answers])
    slot_S = np.concatenate([np.asarray(slots_of_row, np.int64) for slots_of_row in answers])
    _check_answers(row_S, slot_S, lengths_B, prefix_B)
    terms = {"answer": Term(torch.from_numpy(row_S * slots + slot_S), torch.from_numpy(rows_BL[row_S, slot_S + 1]), 1.0)}
    ids_BL, layout = rows_BL[:, :-1], Layout.right_padded((lengths_B - 1).tolist(), slots)
    place_L = np.arange(slots)[None]
    if reads_prefix:
        layout = layout.with_prefix(np.minimum(prefix_B, lengths_B - 1).tolist())
        if mask_share > 0:
            chosen_BL = (draws_BL[:, :slots] < mask_share) & (place_L < prefix_B[:, None])
            terms["masked"] = _term(chosen_BL, ids_BL, mask_weight)
            ids_BL = np.where(chosen_BL, mask_id, ids_BL)
    elif document_share > 0:
        chosen_BL = (draws_BL[:, :slots] < document_share) & (place_L < prefix_B[:, None] - 1)
        terms["document"] = _term(chosen_BL, rows_BL[:, 1:], document_weight)
    return _batch(ids_BL, layout, _weighted(terms, normalisation), int(lengths_B.sum()))


def _check_answers(row_S: np.ndarray, slot_S: np.ndarray, lengths_B: np.ndarray, prefix_B: np.ndarray) -> None:
    outside = (slot_S < prefix_B[row_S] - 1) | (slot_S >= lengths_B[row_S] - 1)
    if outside.any():
        row, slot = int(row_S[outside][0]), int(slot_S[outside][0])
        raise LayoutError(
            f"row {row} of the batch wants an answer at slot {slot}, but its prefix has {int(prefix_B[row])} and the "
            f"row {int(lengths_B[row])} tokens: answers lie in slots m-1 to n-2; rebuild the rows artifact")


# ------------------------------------------------------------------------------------------------------------- parts
def _continues(rows_BN: np.ndarray, starts: Sequence[np.ndarray] | None) -> np.ndarray:
    """True at slot i where token i+1 belongs to the same document. [B, N]"""
    same_BN = np.ones((len(rows_BN), rows_BN.shape[1] - 1), bool)
    for same_N, begins in zip(same_BN, starts or ()):
        begins = np.asarray(begins, np.int64)
        same_N[begins[begins > 0] - 1] = False
    return same_BN


def _row_layout(rows_BN: np.ndarray, starts: Sequence[np.ndarray] | None, prefix: int) -> Layout:
    length = rows_BN.shape[1] - 1
    if starts is None:
        layout = Layout.dense(len(rows_BN), length)
        return layout.with_prefix(prefix) if prefix else layout
    bounds = [np.unique([0, *(int(s) for s in begins if 0 < s < length), length]) for begins in starts]
    layout = Layout.packed([np.diff(row).tolist() for row in bounds], length)
    if not prefix:
        return layout
    return layout.with_prefix([np.clip(prefix - row[:-1], 0, np.diff(row)).tolist() for row in bounds])


def _term(chosen_BL: np.ndarray, target_BL: np.ndarray, weight: float) -> Term:
    index_S = np.flatnonzero(chosen_BL)
    return Term(torch.from_numpy(index_S), torch.from_numpy(target_BL[chosen_BL].astype(np.int64)), weight)


def _weighted(terms: dict[str, Term], normalisation: Normalisation) -> dict[str, Term]:
    """Weights as given ("released"), or divided by their sum ("paper")."""
    if normalisation == "released":
        return terms
    total = sum(term.weight for term in terms.values())
    return {name: replace(term, weight=term.weight / total) for name, term in terms.items()}


def _batch(ids_BL: np.ndarray, layout: Layout, terms: dict[str, Term], tokens: int) -> Batch:
    supervised = sum(len(term.target_S) for term in terms.values())
    return Batch(torch.from_numpy(np.ascontiguousarray(ids_BL, dtype=np.int64)), layout, terms, tokens, supervised)
