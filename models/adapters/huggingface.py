"""Any causal model of transformers behind the calls of models.LanguageModel: prefill, extend, step, forward.

What a model of transformers does with pads, caches and pieces differs by family and release, and a fault there is
silent: text comes out, only other text. So nothing is believed: `hf_check.examine` measures each way of calling the
very weights at hand against the plain pass over one bare row, and only ways that agree are used; the rest fall back to
slower ones that need no trust (models/adapters/hf_check.py lists them).

Pads never reach a model where they could act: a whole pass is run with each row's tokens first and no cache, where a
causal model cannot see the pads behind them; a prefill is left padded with mask and positions, or runs in groups of
equal length. Letters: B rows, L slots, E vocabulary rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from kernels.errors import LayoutError, StateError, UnsupportedUse
from kernels.layout import Layout
from models.adapters import hf_cache, hf_one_token
from models.adapters.hf_check import PLAIN, Ways, examine
from models.adapters.hf_load import load
from models.adapters.hf_state import Group, HFState
from models.cost import Abilities, Cost
from models.mixer import check_fits, check_length, check_no_prefix

CACHES = ("cache", "state", "past_key_values", "cache_params")     # names under which families return their memory
PROBES = (8, 16)                                                   # tokens; does the state grow between them?


class Facts(NamedTuple):
    """What generation asks of a model's config. `prefix_tokens` is None: transformers models read no prefix."""

    vocabulary: int
    table_rows: int
    prefix_tokens: int | None = None


class HuggingFaceModel(nn.Module):
    """A model of transformers as `models.greedy` and the evaluation call it.

    model   an `AutoModelForCausalLM`, already built; `HuggingFaceModel.load` takes a folder or a hub name
    ways    how it may be called; None = measure now (some forty passes over a dozen tokens, in float32 at least)
    Raises UnsupportedUse for a model whose logits depend on later tokens, and for quantised weights.
    """

    def __init__(self, model: nn.Module, ways: Ways | None = None):
        super().__init__()
        if getattr(model, "is_quantized", False):
            raise UnsupportedUse(f"{type(model).__name__} is quantised, so it cannot be checked in float32; "
                                 "load the unquantised weights")
        self.model = model
        self.eval()                                # without dropout; generation restores what it finds
        self.family = str(getattr(model.config, "model_type", type(model).__name__))
        self._accepts = frozenset(inspect.signature(model.forward).parameters)
        text = model.config.get_text_config(decoder=True)
        rows = int(model.get_input_embeddings().weight.shape[0])
        self.config = Facts(min(int(text.vocab_size), rows), rows)
        limit = getattr(text, "max_position_embeddings", None)
        self._limit = int(limit) if limit and int(limit) > 0 else None
        self._able: Abilities | None = None
        self.ways = ways or PLAIN
        if ways is None:
            self.ways = examine(self)

    @classmethod
    def load(cls, source: str, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu",
             revision: str | None = None, trust_remote_code: bool = False) -> HuggingFaceModel:
        """The model in a folder or under a hub name, checked in float32, then in `dtype` (None = float32).

        Raises ConfigError (nothing there, no network, weights missing) or UnsupportedUse (not a causal model).
        """
        model = load(source, revision=revision, trust_remote_code=trust_remote_code).to(device)
        checked = cls(model)
        return checked if dtype is None else checked.to(dtype)

    # ------------------------------------------------------------------------------------------------ whole sequences
    def forward(self, ids_BL: torch.Tensor, layout: Layout) -> torch.Tensor:
        """logits_BLE, 0 at pads. Any layout: packed documents run as rows of their own."""
        check_fits(ids_BL, layout)
        check_length(self.family, self._limit, layout)
        index_NS, rows = layout.unpack()           # one document a row, its tokens first
        ids_NS = torch.where(rows.real_BL, ids_BL.flatten()[index_NS], 0)
        flat = None
        for group in _alike(rows.lengths, self.ways.batch, self.ways.right):
            longest = max(rows.lengths[row] for row in group)
            if not longest:
                continue
            logits_GSE, _ = self._call(ids_NS[group, :longest])
            flat = logits_GSE.new_zeros(ids_BL.numel(), logits_GSE.shape[-1]) if flat is None else flat
            real_GS = rows.real_BL[group, :longest]
            flat = flat.index_put((index_NS[group, :longest][real_GS],), logits_GSE[real_GS])
        if flat is None:
            return torch.zeros(*ids_BL.shape, self.config.table_rows, dtype=self.dtype, device=self.device)
        return flat.unflatten(0, ids_BL.shape)

    def hidden(self, ids_BL: torch.Tensor, layout: Layout) -> torch.Tensor:
        """For the objectives, which read `head(hidden(...))`: already the logits, since families scale and cap them in
        ways of their own."""
        return self(ids_BL, layout)

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """x itself: `hidden` has gone through the model's own head."""
        return x

    # ------------------------------------------------------------------------------------------------------- streaming
    @torch.no_grad()
    def prefill(self, ids_BL: torch.Tensor, layout: Layout, all_logits: bool = False,
                ) -> tuple[torch.Tensor, HFState]:
        """(logits_BE at each row's last real token, state); with all_logits, logits_BLE. Each row needs a token."""
        _check_rows("prefill", ids_BL, layout)
        for row, length in enumerate(layout.lengths):
            if length == 0:
                raise LayoutError(f"lengths, row {row}: got 0 tokens in prefill, expected at least 1. "
                                  "Begin the row with a token, for example the end-of-text id.")
        check_length(self.family, self._limit, layout)
        if self.ways.stairs and not all_logits and len(set(layout.lengths)) > 1:
            return self._stairs(ids_BL, layout)
        start = torch.zeros(layout.shape[0], dtype=torch.int64, device=self.device)
        groups = [(Group(tuple(rows), start[rows], tokens=None if self.ways.cache else (start[:0],) * len(rows)),
                   max(layout.lengths[row] for row in rows))
                  for rows in self._prefills(layout.lengths)]
        return self._go_on(groups, ids_BL, layout, all_logits)

    @torch.no_grad()
    def extend(self, ids_BL: torch.Tensor, layout: Layout, state: HFState, all_logits: bool = False,
               ) -> tuple[torch.Tensor, HFState]:
        """Further tokens, any number per row; a row of 0 new tokens gets zeros. Uses `state` up."""
        _check_rows("extend", ids_BL, layout)
        check_no_prefix(layout)
        self._check_state(state, ids_BL)
        check_length(self.family, self._limit, layout, state)
        groups: list[tuple[Group, int]] = []
        for group in state.spend().groups:
            wanted = [layout.lengths[row] for row in group.rows]
            for count in sorted(set(wanted)):
                places = [k for k, each in enumerate(wanted) if each == count]
                whole = len(places) == len(wanted)
                groups.append((group if whole else group.pick(places, [group.rows[k] for k in places]), count))
        return self._go_on(groups, ids_BL, layout, all_logits)

    def step(self, ids_B: torch.Tensor, state: HFState) -> tuple[torch.Tensor, HFState]:
        """(logits_BE, state): one token for every row. Uses `state` up."""
        if ids_B.ndim != 1:
            raise LayoutError(f"step: got ids of shape {tuple(ids_B.shape)}, expected (B,), one token a row")
        return self.extend(ids_B[:, None], Layout.dense(ids_B.shape[0], 1, device=ids_B.device), state)

    def _prefills(self, lengths: Sequence[int]) -> list[list[int]]:
        """Row numbers that begin together."""
        if self.ways.cache and not self.ways.rows:
            return [[row] for row in range(len(lengths))]
        groups = _alike(lengths, True, self.ways.left or not self.ways.cache)
        if not self.ways.axis:
            return groups
        return [part for rows in groups                # a memory that a call makes itself cannot be mended
                for part in ([rows] if max(lengths[row] for row in rows) > 1 else [[row] for row in rows])]

    def _stairs(self, ids_BL: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, HFState]:
        """A prefill of unequal rows without pads: together up to the end of the shortest, the others on from there."""
        index_BL, rows = layout.align()
        ids_BL = ids_BL.gather(1, index_BL)                                # tokens first
        start, *stops = sorted(set(rows.lengths))
        out, state = self.prefill(ids_BL[:, :start], Layout.dense(len(rows.lengths), start, device=ids_BL.device))
        for stop in stops:
            piece = Layout.right_padded([min(n, stop) - min(n, start) for n in rows.lengths], device=ids_BL.device)
            logits_BE, state = self.extend(ids_BL[:, start:stop], piece, state)
            ended_B = torch.tensor([n == stop for n in rows.lengths], device=ids_BL.device)
            out = torch.where(ended_B[:, None], logits_BE, out)
            start = stop
        return out, state

    # ------------------------------------------------------------------------------------------------- the two ways on
    def _go_on(self, groups: Sequence[tuple[Group, int]], ids_BL: torch.Tensor, layout: Layout, all_logits: bool,
               ) -> tuple[torch.Tensor, HFState]:
        """Feed each group its rows' tokens, at most as many columns as it is listed with, and put the logits where the
        rows want them."""
        index_BL, rows = layout.align()
        ids_BL = ids_BL.gather(1, index_BL)
        B, L = ids_BL.shape
        out, after = None, []
        for group, count in groups:
            if not count:
                after.append(group)
                continue
            chosen = list(group.rows)
            lengths = [rows.lengths[row] for row in chosen]
            logits_GSE, group = self._feed(group, ids_BL[chosen, :count], lengths, all_logits)
            after.append(group)
            if out is None:
                out = logits_GSE.new_zeros(B, *((L,) if all_logits else ()), logits_GSE.shape[-1])
            if not all_logits:
                out[chosen] = logits_GSE[:, -1]
                continue
            real_GS = rows.real_BL[chosen, :count]                         # tokens first
            place_GS = index_BL[chosen, :count] + L * torch.tensor(chosen, device=ids_BL.device)[:, None]
            out.view(B * L, -1)[place_GS[real_GS]] = logits_GSE[_last(lengths, count, real_GS.device)]
        if out is None:
            out = torch.zeros(B, *((L,) if all_logits else ()), self.config.table_rows, dtype=self.dtype,
                              device=self.device)
        return out, HFState(after, self.device, self.dtype, apart=self.ways.cache and not self.ways.rows)

    def _feed(self, group: Group, ids_GS: torch.Tensor, lengths: list[int], all_logits: bool,
              ) -> tuple[torch.Tensor, Group]:
        """The group after `lengths` more tokens a row; rows of ids hold their tokens first. Logits, tokens last."""
        G, S = ids_GS.shape
        real_GS = _last(lengths, S, ids_GS.device)
        length_G = torch.tensor(lengths, device=ids_GS.device)
        if group.tokens is not None:
            return self._afresh(group, ids_GS, lengths, all_logits)
        padded = min(lengths) < S
        if padded:                                                         # only in a prefill
            ids_GS = torch.zeros_like(ids_GS).masked_scatter(real_GS, ids_GS[_first(lengths, S, ids_GS.device)])
        position_GS = group.count_B[:, None] + (torch.arange(S, device=ids_GS.device) - (S - length_G)[:, None])
        if group.cache is not None and S > 1 and not self.ways.pieces:
            parts = []
            for column in range(S):
                logits, group = self._feed(group, ids_GS[:, column:column + 1], [1] * G, all_logits)
                parts.append(logits)
            return (torch.cat(parts, dim=1) if all_logits else parts[-1]), group
        held = hf_cache.columns(group.cache) if group.cache is not None else 0
        before = group.mask_BL
        mask_GS = None
        if padded or before is not None:
            old = torch.ones(G, held, dtype=torch.bool, device=ids_GS.device) if before is None else before
            mask_GS = torch.cat([old, real_GS], dim=1) if held or group.cache is None else None
        logits_GSE, cache = self._call(ids_GS, mask_GS, position_GS.clamp(min=0), group.cache, True, not all_logits)
        if cache is None:
            raise StateError(f"{self.family}: the model returned no cache under {' or '.join(CACHES)}")
        if S > 1:
            cache = hf_cache.compact(cache)
        keeps = mask_GS if hf_cache.columns(cache) else None               # a memory without columns needs no mask
        return logits_GSE, Group(group.rows, group.count_B + length_G, cache, keeps)

    def _afresh(self, group: Group, ids_GS: torch.Tensor, lengths: list[int], all_logits: bool,
                ) -> tuple[torch.Tensor, Group]:
        """For a model whose cache cannot be trusted: the whole text again."""
        tokens = tuple(torch.cat([old, row[:count]]) for old, row, count in zip(group.tokens, ids_GS, lengths))
        totals = [len(row) for row in tokens]
        ids_GL = torch.nn.utils.rnn.pad_sequence(list(tokens), batch_first=True)
        logits_GLE = self(ids_GL, Layout.right_padded(totals, device=ids_GL.device))
        S = ids_GS.shape[1] if all_logits else 1
        place_GS = torch.tensor(totals, device=ids_GL.device)[:, None] - S + torch.arange(S, device=ids_GL.device)
        logits_GSE = logits_GLE.gather(1, place_GS.clamp(min=0)[..., None].expand(-1, -1, logits_GLE.shape[-1]))
        count_B = torch.tensor(totals, device=ids_GL.device, dtype=torch.int64)
        return logits_GSE, Group(group.rows, count_B, tokens=tokens)

    def _call(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor | None = None,
              position_BL: torch.Tensor | None = None, cache: Any = None, use_cache: bool = False,
              last: bool = False) -> tuple[torch.Tensor, Any]:
        """(logits, cache) of transformers' own forward, given what its signature names and nothing else."""
        given: dict[str, Any] = {"input_ids": ids_BL, "use_cache": use_cache, "return_dict": True}
        if mask_BL is not None:
            given["attention_mask"] = mask_BL.to(torch.int64)
        if position_BL is not None and "position_ids" in self._accepts:
            given["position_ids"] = position_BL
        if last and "logits_to_keep" in self._accepts:
            given["logits_to_keep"] = 1
        if cache is not None:
            one = self.ways.axis and ids_BL.shape[1] == 1
            given[self._cache_name] = hf_one_token.with_axis(cache) if one else cache
        found = self.model(**given)
        for name in CACHES if use_cache else ():
            if found.get(name) is not None:
                self._cache_name = name
                return found.logits, hf_one_token.without_axis(found[name])
        return found.logits, None

    # ---------------------------------------------------------------------------------------------------------- checks
    def _check_state(self, state: HFState, ids: torch.Tensor) -> None:
        if not isinstance(state, HFState):
            raise StateError(f"got {state!r}, expected a state that this model's prefill or extend returned")
        state.check_fresh()
        if state.rows != ids.shape[0]:
            raise StateError(f"state has {state.rows} rows, ids have {ids.shape[0]}; use select or cat")
        if state.dtype != self.dtype:
            raise StateError(f"state was made in {state.dtype}, the model is in {self.dtype}")

    # ------------------------------------------------------------------------------------------------- what it is
    @property
    def embedding(self) -> nn.Module:
        """The table of token vectors."""
        return self.model.get_input_embeddings()

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return self.embedding.weight.device

    @property
    def able(self) -> Abilities:
        """What generation asks; `growth` is measured on first use, `reach` is not known and reads as all."""
        if self._able is None:
            first, second = (self._state_after(self._within(n)).nbytes for n in PROBES)
            self._able = Abilities(prefix=False, growth="constant" if first == second else "linear",
                                   max_length=self._limit)
        return self._able

    def abilities(self) -> Abilities:
        """The same as `able`."""
        return self.able

    @torch.no_grad()
    def cost(self, length: int, dtype: torch.dtype | None = None) -> Cost:
        """Measured, by running `length` tokens and one more: bytes of the live state, and the matrix products,
        attentions and convolutions that torch counts (full squares, no scans). `dtype` can only be the model's own.
        """
        if dtype not in (None, self.dtype):
            raise UnsupportedUse(f"cost: the state is measured, and the model is in {self.dtype}; use .to({dtype}) first")
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as whole:      # the products, seen one by one
            state = self._state_after(length)
        held = state.nbytes
        if self._limit is not None and length >= self._limit:              # no room for one more: count the last one
            state = self._state_after(length - 1)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as step:
            self.step(torch.zeros(1, dtype=torch.int64, device=self.device), state)
        return Cost(sum(p.numel() for p in self.parameters()), whole.get_total_flops(), step.get_total_flops(), held)

    def _state_after(self, length: int) -> HFState:
        ids_BL = torch.zeros(1, length, dtype=torch.int64, device=self.device)
        return self.prefill(ids_BL, Layout.dense(1, length, device=self.device))[1]

    def _within(self, length: int) -> int:
        return length if self._limit is None else min(length, self._limit)


def _check_rows(use: str, ids_BL: torch.Tensor, layout: Layout) -> None:
    if layout.packed:
        raise LayoutError(f"{use}: got packed rows, expected one document a row. Use layout.unpack() first.")
    check_fits(ids_BL, layout)


def _alike(lengths: Sequence[int], batch: bool, ragged: bool) -> list[list[int]]:
    """Row numbers that run in one call: all, those of one length, or each alone."""
    if not batch:
        return [[row] for row in range(len(lengths))]
    if ragged:
        return [list(range(len(lengths)))] if lengths else []
    return [[row for row, each in enumerate(lengths) if each == length] for length in sorted(set(lengths))]


def _first(lengths: Sequence[int], S: int, device: torch.device) -> torch.Tensor:
    """bool (B, S): the first `lengths` columns of each row."""
    return torch.arange(S, device=device) < torch.tensor(lengths, device=device)[:, None]


def _last(lengths: Sequence[int], S: int, device: torch.device) -> torch.Tensor:
    """bool (B, S): the last `lengths` columns of each row."""
    return torch.arange(S, device=device) >= S - torch.tensor(lengths, device=device)[:, None]
