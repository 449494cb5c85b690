"""Mixers whose state is one matrix a head, written and read token by token: gla, retnet, delta_net, gated_delta_net.

Letters: K and V width of a key and a value per head, C = H·(2K + V) channels of the convolution. What they share stands
here: projections, the short convolution with its cache, norm and gate of the output, streaming, cost. A kind adds how its
tokens write (`scan`, `scan_step`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from kernels.errors import ConfigError
from kernels.gated_scan import empty_state
from kernels.layout import Layout
from kernels.short_conv import short_conv, short_conv_step
from models.initialise import Linear, draw_uniform
from models.mixer import Cost, Mixer, MixerConfig
from models.mixers.sliding_window import last_tokens
from models.state import State


class MatrixConfig(MixerConfig):
    """Settings of all of them; sources stand with each kind, whose defaults differ."""

    heads: int = Field(4, ge=1, description="H; must divide expand_k and expand_v times the width (flash-linear-attention's "
                                            "layers: 4; retnet 8, gated_delta_net 6)")
    expand_k: float = Field(1.0, gt=0, description="Width of all keys over the model's")
    expand_v: float = Field(1.0, gt=0, description="Width of all values over the model's")
    conv: int | None = Field(None, ge=2, description="Tokens that a causal convolution of q, k and v reads, the current one "
                                                     "included, with silu behind it; None = no convolution")
    gate: bool = Field(True, description="The output is multiplied by silu(proj_gate(x))")
    norm_eps: float = Field(1e-5, gt=0, description="Added under the root of the output's norm (flash-linear-attention's "
                                                    "layers: 1e-5)")


class MatrixMixer(Mixer):
    """proj_q, proj_k, proj_v, convolution, `scan`, RMSNorm of each head, gate, out_proj."""

    keep_init: ClassVar[frozenset[str]] = frozenset({"conv_weight"})
    silu: ClassVar[bool] = False  # of q, k and v where there is no convolution

    def __init__(self, config: MatrixConfig, width: int, layer: int):
        super().__init__(config, width, layer)
        self.key_width, self.value_width = (per_head(config, width, name) for name in ("expand_k", "expand_v"))
        keys, values = config.heads * self.key_width, config.heads * self.value_width
        self.proj_q, self.proj_k = (Linear(width, keys, bias=False) for _ in range(2))
        self.proj_v, self.out_proj = Linear(width, values, bias=False), Linear(values, width, bias=False)
        self.proj_gate = Linear(width, values, bias=False) if config.gate else None
        self.conv_weight = nn.Parameter(torch.empty(2 * keys + values, config.conv)) if config.conv else None
        self.norm = self.head_norm()

    # --------------------------------------------------------------------------------------- what a kind writes
    def scan(self, x_BLD: torch.Tensor, q_BLHK, k_BLHK, v_BLHV, **options: Any) -> Any:
        """y_BLHV, or (y_BLHV, memory_BHKV) with return_state: an operation of kernels and its options."""
        raise NotImplementedError

    def scan_step(self, x_BD: torch.Tensor, q_BHK, k_BHK, v_BHV, memory_BHKV) -> tuple[torch.Tensor, torch.Tensor]:
        """(y_BHV, memory): one token."""
        raise NotImplementedError

    def memory_flops(self) -> int:
        """Of writing and reading one head's memory for one token."""
        return 4 * self.key_width * self.value_width

    def placed(self, q_BLHK: torch.Tensor, k_BLHK: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """q and k on their way into the scan."""
        return q_BLHK, k_BLHK

    def start(self, x_BLD: torch.Tensor, k_BLHK, v_BLHV, layout: Layout) -> torch.Tensor | None:
        """Memory before a document's first token; None: zeros."""
        return None

    def head_norm(self) -> nn.Module:
        """Norm of (..., H, V) over V."""
        return HeadNorm(self.value_width, self.config.norm_eps)

    # ---------------------------------------------------------------------------------------------- what they share
    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        fresh = state is None or layout.offset_B is None
        inputs = self._inputs(x_BLD)
        convolved = inputs
        if self.conv_weight is not None:
            convolved = F.silu(short_conv(inputs, self.conv_weight, past_BPD=None if fresh else state["inputs"]))
        q, k, v = self._split(convolved)
        q, k = self.placed(q, k, layout)
        memory = self.start(x_BLD, k, v, layout) if fresh else state["memory"]
        if state is None:
            return self._output(self.scan(x_BLD, q, k, v, state=memory), x_BLD), None
        y, memory = self.scan(x_BLD, q, k, v, state=memory, lengths_B=layout.lengths_B, return_state=True)
        cached = {} if self.conv_weight is None else {"inputs": last_tokens(state["inputs"], inputs, layout)}
        return self._output(y, x_BLD), state.advanced(layout.lengths_B, memory=memory, **cached)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        inputs, cached = self._inputs(x_BD), {}
        if self.conv_weight is not None:
            inputs, cached["inputs"] = short_conv_step(inputs, self.conv_weight, state["inputs"])
            inputs = F.silu(inputs)
        q, k, v = self._split(inputs)
        q, k = (t[:, 0] for t in self.placed(q[:, None], k[:, None], layout))
        y, memory = self.scan_step(x_BD, q, k, v, state["memory"])
        return self._output(y, x_BD), state.advanced(layout.lengths_B, memory=memory, **cached)

    def _inputs(self, x: torch.Tensor) -> torch.Tensor:
        """(..., C): q, k and v side by side, before the convolution."""
        inputs = torch.cat((self.proj_q(x), self.proj_k(x), self.proj_v(x)), -1)
        return F.silu(inputs) if self.silu and self.conv_weight is None else inputs

    def _split(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """q (..., H, K), k and v (..., H, V)."""
        keys, H = self.config.heads * self.key_width, self.config.heads
        return tuple(part.unflatten(-1, (H, -1)) for part in inputs.split((keys, keys, inputs.shape[-1] - 2 * keys), -1))

    def _output(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(y)
        if self.proj_gate is not None:
            y = y * F.silu(self.proj_gate(x)).unflatten(-1, (self.config.heads, -1))
        return self.out_proj(y.flatten(-2))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices as the base draws them, the norm as none; the convolution uniform in +-conv^-1/2, as torch's Conv1d."""
        super().reset_parameters(generator)
        self.norm.reset_parameters()
        if self.conv_weight is not None:
            draw_uniform(self.conv_weight, self.config.conv**-0.5, generator)

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        named = {"memory": empty_state(B, self.config.heads, self.key_width, self.value_width, dtype, device)}
        if self.conv_weight is not None:
            named["inputs"] = torch.zeros(B, self.config.conv - 1, len(self.conv_weight), dtype=dtype, device=device)
        return self.new_state(B, dtype, device, **named)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        step = 2 * self.matrices() + self.config.heads * self.memory_flops()
        return Cost(parameters=self.parameter_count(), flops=length * step, step_flops=step,
                    state_bytes=self.state_bytes(dtype))

    def matrices(self) -> int:
        """Numbers in projections and convolution: a token multiplies with each of them once."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.dim() > 1)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Memory in the dtype of sums, the convolution's cache in x's, the 8-byte count."""
        memory = self.config.heads * self.key_width * self.value_width * self.sum_dtype(dtype).itemsize
        cached = 0 if self.conv_weight is None else (self.config.conv - 1) * len(self.conv_weight) * dtype.itemsize
        return memory + cached + 8


class HeadNorm(nn.Module):
    """y / sqrt(mean(y^2) + eps) * weight over the channels of a head, one weight for all heads; in y's dtype or wider."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        """Weights of 1."""
        nn.init.ones_(self.weight)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        wide = Mixer.sum_dtype(y.dtype)
        return F.rms_norm(y.to(wide), self.weight.shape, self.weight.to(wide), self.eps).to(y.dtype)


def per_head(config: MatrixConfig, width: int, field: str) -> int:
    """Channels a head of `field` times the width. Raises ConfigError unless they come out whole."""
    whole = round(width * getattr(config, field))
    if abs(whole - width * getattr(config, field)) > 1e-6 or whole % config.heads or not whole:
        raise ConfigError(f"{config.kind}: {field} {getattr(config, field)} of width {width} is "
                          f"{width * getattr(config, field):g} channels, not a multiple of heads {config.heads}; change one of them")
    return whole // config.heads


def unit(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis, summed in float32 or wider (flash-linear-attention: 1e-6)."""
    wide = x.to(Mixer.sum_dtype(x.dtype))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)
