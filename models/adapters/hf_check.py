"""Which ways of calling a transformers model give what the plain pass over one bare row gives.

    batch   rows of equal length in one pass                               else: every row alone
    right   rows of unequal length in one pass, tokens first, no cache     else: one pass per length
    cache   going on from the memory that a call returned, for a copy and  else: the whole text again for every token
            for selected rows as for the original
    rows    several rows on one memory                                     else: every row alone
    axis    the same, a memory mended as hf_one_token tells; tried where `rows` fails and the family is known to need it
    left    rows of unequal length in one prefill, tokens last, masked     else: one prefill per length, no pads at all
    pieces  several tokens at once on top of a memory                      else: one after the other
    stairs  where `left` fails: unequal rows together up to the end of     else: one prefill per length
            the shortest, the others on from there

Known faults that this finds (transformers 5.24): RWKV-4 mixes the rows of a batch in a decode step (a state without its
time axis meets inputs with one; `axis` gives it one) and does not use its mask; Mamba begins a second piece from an empty state, in hybrids
too; RecurrentGemma keeps its memory inside the module. Found before, in other releases: a memory passed under a name
that `**kwargs` swallows is lost without a word, and pads that act through a convolution's bias. Measured on the weights
at hand with random tokens, so that a fault that these weights cannot show (a bias of zero) is judged as they are.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from kernels.errors import ConfigError, UnsupportedUse
from kernels.layout import Layout
from models.adapters.hf_one_token import FAMILIES

if TYPE_CHECKING:
    from models.adapters.huggingface import HuggingFaceModel

# Largest difference over largest logit that is still rounding: 30 times what shorter plain passes
# cost, between these bounds. Measured: rounding 1e-7 to 6e-7 on models of two to four layers, faults from 3e-5 (two random
# layers of Jamba) to 2.
LEAST, MOST, ROUNDINGS = 1e-5, 1e-4, 30
LENGTHS, MORE = (2, 5, 9, 5, 1, 1), 3           # two rows of one token, which may take a path of its own
SHORT_LENGTHS, SHORT_MORE = (1, 2, 3, 2, 1), 1      # for models that can place fewer than a dozen tokens
TOLD = {
    "batch": ("rows of equal length in one pass", "every row runs alone"),
    "right": ("rows of unequal length in one pass", "rows run in groups of equal length"),
    "cache": ("going on from its own memory", "the whole text is read again for every token"),
    "rows": ("several rows on one memory", "prompts are read and answered one at a time"),
    "axis": ("several rows on one memory, its time axis mended", "prompts are read and answered one at a time"),
    "left": ("left-padded prompts in one pass", "prompts are read without pads"),
    "stairs": ("prompts of unequal length in common pieces", "prompts are read in groups of equal length"),
    "pieces": ("several tokens on top of a memory", "further tokens are read one by one"),
}
log = logging.getLogger("reread.models.adapters.huggingface")
_told: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Ways:
    """How a model may be called; `differences` is what was measured of each way, inf where it raised, and `allowed`
    what counted as rounding."""

    batch: bool = False
    right: bool = False
    cache: bool = False
    rows: bool = False
    left: bool = False
    pieces: bool = False
    axis: bool = False
    stairs: bool = False
    allowed: float = LEAST
    differences: dict[str, float] = field(default_factory=dict)


PLAIN = Ways()


@torch.no_grad()
def examine(model: HuggingFaceModel) -> Ways:
    """Measure every way. The result is the model's own; what falls back is said once per family in the log.

    Raises UnsupportedUse where a later token moves an earlier logit, ConfigError where logits are not finite.
    """
    if model.dtype not in (torch.float32, torch.float64):
        model = copy.deepcopy(model).float()
    lengths, more = (LENGTHS, MORE) if (model._limit or 1 << 30) >= max(LENGTHS) + MORE else (SHORT_LENGTHS, SHORT_MORE)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, model.config.vocabulary, (n + more,), generator=generator).to(model.device)
             for n in lengths]
    alone = [model._call(text[None])[0][0] for text in texts]
    if not all(logits.isfinite().all() for logits in alone):
        raise ConfigError(f"{model.family}: logits of random tokens are not finite; are the weights damaged?")
    cuts = [difference(model._call(text[None, :-more])[0][0], each[:-more]) for text, each, n in zip(texts, alone, lengths) if n > 1]
    limit = min(MOST, max(LEAST, ROUNDINGS * max(cuts)))       # what a shorter pass changes: the order of sums
    longest = lengths.index(max(lengths))
    _check_causal(model, texts[longest], alone[longest])
    found: dict[str, float] = {}
    usable: dict[str, bool] = {}

    def measure(name: str, trial: Ways, run: Callable[[], float], told: bool = True) -> bool:
        with _ways(model, trial):
            found[name], why = _tried(run)
        usable[name] = found[name] <= limit
        if not usable[name] and told:
            _tell(model.family, name, found[name], limit, why)
        return usable[name]

    def streamed() -> float:
        return _streamed(model, texts, alone, lengths, more)

    batched = measure("batch", Ways(batch=True), lambda: _whole(model, [texts[longest]] * 3, [alone[longest]] * 3))
    if batched:
        measure("right", Ways(batch=True, right=True), lambda: _whole(model, texts, alone))
    if measure("cache", Ways(cache=True), streamed):
        mends = model.family in FAMILIES
        if batched and not measure("rows", Ways(cache=True, rows=True), streamed, told=not mends) and mends:
            usable["rows"] = measure("axis", Ways(cache=True, rows=True, axis=True), streamed)
        together = Ways(cache=True, rows=usable.get("rows", False), axis=usable.get("axis", False))
        if together.rows:
            measure("left", replace(together, left=True), streamed)
        if measure("pieces", Ways(cache=True, pieces=True),
                   lambda: _pieces(model, texts[longest], alone[longest], lengths[longest])) and usable.get("left") is False:
            measure("stairs", replace(together, pieces=True, stairs=True), streamed)
    return Ways(**usable, allowed=limit, differences=found)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over largest expected value; inf for what is not finite."""
    if not found.isfinite().all():
        return float("inf")
    return ((found - expected).detach().abs().max() / expected.detach().abs().max().clamp(min=1e-30)).item()


def _check_causal(model: HuggingFaceModel, text: torch.Tensor, alone: torch.Tensor) -> None:
    other = text.clone()
    other[-1] = (other[-1] + 1) % model.config.vocabulary
    moved = difference(model._call(other[None])[0][0, :-1], alone[:-1])
    if moved > MOST:
        raise UnsupportedUse(f"{model.family}: changing the last token moves earlier logits by {moved:.2g}, so this is no "
                             "causal language model (an encoder loaded as one?); choose a decoder")


def _whole(model: HuggingFaceModel, texts: list[torch.Tensor], alone: list[torch.Tensor]) -> float:
    """Rows in one pass."""
    lengths = [len(text) for text in texts]
    ids_BL = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    logits_BLE = model(ids_BL, Layout.right_padded(lengths, device=ids_BL.device))
    return max(difference(logits_LE[:n], expected) for logits_LE, n, expected in zip(logits_BLE, lengths, alone))


def _streamed(model: HuggingFaceModel, texts: list[torch.Tensor], alone: list[torch.Tensor],
              lengths: tuple[int, ...], more: int) -> float:
    """Prefill, then steps; first those of a copy, so that a memory outside the state shows; then of rows turned round."""
    L, B = max(lengths), len(texts)
    ids_BL = torch.zeros(B, L, dtype=torch.int64, device=texts[0].device)
    for row, (text, n) in enumerate(zip(texts, lengths)):
        ids_BL[row, L - n:] = text[:n]
    logits_BE, state = model.prefill(ids_BL, Layout.left_padded(lengths, L, device=ids_BL.device))
    worst = max(difference(logits_BE[row], alone[row][n - 1]) for row, n in enumerate(lengths))
    order = list(range(B))[::-1]
    for rows, start in ((list(range(B)), state.clone()), (order, state.select(order))):
        for k in range(more):
            ids_B = torch.stack([texts[row][lengths[row] + k] for row in rows])
            logits_BE, start = model.step(ids_B, start)
            worst = max(worst, *(difference(logits_E, alone[row][lengths[row] + k])
                                 for logits_E, row in zip(logits_BE, rows)))
    return worst


def _pieces(model: HuggingFaceModel, text: torch.Tensor, alone: torch.Tensor, length: int) -> float:
    """Prefill of some tokens, the rest on top at once."""
    device, n = text.device, max(1, length // 2)
    _, state = model.prefill(text[None, :n], Layout.dense(1, n, device=device))
    logits_BLE, _ = model.extend(text[None, n:], Layout.dense(1, len(text) - n, device=device), state, all_logits=True)
    return difference(logits_BLE[0], alone[n:])


def _tried(run: Callable[[], float]) -> tuple[float, str]:
    try:
        return run(), ""
    except Exception as error:  # noqa: BLE001 - whatever a foreign model raises, this way of calling it is not usable
        return float("inf"), f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


@contextmanager
def _ways(model: HuggingFaceModel, ways: Ways) -> Iterator[None]:
    before, model.ways = model.ways, ways
    try:
        yield
    finally:
        model.ways = before


def _tell(family: str, name: str, measured: float, allowed: float, why: str) -> None:
    if (family, name) in _told:
        return
    _told.add((family, name))
    what = f"it raises {why}" if why else f"logits differ by {measured:.2g} of the largest, allowed is {allowed:.1g}"
    meaning, fallback = TOLD[name]
    log.warning("%s: %s: %s; %s", family, meaning, what, fallback)
