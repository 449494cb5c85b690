"""Attention with bounded memory control: R slots, each a weighted mean of everything so far; a state of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from kernels.bounded_memory import SlotState, bounded_memory, bounded_step, empty_state
from kernels.layout import Layout
from models.initialise import Linear, draw_uniform
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.mixers.attention import head_width
from models.state import State


class Config(MixerConfig):
    """Learned slot weights exp(logits), of keys and values apart (CAB) or shared (flash-linear-attention's layer).

    CAB's published causal form is not this: it keeps the current token alone in its slots and the past in their
    normalisers only.
    """

    kind: Literal["abc"] = "abc"
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
        }


class ABC(Mixer):
    """proj_q, proj_k, proj_v, slot weights, attention of the query over the slots, out_proj; no positions."""

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
        return Abilities()

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
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

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q, k, v (..., H, K) and one or two streams of logits (..., H, R)."""
        q, k, v = (projection(x).unflatten(-1, (self.config.heads, -1))
                   for projection in (self.proj_q, self.proj_k, self.proj_v))
        if self.shared:
            logits = [self.proj_s(x).unflatten(-1, (self.config.heads, -1))]
        else:
            logits = [k @ self.compress_k, v @ self.compress_v]
        if self.config.clamp is not None:
            logits = [stream.clamp(-self.config.clamp, self.config.clamp) for stream in logits]
        return q, k, v, *logits

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        return self.new_state(B, dtype, device, **named(empty_state(
            B, self.config.heads, self.config.slots, self.head_width, self.head_width, dtype, device,
            streams=1 if self.shared else 2)))

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        H, R, K, streams = self.config.heads, self.config.slots, self.head_width, 1 if self.shared else 2
        logits = self.width * H * R if self.shared else 2 * H * K * R
        step = 2 * (4 * self.width**2 + logits) + H * 8 * R * K
        return Cost(parameters=self.parameter_count(), flops=length * step, step_flops=step,
                    state_bytes=H * R * (2 * K + 2 * streams) * self.sum_dtype(dtype).itemsize + 8)


def held(state: State) -> SlotState:
    """The sums of a state."""
    return SlotState(state["keys"], state["values"], state["total"], state["peak"])


def named(slots: SlotState) -> dict[str, torch.Tensor]:
    """The inverse of `held`."""
    return dict(zip(("keys", "values", "total", "peak"), slots))
