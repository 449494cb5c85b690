"""Prefix linear attention (JRT): Taylor attention whose prefix is also read without a causal mask.

The encoder reads the prefix with keys and values of its own; query and output are shared. The two sums merge into one
state when the prefix closes, so that decoding is Based's. Source: JRT Eq. 3, released prefix_linear_attention.py.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field

from kernels.errors import UnsupportedUse
from kernels.layout import Layout
from kernels.prefix import prefix
from kernels.taylor import TaylorState, empty_state, taylor, taylor_step
from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.mixers.attention import head_width
from models.mixers.based import memory_bytes, memory_flops, sums_so_far
from models.state import State


class Config(MixerConfig):
    """Settings of the released prefix layers (16 heads, feature_dim 16)."""

    kind: Literal["prefix"] = "prefix"
    heads: int = Field(4, ge=1, description="H; must divide the width")
    feature_dim: int = Field(16, ge=1, description="K, width of q and k per head before the feature map (released: 16)")
    scale_dim: int | None = Field(None, ge=1, description="q·k is divided by the root of this; None = feature_dim")
    eps: float = Field(1e-12, ge=0, description="Added to the normaliser (JRT: 1e-12)")
    mask: Literal["released", "exact"] = Field(
        "released", description="What muted slots (strategy left_pad_released alone) do. released: their keys are zeroed "
                                "before the feature map, so that they keep weight 1; exact: refused, since real pads "
                                "already leave every sum")
    encoder: Literal["separate", "shared"] = Field(
        "separate", description="separate: the encoder has projections of k and v of its own (JRT §4, released). shared: it reads "
                                "with the decoder's; no extra parameters (ablation)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {"plain": cls(heads=2, feature_dim=4), "scaled": cls(heads=4, feature_dim=3, scale_dim=9, mask="exact"),
                "shared": cls(heads=2, feature_dim=4, encoder="shared")}


class Prefix(Mixer):
    """proj_q, proj_k, proj_v, proj_k_enc and proj_v_enc where the encoder is separate, prefix attention, out_proj; no biases,
    no positions."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        features = config.heads * config.feature_dim
        self.separate = config.encoder == "separate"  # a seed's draws follow the order below
        self.proj_q, self.proj_k = (Linear(width, features, bias=False) for _ in range(2))
        if self.separate:
            self.proj_k_enc = Linear(width, features, bias=False)
        self.proj_v = Linear(width, width, bias=False)
        if self.separate:
            self.proj_v_enc = Linear(width, width, bias=False)
        self.out_proj = Linear(width, width, bias=False)

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities(prefix=True)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        q, k, v = (self._heads(projection(x_BLD)) for projection in (self.proj_q, self.proj_k, self.proj_v))
        muted_BL = self._muted(layout)
        if muted_BL is not None:
            k = torch.where(muted_BL[:, :, None, None], 0, k)
        options: dict[str, Any] = dict(self._settings)
        if state is not None:
            options |= {"state": sums_so_far(state, layout), "lengths_B": layout.lengths_B, "return_state": True}
        if layout.prefixed and layout.offset_B is None:
            M = max(m for _, _, m in layout.documents)
            k_enc, v_enc = k[:, :M], v[:, :M]
            if self.separate:
                k_enc, v_enc = (self._heads(projection(x_BLD[:, :M])) for projection in (self.proj_k_enc, self.proj_v_enc))
                if muted_BL is not None:
                    k_enc = torch.where(muted_BL[:, :M, None, None], 0, k_enc)
            y = prefix(q, k, v, k_enc, v_enc, layout.prefix_B, **options)
        else:
            y = taylor(q, k, v, **options)
        if state is not None:
            y, (kv, z) = y
            state = state.advanced(layout.lengths_B, kv=kv, z=z)
        return self.out_proj(y.flatten(-2)), state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        q, k, v = (self._heads(projection(x_BD)) for projection in (self.proj_q, self.proj_k, self.proj_v))
        y, (kv, z) = taylor_step(q, k, v, TaylorState(state["kv"], state["z"]), **self._settings)
        return self.out_proj(y.flatten(-2)), state.advanced(layout.lengths_B, kv=kv, z=z)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.config.heads, -1))

    @property
    def _settings(self) -> dict[str, Any]:
        return {"scale": (self.config.scale_dim or self.config.feature_dim) ** -0.5, "eps": self.config.eps}

    def _muted(self, layout: Layout) -> torch.Tensor | None:
        if layout.muted_BL is not None and self.config.mask == "exact":
            raise UnsupportedUse("prefix: mask 'exact' got muted slots, which are real tokens of the released mask; "
                                 "pass them as pads (Layout.left_padded), or set mask='released'")
        return layout.muted_BL

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        kv, z = empty_state(B, self.config.heads, self.config.feature_dim, self.head_width, dtype, device)
        return self.new_state(B, dtype, device, kv=kv, z=z)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """flops as if the whole row were prefix, its dearest use; a step has no encoder."""
        features = self.config.heads * self.config.feature_dim
        step = 4 * self.width * (features + self.width) + memory_flops(self)
        encoder = (2 * self.width * (features + self.width) if self.separate else 0) + memory_flops(self) // 2
        return Cost(parameters=self.parameter_count(), flops=length * (step + encoder), step_flops=step,
                    state_bytes=memory_bytes(self, dtype))
