"""Random feature attention: linear attention over random Fourier features, a state of constant size."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field

from kernels.gated_scan import gated_scan
from kernels.layout import Layout
from kernels.linear_scan import ScanState, linear_scan, linear_step
from kernels.linear_scan.features import projected, random_fourier
from kernels.linear_scan.state import Divisor
from models.initialise import Linear, draw_normal
from models.linear_attention import context_sums, read_sums
from models.mixer import Abilities, Cost, Mixer, MixerConfig, Mode
from models.mixers.attention import head_width
from models.modes import abilities_in, mode_field, real_counts
from models.state import State


class Config(MixerConfig):
    """Random features of the Gaussian kernel (RFA, Peng et al. 2021; EVA's `fourier` kernel attention).

    The divisor is a sum of signed weights, so it is held away from zero. It is near zero where the kernel is small
    beside its error, about 1/sqrt(features): take more features, or a smaller scale, for sharper weights.
    """

    kind: Literal["rfa"] = "rfa"
    mode: Mode = mode_field()
    heads: int = Field(4, ge=1, description="H; must divide the width")
    features: int = Field(64, ge=1, description="J random directions a head; a sine and a cosine of each (EVA: 64)")
    form: Literal["unit", "amplitude"] = Field(
        "unit", description="unit: q and k are divided by their norms, so that no weight can grow (RFA). amplitude: they "
                            "are not, and a key's features are multiplied by exp(|k'|^2/2 - greatest of that so far), "
                            "which makes the weight that of exp(scale q·k); the greatest of the document or context "
                            "where not causal (EVA: of the row, pads too)")
    scale: float | None = Field(
        None, gt=0, description="Of q·k; RFA's temperature sigma is sigma^-2. None: 1 for unit (sigma 1), head width^-1/2 "
                                "for amplitude (EVA)")
    floor: float = Field(1e-2, gt=0, description="The sum of weights is held at least so far from 0, its sign kept (EVA 1e-2)")
    bias: bool = Field(True, description="Biases of the four projections (EVA: yes)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "unit": cls(heads=2, features=32),
            "unit_no_bias": cls(heads=4, features=24, scale=0.5, floor=0.1, bias=False),
            "amplitude": cls(heads=2, features=64, form="amplitude", scale=0.05, floor=0.1),
            "held": cls(heads=2, features=8, form="amplitude", scale=0.1, floor=0.8),
            "both_ways": cls(heads=2, features=32, mode="non_causal"),
            "both_ways_amplitude": cls(heads=2, features=64, form="amplitude", scale=0.05, floor=0.1, mode="non_causal"),
            "cross": cls(heads=2, features=32, mode="cross"),
            "cross_amplitude": cls(heads=4, features=48, form="amplitude", scale=0.05, floor=0.1, bias=False, mode="cross"),
        }


class RFA(Mixer):
    """proj_q, proj_k, proj_v, random features, one sum, out_proj. The directions are drawn once, a persistent buffer."""

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        self.proj_q, self.proj_k, self.proj_v, self.out_proj = (Linear(width, width, bias=config.bias) for _ in range(4))
        self.register_buffer("directions", torch.empty(config.heads, config.features, self.head_width))
        self.amplitude = config.form == "amplitude"
        default = self.head_width**-0.5 if self.amplitude else 1.0
        self.scale = default if config.scale is None else config.scale

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode, randomness="features")

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Matrices N(0, 1/fan_in), directions N(0, 1), biases 0."""
        super().reset_parameters(generator)
        draw_normal(self.directions, 1.0, generator)

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        if self.config.mode == "non_causal":
            (k, v), q = self._whole(x_BLD, layout), self._features(self.proj_q, x_BLD)
            y = linear_scan(q, k, v, causal=False, lengths_B=real_counts(layout), floor=self.config.floor)
            return self._output(y), None
        q, k, v, exponent_BLH = self._project(x_BLD)
        fresh = state is None or layout.offset_B is None
        lengths_B = None if state is None else layout.lengths_B
        if not self.amplitude:
            sums = None if fresh else ScanState(state["kv"], state["z"])
            y, (kv, z) = linear_scan(q, k, v, lengths_B=lengths_B, state=sums, floor=self.config.floor, return_state=True)
            return self._output(y), None if state is None else state.advanced(layout.lengths_B, kv=kv, z=z)
        decay, key_weight, peak_BH = fading_weights(exponent_BLH, None if fresh else state["peak"], layout)
        y, sums = gated_scan(q, k * key_weight, with_one(v, q.dtype), decay, lengths_B=lengths_B, scale=1.0,
                             state=None if fresh else joined(state), return_state=True)
        if state is not None:
            state = state.advanced(layout.lengths_B, kv=sums[..., :-1].clone(memory_format=torch.contiguous_format),
                                   z=sums[..., -1].clone(), peak=peak_BH)
        return self._output(self._divided(y, v.dtype)), state

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        if self.amplitude:
            return super().mix_step(x_BD, layout, state)
        q, k, v, _ = self._project(x_BD[:, None])
        sums = ScanState(state["kv"], state["z"])
        y, (kv, z) = linear_step(q[:, 0], k[:, 0], v[:, 0], sums, floor=self.config.floor)
        return self._output(y), state.advanced(layout.lengths_B, kv=kv, z=z)

    def encode_context(self, context_BND: torch.Tensor, layout: Layout) -> State:
        kv, z = context_sums(*self._whole(context_BND, layout), layout)
        return self.new_state(len(kv), context_BND.dtype, kv.device, kv=kv, z=z).advanced(layout.lengths_B)

    def read_context(self, x_BLD: torch.Tensor, layout: Layout, memory: State) -> torch.Tensor:
        return self._output(read_sums(self._features(self.proj_q, x_BLD), memory, x_BLD.dtype, floor=self.config.floor))

    def _project(self, x_BLD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Features of q and k (both without amplitudes), v, and the exponent of each key's amplitude."""
        q, k, v = (self._heads(projection, x_BLD) for projection in (self.proj_q, self.proj_k, self.proj_v))
        phi_q, phi_k = (random_fourier(t, self.directions, scale=self.scale, unit=not self.amplitude) for t in (q, k))
        exponent = projected(k, self.directions, self.scale)[1].squeeze(-1) if self.amplitude else None
        return phi_q, phi_k, v, exponent

    def _whole(self, x_BLD: torch.Tensor, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of the keys, amplitudes relative to the greatest of all real tokens included; and v."""
        k = self._heads(self.proj_k, x_BLD)
        phi_k = random_fourier(k, self.directions, scale=self.scale, unit=not self.amplitude)
        if self.amplitude:
            exponent = torch.where(layout.real_BL[..., None, None], projected(k, self.directions, self.scale)[1], 0)
            phi_k = phi_k * (exponent - exponent.amax(1, keepdim=True)).exp()
        return phi_k, self._heads(self.proj_v, x_BLD)

    def _features(self, projection: Linear, x_BLD: torch.Tensor) -> torch.Tensor:
        return random_fourier(self._heads(projection, x_BLD), self.directions, scale=self.scale, unit=not self.amplitude)

    def _heads(self, projection: Linear, x_BLD: torch.Tensor) -> torch.Tensor:
        return projection(x_BLD).unflatten(-1, (self.config.heads, -1))

    def _divided(self, y1: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[numerator, sum of weights] to the output."""
        return Divisor(floor=self.config.floor).divide(y1[..., :-1], y1[..., -1:]).to(dtype)

    def _output(self, y: torch.Tensor) -> torch.Tensor:
        return self.out_proj(y.flatten(-2))

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        H, F = self.config.heads, 2 * self.config.features
        shapes = {"kv": (B, H, F, self.head_width), "z": (B, H, F), **({"peak": (B, H)} if self.amplitude else {})}
        return self.new_state(B, dtype, device, **{
            name: torch.zeros(shape, dtype=self.sum_dtype(dtype), device=device) for name, shape in shapes.items()})

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        H, J, K = self.config.heads, self.config.features, self.head_width
        size, causal = H * 2 * J * (K + 1), self.config.mode == "causal"
        half = 4 * self.width**2 + H * 2 * J * K + 2 * size  # two projections, a map, and writing or reading
        return Cost(parameters=self.parameter_count(), flops=2 * length * half,
                    step_flops=half if self.config.mode == "cross" else 2 * half,
                    state_bytes=0 if self.config.mode == "non_causal" else
                    (size + (H if self.amplitude and causal else 0)) * self.sum_dtype(dtype).itemsize + 8)


def fading_weights(
    exponent_BLH: torch.Tensor, before_BH: torch.Tensor | None, layout: Layout,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums of exp(exponent) as sums relative to the greatest exponent so far, which never overflow.

    Returns (log decay (B, L, H) <= 0 of the sums before a token, weight (B, L, H, 1) <= 1 of the token, greatest after
    the last real token (B, H)). Exponents are half squared norms, so that 0 stands for the greatest of no tokens.
    """
    exponent = torch.where(layout.real_BL[..., None], exponent_BLH, 0)
    before = torch.zeros_like(exponent[:, :1]) if before_BH is None else before_BH[:, None]
    peak = torch.maximum(exponent.cummax(1).values, before)
    return torch.cat((before, peak[:, :-1]), 1) - peak, (exponent - peak).exp()[..., None], peak[:, -1].clone()


def with_one(v_BLHV: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[v, 1]: the last column of a sum over it is the sum of weights."""
    return torch.cat((v_BLHV.to(dtype), torch.ones(*v_BLHV.shape[:-1], 1, dtype=dtype, device=v_BLHV.device)), -1)


def joined(state: State) -> torch.Tensor:
    """kv and z as one (B, H, F, V + 1)."""
    return torch.cat((state["kv"], state["z"][..., None]), -1)
