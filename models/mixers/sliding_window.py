"""Softmax attention over the last `window` tokens, rotary positions, a cache of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field

from kernels.layout import Layout
from kernels.window import window
from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.mixers.attention import head_width, project_rotated
from models.modes import abilities_in, mode_field, real_counts
from models.state import State


class Config(MixerConfig):
    """JRT's and Based's exact local mixer, without biases."""

    kind: Literal["sliding_window"] = "sliding_window"
    mode: Literal["causal", "non_causal"] = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    window: int = Field(129, ge=1, description="Keys a token sees, itself included [tokens]. The released configs' "
                                               "window_size 256 means 129: see from_released. Non-causal: "
                                               "as many to the other side, 2 window - 1 in all")
    rotary_fraction: float = Field(1.0, ge=0, le=1, description="Share of each head that turns; 0 = no positions")
    rotary_base: float = Field(10_000.0, gt=1, description="Base of the rotary wavelengths (released: 10000)")

    @classmethod
    def from_released(cls, window_size: int, **settings: Any) -> Config:
        """From the released `window_size`: the code looks window_size // 2 tokens back and at the token itself."""
        return cls(window=window_size // 2 + 1, **settings)

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "rotary": cls(heads=2, window=5),
            "no_positions": cls(heads=4, window=3, rotary_fraction=0),
            "narrow": cls(heads=2, window=2),
            "both_ways": cls(heads=2, window=4, mode="non_causal"),
        }


class SlidingWindow(Mixer):
    """Wqkv, rotary positions, softmax over the window, out_proj. The state holds the last window - 1 k (turned) and v."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        self.rotary_width = int(self.head_width * config.rotary_fraction) // 2 * 2
        self.Wqkv = Linear(width, 3 * width, bias=False)
        self.out_proj = Linear(width, width, bias=False)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode, reach=config.window - 1)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = project_rotated(self, x_BLD, layout)
        if self.config.mode == "non_causal":
            y = window(q, k, v, window=self.config.window, reach="both", lengths_B=real_counts(layout))
        elif state is None or layout.offset_B is None:
            y = window(q, k, v, window=self.config.window)
        else:
            y = window(q, k, v, window=self.config.window, past_k=state["k"], past_v=state["v"], past_B=state.count_B)
        if state is not None:
            state = state.advanced(layout.lengths_B, k=last_tokens(state["k"], k, layout),
                                   v=last_tokens(state["v"], v, layout))
        return self.out_proj(y.flatten(2)), state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v = project_rotated(self, x_BD[:, None], layout)
        y = window(q, k, v, window=self.config.window, past_k=state["k"], past_v=state["v"], past_B=state.count_B)
        if self.config.window > 1:
            k, v = (torch.cat((state[name][:, 1:], new), 1) for name, new in (("k", k), ("v", v)))
            state = state.advanced(layout.lengths_B, k=k, v=v)
        else:
            state = state.advanced(layout.lengths_B)
        return self.out_proj(y.flatten(1)), state

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        shape = (B, self.config.window - 1, self.config.heads, self.head_width)
        return self.new_state(B, dtype, device, k=torch.zeros(shape, dtype=dtype, device=device),
                              v=torch.zeros(shape, dtype=dtype, device=device))

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        projections, pair, W = 8 * self.width**2, 4 * self.width, self.config.window
        causal, full = self.config.mode == "causal", min(length, W)
        pairs, new = full * (full + 1) // 2 + (length - full) * W, min(length + 1, W)
        if not causal:  # a pair of tokens is seen from either side, a token by itself once
            pairs, new = 2 * pairs - length, 2 * new - 1
        return Cost(
            parameters=self.parameter_count(), flops=length * projections + pairs * pair, step_flops=projections + new * pair,
            state_bytes=2 * (W - 1) * self.width * dtype.itemsize + 8 if causal else 0)


def last_tokens(past: torch.Tensor, new: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The last P real entries of [P past | L new] of each row, newest last, in a tensor of its own."""
    both = torch.cat((past, new), 1)
    index = layout.tail_index(past.shape[1])
    return both.gather(1, index.view(*index.shape, *[1] * (both.dim() - 2)).expand(-1, -1, *both.shape[2:]))
