"""A mixer for tests of the trunk: a running mean, the prefix counted once more. About the simplest fixed memory."""

from __future__ import annotations

from typing import Literal

import torch

from kernels.layout import Layout
from models.initialise import Linear, draw_uniform
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.state import State


class Config(MixerConfig):
    """A running mean of a projection, the prefix counted once more."""

    kind: Literal["toy_mixer"] = "toy_mixer"


class ToyMixer(Mixer):
    """y_i = out(sum of u over tokens j <= i and j < m, divided by their number); u = in(x) * scale."""

    keep_init = frozenset({"scale"})
    lr_scale = {"scale": 0.5}

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.in_proj = Linear(width, width)
        self.out_proj = Linear(width, width)
        self.scale = torch.nn.Parameter(torch.empty(1, width))

    def reset_parameters(self, generator: torch.Generator) -> None:
        super().reset_parameters(generator)
        draw_uniform(self.scale, 2.0, generator)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities(prefix=True)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None):
        u_BLD = torch.where(layout.real_BL[..., None], self.in_proj(x_BLD) * self.scale, 0).to(self.sum_dtype(x_BLD.dtype))
        sum_BLD, count_BL = u_BLD.cumsum(1), layout.real_BL.cumsum(1)
        if layout.prefixed:
            inside = layout.in_prefix_BL
            sum_BLD = sum_BLD + torch.where(inside[..., None], u_BLD, 0).sum(1, keepdim=True)
            count_BL = count_BL + inside.sum(1, keepdim=True)
        if state is not None:
            sum_BLD, count_BL = sum_BLD + state["sum"][:, None], count_BL + state["number"][:, None]
        y_BLD = self.out_proj((sum_BLD / count_BL.clamp(min=1)[..., None]).to(x_BLD.dtype))
        if state is not None:
            state = state.advanced(layout.lengths_B, sum=sum_BLD[:, -1].clone(), number=count_BL[:, -1].clone())
        return y_BLD, state

    def init_state(self, B: int, dtype: torch.dtype, device) -> State:
        return self.new_state(B, dtype, device, sum=torch.zeros(B, self.width, dtype=self.sum_dtype(dtype),
                                                               device=device),
                              number=torch.zeros(B, dtype=torch.int64, device=device))

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        D, item = self.width, 8 if dtype == torch.float64 else 4
        token = 4 * D * D + 2 * D
        return Cost(self.parameter_count(), length * token, token, D * item + 16)
