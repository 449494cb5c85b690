"""Mixers that are a feature map and `kernels.linear_scan`: what linear, performer and cosformer share.

Letters: F features a head. The state is the sum of features times values and the sum of features, whatever the length;
so is the memory of a context.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.layout import Layout
from kernels.linear_scan import ScanState, empty_state, linear_scan, linear_step
from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig, check_length
from models.mixers.attention import head_width
from models.modes import abilities_in, real_counts
from models.state import State


class FeatureMixer(Mixer):
    """proj_q, proj_k, proj_v, `features` of q and k, one sum, out_proj. Config: heads, feature_dim, bias, mode."""

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

    def map_flops(self, is_query: bool) -> int:
        """Of one token's q, or k, on its way through the map."""
        return 0

    # --------------------------------------------------------------------------------------------- what they share
    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        return abilities_in(config.mode)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = self._project(x_BLD, layout)
        if self.config.mode == "non_causal":
            y = linear_scan(q, k, v, causal=False, lengths_B=real_counts(layout), **self.divisor)
            return self.out_proj(y.flatten(2)), None
        if state is None:
            return self.out_proj(linear_scan(q, k, v, **self.divisor).flatten(2)), None
        sums = None if layout.offset_B is None else ScanState(state["kv"], state["z"])
        y, (kv, z) = linear_scan(q, k, v, state=sums, lengths_B=layout.lengths_B, return_state=True, **self.divisor)
        return self.out_proj(y.flatten(2)), state.advanced(layout.lengths_B, kv=kv, z=z)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v = (t[:, 0] for t in self._project(x_BD[:, None], layout))
        y, (kv, z) = linear_step(q, k, v, ScanState(state["kv"], state["z"]), **self.divisor)
        return self.out_proj(y.flatten(1)), state.advanced(layout.lengths_B, kv=kv, z=z)

    def encode_context(self, context_BND: torch.Tensor, layout: Layout) -> State:
        k, v = self._features(self.proj_k, context_BND, layout), self._heads(self.proj_v, context_BND)
        kv, z = context_sums(k, v, layout)
        return self.new_state(len(k), context_BND.dtype, k.device, kv=kv, z=z).advanced(layout.lengths_B)

    def read_context(self, x_BLD: torch.Tensor, layout: Layout, memory: State) -> torch.Tensor:
        check_length(self.config.kind, self.able.max_length, layout)
        y = read_sums(self._features(self.proj_q, x_BLD, layout), memory, x_BLD.dtype, **self.divisor)
        return self.out_proj(y.flatten(2))

    def _project(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, ...]:
        q, k = (self._features(projection, x_BLD, layout) for projection in (self.proj_q, self.proj_k))
        return q, k, self._heads(self.proj_v, x_BLD)

    def _features(self, projection: Linear, x_BLD: torch.Tensor, layout: Layout) -> torch.Tensor:
        return self.features(self._heads(projection, x_BLD), layout.position_BL, projection is self.proj_q)

    def _heads(self, projection: Linear, x_BLD: torch.Tensor) -> torch.Tensor:
        return projection(x_BLD).unflatten(-1, (self.config.heads, -1))

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        kv, z = empty_state(B, self.config.heads, self.feature_width, self.head_width, dtype, device)
        return self.new_state(B, dtype, device, kv=kv, z=z)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        size = self.config.heads * self.feature_width * (self.head_width + 1)
        projections = 2 * self.width * (self.config.heads * self.key_width + self.width)  # k and v, or q and out
        write, read = (projections + self.map_flops(is_query) + 2 * size for is_query in (False, True))
        return Cost(parameters=self.parameter_count(), flops=length * (write + read),
                    step_flops=read if self.config.mode == "cross" else write + read,
                    state_bytes=0 if self.config.mode == "non_causal" else size * self.sum_dtype(dtype).itemsize + 8)


def context_sums(k_BNHF: torch.Tensor, v_BNHV: torch.Tensor, layout: Layout) -> ScanState:
    """The sums of an aligned context's features and values, pads left out."""
    _, sums = linear_scan(k_BNHF[:, :0], k_BNHF, v_BNHV, causal=False, lengths_B=real_counts(layout), return_state=True)
    return sums


def read_sums(q_BLHF: torch.Tensor, memory: State, dtype: torch.dtype, **divisor: Any) -> torch.Tensor:
    """y_BLHV: each query against the sums `kv` and `z` of its row's context, which stay as they are."""
    kv, z = memory["kv"], memory["z"]
    nothing = kv.new_zeros(len(kv), 0, kv.shape[1], kv.shape[3], dtype=dtype)
    return linear_scan(q_BLHF, q_BLHF[:, :0], nothing, causal=False, state=ScanState(kv, z), **divisor)
