"""Based: linear attention with the second-order Taylor feature map and a state of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator

from kernels.layout import Layout
from kernels.linear_scan import linear_scan
from kernels.taylor import TaylorState, empty_state, expanded_width, feature_map, taylor, taylor_step
from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.mixers.attention import head_width
from models.modes import abilities_in, mode_field, real_counts
from models.state import State


class Config(MixerConfig):
    """Settings of the released Based layers (16 heads, feature_dim 16; `decay_start` 3 in the 360M config alone)."""

    kind: Literal["based"] = "based"
    mode: Literal["causal", "non_causal"] = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    feature_dim: int = Field(16, ge=1, description="K, width of q and k per head before the feature map (released: 16)")
    scale_dim: int | None = Field(None, ge=1, description="q·k is divided by the root of this; None = feature_dim")
    eps: float = Field(1e-12, ge=0, description="Added to the normaliser (JRT 1e-12; the fused released path 1e-6)")
    decay_start: int | None = Field(
        None, ge=1, description="Head h's numerator keeps 1 - 2^-(decay_start + h) a token and is scaled by decay_proj "
                                "of the reading token (released Based 360M: 3); None = no decay")

    @model_validator(mode="after")
    def _decays_with_time(self) -> Config:
        if self.decay_start is not None and self.mode != "causal":
            raise ValueError("decay_start fades tokens by their age, which mode non_causal has not: leave it out")
        return self

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "plain": cls(heads=2, feature_dim=4),
            "scaled": cls(heads=4, feature_dim=3, scale_dim=9, eps=1e-6),
            "decayed": cls(heads=2, feature_dim=4, decay_start=3),
            "both_ways": cls(heads=2, feature_dim=4, mode="non_causal"),
        }


class Based(Mixer):
    """proj_q, proj_k, proj_v, Taylor attention, out_proj; no biases, no positions."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        features = config.heads * config.feature_dim
        self.proj_q, self.proj_k = (Linear(width, features, bias=False) for _ in range(2))
        self.proj_v = Linear(width, width, bias=False)
        self.decay_proj = None if config.decay_start is None else Linear(width, config.heads, bias=False)
        self.out_proj = Linear(width, width, bias=False)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = self._project(x_BLD)
        if self.config.mode == "non_causal":
            y = self._both_ways(q, k, v, layout)
        elif state is None:
            y = taylor(q, k, v, **self._settings(x_BLD))
        else:
            y, (kv, z) = taylor(q, k, v, state=sums_so_far(state, layout), lengths_B=layout.lengths_B,
                                return_state=True, **self._settings(x_BLD))
            state = state.advanced(layout.lengths_B, kv=kv, z=z)
        return self._output(y, x_BLD), state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v = self._project(x_BD)
        y, (kv, z) = taylor_step(q, k, v, TaylorState(state["kv"], state["z"]), **self._settings(x_BD))
        return self._output(y, x_BD), state.advanced(layout.lengths_B, kv=kv, z=z)

    def _both_ways(self, q, k, v, layout: Layout) -> torch.Tensor:
        """Every query against the sums over all real keys of its row, by the features themselves."""
        wide, scale = self.sum_dtype(q.dtype), (self.config.scale_dim or self.config.feature_dim) ** -0.5
        phi_q, phi_k = (feature_map(t.to(wide), scale) for t in (q, k))
        return linear_scan(phi_q, phi_k, v, causal=False, lengths_B=real_counts(layout), eps=self.config.eps)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(projection(x).unflatten(-1, (self.config.heads, -1))
                     for projection in (self.proj_q, self.proj_k, self.proj_v))

    def _settings(self, x: torch.Tensor) -> dict[str, Any]:
        decay = self.config.decay_start
        if decay is not None:
            heads = torch.arange(self.config.heads, dtype=torch.float64, device=x.device)
            decay = 1 - 2.0 ** -(decay + heads)
        return {"scale": (self.config.scale_dim or self.config.feature_dim) ** -0.5, "eps": self.config.eps,
                "decay_H": decay}

    def _output(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.decay_proj is not None:
            y = y * self.decay_proj(x).unsqueeze(-1)
        return self.out_proj(y.flatten(-2))

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        kv, z = empty_state(B, self.config.heads, self.config.feature_dim, self.head_width, dtype, device)
        return self.new_state(B, dtype, device, kv=kv, z=z)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        step = 2 * self.parameter_count() + memory_flops(self)
        return Cost(parameters=self.parameter_count(), flops=length * step, step_flops=step,
                    state_bytes=memory_bytes(self, dtype) if self.config.mode == "causal" else 0)


def sums_so_far(state: State, layout: Layout) -> TaylorState | None:
    """The state's sums; None before the first token, which spares their reading."""
    return None if layout.offset_B is None else TaylorState(state["kv"], state["z"])


def memory_flops(mixer: Mixer) -> int:
    """Writing and reading the memory for one token: 4·F·(V+1) a head."""
    return mixer.config.heads * 4 * expanded_width(mixer.config.feature_dim) * (mixer.head_width + 1)


def memory_bytes(mixer: Mixer, dtype: torch.dtype) -> int:
    """Bytes of the state of one row: the sums in the accumulator dtype and the 8-byte count."""
    F = expanded_width(mixer.config.feature_dim)
    return mixer.config.heads * F * (mixer.head_width + 1) * mixer.sum_dtype(dtype).itemsize + 8
