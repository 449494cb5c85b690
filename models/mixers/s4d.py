"""S4D: a convolution with sums of fading waves, which is a diagonal linear recurrence; a state of constant size."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from kernels.diagonal_scan import diagonal_scan, diagonal_step, empty_state
from kernels.layout import Layout
from models.initialise import Linear, draw_normal
from models.mixer import Abilities, Cost, Mixer, take_slots
from models.modes import abilities_in, mode_field, real_counts
from models.state import State
from models.state_space import StepConfig, draw_log, drawn_log_steps

ACTIVATIONS = {"gelu": F.gelu, "identity": lambda y: y}


class Config(StepConfig):
    """S4D with zero-order hold (Gu et al., arXiv 2206.11893). Defaults: the authors' minimal layer. The benchmark CAB, and
    LAVO's language models with it: channels 8, init inv, shared_A, output linear."""

    kind: Literal["s4d"] = "s4d"
    mode: Literal["causal", "non_causal"] = mode_field()
    state_size: int = Field(64, ge=2, multiple_of=2, description="N; N / 2 complex numbers a feature, their conjugates being "
                                                                 "implied (authors and LAVO: 64; CAB's default 16)")
    channels: int = Field(1, ge=1, description="R outputs a feature, each with a kernel of its own, before out_proj (LAVO's "
                                               "language models: 8)")
    init: Literal["lin", "inv"] = Field("lin", description="A_n at first. lin: -1/2 + iπn. inv: -1/2 + i(N/π)(N/(2n + 1) - 1)")
    shared_A: bool = Field(False, description="One A for all features, which differ by Δ (CAB). False: each has its own")
    output: Literal["glu", "linear"] = Field("glu", description="out_proj to twice the width and a gated linear unit, or to the "
                                                                "width (CAB)")
    activation: Literal["gelu", "identity"] = Field("gelu", description="Before out_proj (published: gelu)")
    state_lr_scale: float = Field(1.0, gt=0, description="Factor on the learning rate of Δ and A. Published: 0.001, whatever "
                                                         "the model's rate; that is 0.001 / rate, 0.1 at the authors' 0.01")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        quick = {"dt_min": 0.08, "dt_max": 0.12}
        return {
            "authors": cls(state_size=8, **quick),
            "channels": cls(state_size=6, channels=3, init="inv", shared_A=True, output="linear", **quick),
            "both_ways": cls(mode="non_causal", state_size=4, channels=2, init="inv", shared_A=True, output="linear", **quick),
            "both_ways_glu": cls(mode="non_causal", state_size=6, activation="identity", **quick),
        }


class S4D(Mixer):
    """y = K * x + D x for each feature and channel, GELU, out_proj. The state: h of each feature, real and imaginary part.

    non_causal: a second kernel reads the tokens after each token, from the next one on (CAB's bidirectional form).
    """

    keep_init = frozenset({"C", "D", "log_dt", "log_A_real", "A_imag"})
    no_decay = frozenset({"log_dt", "log_A_real", "A_imag"})

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        self.pairs, R = config.state_size // 2, config.channels
        self.both_ways = config.mode == "non_causal"
        shape = (1 if config.shared_A else width, self.pairs)
        self.log_dt = nn.Parameter(torch.empty(width))
        self.log_A_real, self.A_imag = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.C = nn.Parameter(torch.empty(2 * R if self.both_ways else R, width, self.pairs, 2))
        self.D = nn.Parameter(torch.empty(R, width))
        self.out_proj = Linear(R * width, 2 * width if config.output == "glu" else width)
        self.lr_scale = {} if config.state_lr_scale == 1 else dict.fromkeys(self.no_decay, config.state_lr_scale)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """As published: A by `init`, Δ log-uniform, C complex N(0, 1), D N(0, 1); out_proj N(0, 1/fan_in)."""
        super().reset_parameters(generator)
        draw_normal(self.C, math.sqrt(0.5), generator)
        draw_normal(self.D, 1.0, generator)
        draw_log(self.log_A_real, torch.tensor(0.5, device=self.log_A_real.device))
        if self.log_dt.device.type != "meta":
            N, n = self.config.state_size, torch.arange(self.pairs, device=self.A_imag.device).double()
            with torch.no_grad():
                self.log_dt.copy_(drawn_log_steps(self.width, self.config, generator))
                self.A_imag.copy_(math.pi * n if self.config.init == "lin" else N / math.pi * (N / (2 * n + 1) - 1))

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return abilities_in(config.mode)

    def waves(self) -> tuple[torch.Tensor, ...]:
        """(log_decay, angle) of a token (D, N/2) and (real, imag) of the reads (R, D, N/2), in float64 whatever the weights:
        t tokens multiply the angle's rounding by t."""
        A = torch.complex(-self.log_A_real.double().exp(), self.A_imag.double())
        step = self.log_dt.double().exp().unsqueeze(-1) * A
        read = 2 * torch.view_as_complex(self.C.double()) * (step.exp() - 1) / A
        return step.real, step.imag, read.real, read.imag

    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, State | None]:
        if self.both_ways:
            return self._output(self._read_both_ways(x_BLD, layout), x_BLD), None
        if state is None:
            return self._output(diagonal_scan(x_BLD, *self.waves()), x_BLD), None
        y, h = diagonal_scan(x_BLD, *self.waves(), lengths_B=real_counts(layout), return_state=True,
                             state=None if layout.offset_B is None else state["h"])
        return self._output(y, x_BLD), state.advanced(layout.lengths_B, h=h)

    def mix_step(self, x_BD: torch.Tensor, layout: Layout, state: State) -> tuple[torch.Tensor, State]:
        y, h = diagonal_step(x_BD, *self.waves(), state["h"])
        return self._output(y, x_BD), state.advanced(layout.lengths_B, h=h)

    def _read_both_ways(self, x_BLD: torch.Tensor, layout: Layout) -> torch.Tensor:
        """The second half of the reads runs over each document's tokens from the last one, and looks only past a token."""
        log_decay, angle, *reads = self.waves()
        (real, back_real), (imag, back_imag) = (part.chunk(2) for part in reads)
        turned_BL = layout.lengths_B[:, None] - 1 - torch.arange(x_BLD.shape[1], device=x_BLD.device)
        back = diagonal_scan(from_slots(x_BLD, turned_BL), log_decay, angle, back_real, back_imag)
        back = from_slots(back.flatten(2), turned_BL - 1).view_as(back)
        return diagonal_scan(x_BLD, log_decay, angle, real, imag) + back

    def _output(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """y (..., R, D), channels outermost for out_proj."""
        y = self.out_proj(ACTIVATIONS[self.config.activation](y + self.D * x.unsqueeze(-2)).flatten(-2))
        return F.glu(y) if self.config.output == "glu" else y

    def init_state(self, B: int, dtype: torch.dtype, device: Any) -> State:
        self._check_streaming("init_state", None)
        return self.new_state(B, dtype, device, h=empty_state(B, self.width, self.pairs, dtype, device))

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """Of the recurrence: a complex product 8, the real part of one 4."""
        reads, ways = self.config.channels * self.width, 2 if self.both_ways else 1
        scan = ways * self.pairs * (8 * self.width + 4 * reads)
        step = 2 * self.out_proj.weight.numel() + scan + 2 * reads
        state = 0 if self.both_ways else 2 * self.width * self.pairs * self.sum_dtype(dtype).itemsize + 8
        return Cost(parameters=self.parameter_count(), flops=length * step, step_flops=step, state_bytes=state)


def from_slots(x_BLD: torch.Tensor, index_BL: torch.Tensor) -> torch.Tensor:
    """x_BLD[b, index_BL[b, i]], 0 where the index is below 0."""
    return torch.where((index_BL >= 0).unsqueeze(-1), take_slots(x_BLD, index_BL.clamp(min=0)), 0)
