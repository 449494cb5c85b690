"""Attention with bounded memory control: R slots, each a weighted mean of everything so far; a state of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from kernels.bounded_memory import SlotState, bounded_memory, bounded_step, empty_state
from kernels.bounded_memory.state import nonzero
from kernels.layout import Layout
from kernels.taylor.features import accumulator_dtype, without_autocast
from models.initialise import Linear, draw_uniform
from models.mixer import Abilities, Cost, Mixer, MixerConfig, Mode
from models.mixers.attention import head_width
from models.modes import abilities_in, mode_field
from models.state import State


class Config(MixerConfig):
    """Learned slot weights exp(logits), of keys and values apart (CAB) or shared (flash-linear-attention's layer).

    CAB's published causal form is not this: it keeps the current token alone in its slots and the past in their
    normalisers only. Its two other forms are modes non_causal and cross.
    """

    kind: Literal["abc"] = "abc"
    mode: Mode = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    slots: int = Field(16, ge=1, description="R a head (CAB 16, LAVO's language models 64, flash-linear-attention the head "
                                             "width)")
    logits: Literal["keys_values", "tokens"] = Field(
        "keys_values", description="keys_values: of a key's weight from k, of a value's from v, by two (head width, R) "
                                   "matrices that the heads share (CAB). tokens: from x, one for a token's key and value, "
                                   "by a projection of its own a head (flash-linear-attention)")
    clamp: float | None = Field(None, gt=0, description="Logits are held within ± this (flash-linear-attention 32); None = free")
    scale: float | None = Field(None, gt=0, description="Of q·k; None = head width^-1/2")
    bias: bool = Field(True, description="Biases of the four projections (CAB yes, flash-linear-attention no)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "keys_values": cls(heads=2, slots=6),
            "tokens": cls(heads=4, slots=3, logits="tokens", bias=False),
            "clamped": cls(heads=2, slots=5, logits="tokens", clamp=1.5, scale=1.0),
            "one_slot": cls(heads=2, slots=1),
            "both_ways": cls(heads=2, slots=6, mode="non_causal"),
            "both_ways_tokens": cls(heads=4, slots=3, logits="tokens", bias=False, mode="non_causal"),
            "cross": cls(heads=2, slots=6, mode="cross"),
            "cross_tokens": cls(heads=4, slots=3, logits="tokens", clamp=1.5, mode="cross"),
        }


class ABC(Mixer):
    """proj_q, proj_k, proj_v, slot weights, attention of the query over the slots, out_proj; no positions. The memory of a
    context is its slots."""

    keep_init = frozenset({"compress_k", "compress_v"})

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        self.proj_q, self.proj_k, self.proj_v, self.out_proj = (Linear(width, width, bias=config.bias) for _ in range(4))
        self.shared = config.logits == "tokens"
        if self.shared:
            self.proj_s = Linear(width, config.heads * config.slots, bias=False)
        else:
            self.compress_k, self.compress_v = (nn.Parameter(torch.empty(self.head_width, config.slots)) for _ in range(2))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices N(0, 1/fan_in); the heads' shared ones Xavier with gain 2^-1/2, as CAB does."""
        super().reset_parameters(generator)
        if not self.shared:
            for matrix in (self.compress_k, self.compress_v):
                draw_uniform(matrix, (3 / sum(matrix.shape)) ** 0.5, generator)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        if self.config.mode == "non_causal":
            return self._read(x_BLD, *self._slots(x_BLD, layout)), None
        q, k, v, logits, *more = self._project(x_BLD)
        settings = {"value_logits_BLHR": more[0] if more else None, "scale": self.config.scale,
                    "lengths_B": layout.lengths_B if layout.padded else None}
        if state is None:
            y = bounded_memory(q, k, v, logits, **settings)
        else:
            y, slots = bounded_memory(q, k, v, logits, state=held(state), return_state=True, **settings)
            state = state.advanced(layout.lengths_B, **named(slots))
        return self.out_proj(y.flatten(2)), state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v, logits, *more = self._project(x_BD)
        y, slots = bounded_step(q, k, v, logits, held(state), value_logits_BHR=more[0] if more else None,
                                scale=self.config.scale)
        return self.out_proj(y.flatten(1)), state.advanced(layout.lengths_B, **named(slots))

    def encode_context(self, context_BND: torch.Tensor, layout: Layout) -> State:
        keys, values = self._slots(context_BND, layout)
        memory = self.new_state(len(keys), context_BND.dtype, keys.device, keys=keys, values=values)
        return memory.advanced(layout.lengths_B)

    def read_context(self, x_BLD: torch.Tensor, layout: Layout, memory: State) -> torch.Tensor:
        return self._read(x_BLD, memory["keys"], memory["values"])

    def _slots(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (B, H, R, K) of the slots: means over all real tokens of a row, 0 where there is none."""
        k, v = self._heads(self.proj_k, x_BLD), self._heads(self.proj_v, x_BLD)
        logits = self._logits(x_BLD, k, v)
        return weighted_means(logits[0], k, layout), weighted_means(logits[-1], v, layout)

    def _read(self, x_BLD: torch.Tensor, keys_BHRK: torch.Tensor, values_BHRK: torch.Tensor) -> torch.Tensor:
        q = self._heads(self.proj_q, x_BLD)
        with without_autocast(q.device):
            scale = self.head_width**-0.5 if self.config.scale is None else self.config.scale
            scores = torch.einsum("blhk,bhrk->bhlr", q.to(keys_BHRK.dtype) * scale, keys_BHRK)
            y = (scores.softmax(-1) @ values_BHRK).transpose(1, 2)
        return self.out_proj(y.to(q.dtype).flatten(2))

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k, v (..., H, K) and one or two streams of logits (..., H, R)."""
        q, k, v = (self._heads(projection, x) for projection in (self.proj_q, self.proj_k, self.proj_v))
        return q, k, v, *self._logits(x, k, v)

    def _logits(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        """One stream, or that of the keys and that of the values."""
        logits = [self._heads(self.proj_s, x)] if self.shared else [k @ self.compress_k, v @ self.compress_v]
        if self.config.clamp is not None:
            logits = [stream.clamp(-self.config.clamp, self.config.clamp) for stream in logits]
        return logits

    def _heads(self, projection: Linear, x: torch.Tensor) -> torch.Tensor:
        return projection(x).unflatten(-1, (self.config.heads, -1))

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        return self.new_state(B, dtype, device, **named(empty_state(
            B, self.config.heads, self.config.slots, self.head_width, self.head_width, dtype, device,
            streams=1 if self.shared else 2)))

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        H, R, K, streams = self.config.heads, self.config.slots, self.head_width, 1 if self.shared else 2
        logits = self.width * H * R if self.shared else 2 * H * K * R
        read = 4 * self.width**2 + H * 4 * R * K
        write = read + 2 * logits
        numbers = {"causal": H * R * (2 * K + 2 * streams), "cross": H * R * 2 * K}.get(self.config.mode)
        return Cost(parameters=self.parameter_count(), flops=length * (write + read),
                    step_flops=read if self.config.mode == "cross" else write + read,
                    state_bytes=0 if numbers is None else numbers * self.sum_dtype(dtype).itemsize + 8)


def weighted_means(logits_BLHR: torch.Tensor, x_BLHK: torch.Tensor, layout: Layout) -> torch.Tensor:
    """(B, H, R, K) in the accumulator's dtype: softmax of the logits over a row's real tokens, slot by slot, times x."""
    dtype = accumulator_dtype(x_BLHK.dtype)
    with without_autocast(x_BLHK.device):
        logits = logits_BLHR.to(dtype).masked_fill(~layout.real_BL[..., None, None], float("-inf"))
        peak = logits.detach().amax(1, keepdim=True)
        weight = (logits - torch.where(peak.isinf(), 0, peak)).exp()
        total_BHR1 = nonzero(weight.sum(1))[..., None]
        return torch.einsum("blhr,blhk->bhrk", weight, x_BLHK.to(dtype)) / total_BHR1


def held(state: State) -> SlotState:
    """The sums of a state."""
    return SlotState(state["keys"], state["values"], state["total"], state["peak"])


def named(slots: SlotState) -> dict[str, torch.Tensor]:
    """The inverse of `held`."""
    return dict(zip(("keys", "values", "total", "peak"), slots))
