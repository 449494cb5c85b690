"""Mixer: the base class that turns any Layout into aligned rows, so that a mixer's author never meets padding.

Letters: B rows, L slots, N documents, D width. Contract 0 to 2 and 4. An author writes a `Config` (a MixerConfig) and a
subclass with `mix`, `init_state`, `cost` and `abilities`; everything a user calls is here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal, NoReturn

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import nn

from kernels.errors import LayoutError, LengthError, StateError, UnsupportedUse
from kernels.gradients import outside_inference
from kernels.layout import Layout
from models.cost import Abilities, Cost
from models.initialise import draw_normal
from models.state import State

Mode = Literal["causal", "non_causal", "cross"]


class MixerConfig(BaseModel):
    """Base of every mixer's `Config`: frozen, unknown keys and infinite numbers refused. `kind` is the file name.

    A mixer with several uses has a field `mode` of the values it can do: causal; non_causal, every token of a document
    reads every other; cross, tokens read a context. `why_not_causal`: for a kind that never can be, the reason; its
    `mode` still takes "causal", which raises UnsupportedUse with that reason.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    why_not_causal: ClassVar[str] = ""
    kind: str

    @model_validator(mode="after")
    def _is_possible(self) -> MixerConfig:
        if self.why_not_causal and getattr(self, "mode", None) == "causal":
            raise UnsupportedUse(f"{self.kind} cannot be causal: {self.why_not_causal}; {NOT_CAUSAL_REMEDY}")
        return self

    @classmethod
    def cases(cls) -> dict[str, MixerConfig]:
        """Named small configs that cover every mode: the contract suite's only list."""
        return {"default": cls()}


NOT_CAUSAL_REMEDY = "use mode='non_causal' outside language models, or a causal kind such as lavo, abc or attention"


@lru_cache(maxsize=64)
@outside_inference
def one_token(B: int, device: torch.device) -> Layout:
    """The layout of a decode step, shared: its tensors are made once."""
    return Layout.dense(B, 1, device=device)


class Mixer(nn.Module):
    """One sequence-mixing layer. y has x's shape and dtype; pads may hold anything and give exactly 0.

    `keep_init`: parameter names that trunk initialisation leaves alone; `no_decay`: without weight decay;
    `lr_scale`: factor on the learning rate by parameter name.
    """

    keep_init: ClassVar[frozenset[str]] = frozenset()
    no_decay: ClassVar[frozenset[str]] = frozenset()
    lr_scale: ClassVar[dict[str, float]] = {}

    def __init__(self, config: MixerConfig, width: int, layer: int):
        super().__init__()
        self.config, self.width, self.layer = config, width, layer
        self.able = type(self).abilities(config)

    # --------------------------------------------------------------------------------------- what an author writes
    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        """What this mixer can do under `config`."""
        return Abilities()

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        """y_BLD and the next state for aligned rows; x is 0 at pads, what stands at pads of y is ignored.

        state None: start afresh and keep nothing (return None). Otherwise `layout` already counts positions on from
        state.count_B; return `state.advanced(layout.lengths_B, name=tensor, ...)`. L and B are at least 1.
        A mixer with native_packing gets packed rows too, always with state None.
        """
        raise NotImplementedError

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        """One token a row, `layout` = (B, 1) after the state's counts. Override for speed."""
        y_B1D, state = self.mix(x_BD[:, None], layout, state)
        return y_B1D[:, 0], state

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        """The state of B rows that have seen nothing: `self.new_state(B, dtype, device, name=tensor, ...)`."""
        self._check_streaming("init_state", None)
        raise NotImplementedError

    def encode_context(self, context_BND: torch.Tensor, layout: Layout) -> State:
        """Mode cross: the memory of aligned contexts, 0 at pads; a row may hold none. N is at least 1.

        Return `self.new_state(B, dtype, device, name=tensor, ...).advanced(layout.lengths_B)`.
        """
        raise NotImplementedError

    def read_context(self, x_BLD: torch.Tensor, layout: Layout, memory: State) -> torch.Tensor:
        """Mode cross: y_BLD of aligned rows, row b reading memory row b; no token of x sees another. Rows without
        context are set to 0 by the base."""
        raise NotImplementedError

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """Cost of one row of `length` tokens in this layer. Mode cross: `length` tokens read as many context tokens; a
        step reads one more against that memory, whose bytes are state_bytes."""
        raise NotImplementedError

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw every parameter: matrices N(0, 1/fan_in), biases 0. Extend it for what needs another law."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                draw_normal(module.weight, module.in_features ** -0.5, generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    # ---------------------------------------------------------------------------------------------- what a user calls
    def forward(self, x_BLD: torch.Tensor, layout: Layout) -> torch.Tensor:
        """y_BLD for any layout; training and scoring."""
        if not (self.able.causal or self.able.non_causal):
            self._refuse("self-attention over one sequence", "it reads a context", "call encode and read")
        self._check(x_BLD, layout)
        check_length(self.config.kind, self.able.max_length, layout)
        return self.run(x_BLD, layout, None)[0]

    def prefill(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, State]:
        """(y_BLD, state): the first tokens of each row at once, 0 tokens allowed; one document a row."""
        self._check_streaming("prefill", layout)
        self._check(x_BLD, layout)
        check_length(self.config.kind, self.able.max_length, layout)
        return self.run(x_BLD, layout, self.init_state(x_BLD.shape[0], x_BLD.dtype, x_BLD.device))

    def extend(self, x_BLD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        """(y_BLD, state): any number of further tokens per row; uses `state` up. No prefix: prefill closed it."""
        self._check_streaming("extend", layout)
        check_no_prefix(layout)
        self._check(x_BLD, layout)
        self._check_state(state, x_BLD)
        check_length(self.config.kind, self.able.max_length, layout, state)
        layout = layout.after(state.spend().count_B)
        return self.run(x_BLD, layout, state)

    def step(self, x_BD: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """(y_BD, state): one token for every row; uses `state` up."""
        self._check_streaming("step", None)
        if x_BD.ndim != 2:
            raise LayoutError(f"{self.config.kind}: step got x of shape {tuple(x_BD.shape)}, expected (B, D) one token")
        self._check_width(x_BD)
        self._check_state(state, x_BD)
        layout = one_token(x_BD.shape[0], x_BD.device)
        check_length(self.config.kind, self.able.max_length, layout, state)
        return self.run_step(x_BD, layout.after(state.spend().count_B), state)

    def encode(self, context_BND: torch.Tensor, context_layout: Layout) -> State:
        """The memory of every context document, one row each (packed ones in unpack's order); for mode cross.

        `count_B` holds the documents' lengths, 0 allowed. Reading leaves the memory as it is.
        """
        self._check_cross()
        self._check(context_BND, context_layout)
        check_length(self.config.kind, self.able.max_length, context_layout)
        context_BND, rows = self._own_rows(context_BND, context_layout)
        if rows.shape[1] == 0:                           # authors always find a slot, here a pad
            context_BND = context_BND.new_zeros(rows.shape[0], 1, self.width)
            rows = Layout.right_padded([0] * rows.shape[0], 1, device=context_BND.device)
        return self.encode_context(context_BND, rows)

    def read(self, x_BLD: torch.Tensor, layout: Layout, memory: State) -> torch.Tensor:
        """y_BLD: each token reads the context of its document, document s row s of `memory`; 0 without context.

        Raises StateError unless there is one memory row for each document (each row of an unpacked layout).
        """
        self._check_cross()
        self._check(x_BLD, layout)
        x_MLD, rows = self._own_rows(x_BLD, layout)
        self._check_state(memory, x_MLD)
        if x_MLD.numel() == 0:
            return zero_pads(x_BLD, layout)
        y_MLD = self.read_context(x_MLD, rows, memory).to(x_BLD.dtype)
        y_MLD = torch.where((memory.count_B > 0)[:, None, None], y_MLD, 0)
        if layout.packed:
            y_MLD = y_MLD.flatten(0, 1)[layout.repack_BL]
        elif not layout.aligned:
            y_MLD = take_slots(y_MLD, layout.restore_BL)
        return zero_pads(y_MLD, layout)

    def _own_rows(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, Layout]:
        """x with one document a row, its tokens first and 0 at pads; and the layout of that."""
        if layout.packed:
            index_NL, rows = layout.unpack()
            x_BLD = x_BLD.flatten(0, 1)[index_NL]
        else:
            index_BL, rows = layout.align()
            if not layout.aligned:
                x_BLD = take_slots(x_BLD, index_BL)
        return zero_pads(x_BLD, rows), rows

    # --------------------------------------------------------------------------- what the base does for both of them
    def run(self, x_BLD: torch.Tensor, layout: Layout, state: State | None, *, clean: bool = False,
            ) -> tuple[torch.Tensor, State | None]:
        """Zero pads, align, mix, scatter back. `layout` counts on from `state`, which is spent already if need be.

        clean: x is known to be 0 at pads (a model zeroes once for all layers).
        """
        if x_BLD.numel() == 0 or not any(layout.lengths):
            return zero_pads(x_BLD, layout), None if state is None else state.advanced(layout.lengths_B)
        if layout.padded and not clean:
            x_BLD = zero_pads(x_BLD, layout)
        if layout.packed and not self.able.native_packing:
            index_NL, rows = layout.unpack()
            y, _ = self.mix(zero_pads(x_BLD.flatten(0, 1)[index_NL], rows), rows, None)
            y_BLD = y.flatten(0, 1)[layout.repack_BL]
        elif layout.aligned:
            y_BLD, state = self.mix(x_BLD, layout, state)
        else:
            index_BL, rows = layout.align()
            y, state = self.mix(take_slots(x_BLD, index_BL), rows, state)
            y_BLD = take_slots(y, layout.restore_BL)
        if layout.padded:
            y_BLD = zero_pads(y_BLD, layout)
        return y_BLD.to(x_BLD.dtype), state

    def run_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        """mix_step with the base's guards: no row at all, y in x's dtype."""
        if x_BD.shape[0] == 0:
            return torch.zeros_like(x_BD), state.advanced(layout.lengths_B)
        y_BD, state = self.mix_step(x_BD, layout, state)
        return y_BD.to(x_BD.dtype), state

    def new_state(self, B: int, dtype: torch.dtype, device: Any, **named: torch.Tensor) -> State:
        """A State of this kind at count 0; x's dtype is recorded beside the tensors'."""
        return State(self.config.kind, named, torch.zeros(B, dtype=torch.int64, device=device), dtype)

    @staticmethod
    def sum_dtype(dtype: torch.dtype) -> torch.dtype:
        """Dtype of running sums, means and normalisers: float64 for float64, else float32 (contract 5)."""
        return torch.float64 if dtype == torch.float64 else torch.float32

    def parameter_count(self) -> int:
        """Number of parameters, for `cost`."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _refuse(self, use: str, why: str, remedy: str) -> NoReturn:
        raise UnsupportedUse(f"{self.config.kind} cannot do {use}: {why}; {remedy}")

    def _check(self, x_BLD: torch.Tensor, layout: Layout) -> None:
        self._check_width(x_BLD)
        check_fits(x_BLD, layout)

    def _check_width(self, x: torch.Tensor) -> None:
        if x.shape[-1] != self.width:
            raise LayoutError(f"{self.config.kind}: x has width {x.shape[-1]}, expected {self.width}")

    def _check_cross(self) -> None:
        if not self.able.cross:
            self._refuse("cross-attention", "it mixes one sequence with itself",
                         "set mode='cross' where the kind has it, as attention and lavo do")

    def _check_streaming(self, use: str, layout: Layout | None) -> None:
        if not self.able.streaming:
            self._refuse(use, "it has no state that later tokens could extend",
                         "score whole sequences with forward, or choose a mixer whose abilities say streaming")
        if layout is not None and layout.packed:
            raise LayoutError(f"{use}: got packed rows, expected one document a row. Use layout.unpack() first.")

    def _check_state(self, state: State, x: torch.Tensor) -> None:
        if not isinstance(state, State) or state.kind != self.config.kind:
            kind = state.kind if isinstance(state, State) else type(state).__name__
            raise StateError(f"{self.config.kind}: got a state of kind {kind}; prefill with this mixer")
        state.check_fresh()
        if state.rows != x.shape[0]:
            raise StateError(f"{state.kind}: state has {state.rows} rows, x has {x.shape[0]}; use select or cat")
        if state.dtype != x.dtype:
            raise StateError(f"{state.kind}: state was made for {state.dtype}, x is {x.dtype}; prefill again in it")
        if state.device != x.device:
            raise StateError(f"{state.kind}: state is on {state.device}, x on {x.device}; use state.to")


def check_fits(x: torch.Tensor, layout: Layout) -> None:
    """LayoutError unless x (or ids) has the layout's (B, L) and device."""
    if tuple(x.shape[:2]) != layout.shape:
        raise LayoutError(f"shape: got {tuple(x.shape[:2])}, expected the layout's {layout.shape}. "
                          "Build the layout for these slots.")
    if x.device != layout.device:
        raise LayoutError(f"device: got x on {x.device}, layout on {layout.device}. Use layout.to({str(x.device)!r}).")


def check_no_prefix(layout: Layout) -> None:
    """LayoutError for a prefix after the first call: prefill closes it (contract 3)."""
    if layout.prefixed:
        raise LayoutError("prefix: got a prefix in extend, expected none. The first prefill closes the prefix; "
                          "everything later is suffix.")


def check_length(who: str, limit: int | None, layout: Layout, state: Any = None) -> None:
    """LengthError if a document would grow beyond `limit` tokens. Counts are read back only where there is a limit."""
    if limit is None:
        return
    longest = layout.longest
    if state is not None and state.rows:
        longest = int((state.count_B + layout.lengths_B).max())
    if longest > limit:
        raise LengthError(f"{who}: got {longest} tokens, it can place {limit}; shorten the text or train with a larger "
                          "max_length")


def zero_pads(x_BLD: torch.Tensor, layout: Layout) -> torch.Tensor:
    """x with 0 at pads. A product would keep NaN."""
    return torch.where(layout.real_BL[..., None], x_BLD, 0)


def take_slots(x_BLD: torch.Tensor, index_BL: torch.Tensor) -> torch.Tensor:
    """x_BLD[b, index_BL[b, i]]."""
    return x_BLD.gather(1, index_BL[..., None].expand(-1, -1, x_BLD.shape[-1]))


__all__ = ["Abilities", "Cost", "Mixer", "MixerConfig", "Mode", "check_fits", "check_length", "check_no_prefix", "one_token",
           "take_slots", "zero_pads"]
