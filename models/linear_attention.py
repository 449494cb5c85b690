"""Mixers that are a feature map and `kernels.linear_scan`: what linear, performer and cosformer share.

Letters: F features a head. The state is the sum of features times values and the sum of features, whatever the length.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.layout import Layout
from kernels.linear_scan import ScanState, empty_state, linear_scan, linear_step
from models.initialise import Linear
from models.mixer import Cost, Mixer, MixerConfig
from models.mixers.attention import head_width
from models.state import State


class FeatureMixer(Mixer):
    """proj_q, proj_k, proj_v, `features` of q and k, one causal sum, out_proj. Config: heads, feature_dim, bias."""

    def __init__(self, config: MixerConfig, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        self.key_width = config.feature_dim or self.head_width
        self.proj_q, self.proj_k = (Linear(width, config.heads * self.key_width, bias=config.bias) for _ in range(2))
        self.proj_v, self.out_proj = (Linear(width, width, bias=config.bias) for _ in range(2))

    # --------------------------------------------------------------------------------------- what an author writes
    def features(self, x: torch.Tensor, position: torch.Tensor, is_query: bool) -> torch.Tensor:
        """(B, L, H, F) of (B, L, H, K) at int positions (1 or B, L). No token looks at another."""
        raise NotImplementedError

    @property
    def divisor(self) -> dict[str, Any]:
        """`eps` or `floor` of linear_scan."""
        raise NotImplementedError

    @property
    def feature_width(self) -> int:
        """F."""
        return self.key_width

    def map_flops(self) -> int:
        """Of one token's q and k on their way through the map."""
        return 0

    # --------------------------------------------------------------------------------------------- what they share
    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = self._project(x_BLD, layout)
        if state is None:
            return self.out_proj(linear_scan(q, k, v, **self.divisor).flatten(2)), None
        sums = None if layout.offset_B is None else ScanState(state["kv"], state["z"])
        y, (kv, z) = linear_scan(q, k, v, state=sums, lengths_B=layout.lengths_B, return_state=True, **self.divisor)
        return self.out_proj(y.flatten(2)), state.advanced(layout.lengths_B, kv=kv, z=z)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v = (t[:, 0] for t in self._project(x_BD[:, None], layout))
        y, (kv, z) = linear_step(q, k, v, ScanState(state["kv"], state["z"]), **self.divisor)
        return self.out_proj(y.flatten(1)), state.advanced(layout.lengths_B, kv=kv, z=z)

    def _project(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, ...]:
        q, k, v = (projection(x_BLD).unflatten(-1, (self.config.heads, -1))
                   for projection in (self.proj_q, self.proj_k, self.proj_v))
        return self.features(q, layout.position_BL, True), self.features(k, layout.position_BL, False), v

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        kv, z = empty_state(B, self.config.heads, self.feature_width, self.head_width, dtype, device)
        return self.new_state(B, dtype, device, kv=kv, z=z)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        size = self.config.heads * self.feature_width * (self.head_width + 1)
        step = 4 * self.width * (self.config.heads * self.key_width + self.width) + self.map_flops() + 4 * size
        return Cost(parameters=self.parameter_count(), flops=length * step, step_flops=step,
                    state_bytes=size * self.sum_dtype(dtype).itemsize + 8)
