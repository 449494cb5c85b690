"""Prefix attention on a gated delta rule: JRT's idea with Gated DeltaNet's state, which stays as large as it is.

The prefix is read twice. An encoder writes all of it first, with keys, values and strengths of its own; the causal scan
then starts from what that left behind:

    S_enc = gated delta scan of (k_enc, v_enc, b_enc, a) over tokens 0 .. m-1, from zeros
    y_i   = q_i S_i / sqrt(K),  S_i = gated delta scan of (k, v, b, a) over tokens 0 .. i, from S_enc

So y_i depends on tokens j <= max(i, m-1) and no others, the prefix is closed by the first call, and m = 0 is Gated DeltaNet bit
for bit. Where JRT adds the encoder's sum to the causal one (Eq. 3), here the causal writes correct what the encoder wrote:
a sum would leave two answers under one key. The decay is shared: both readings have one clock. With encoder "shared" the
result is that of a mixer which reads the prefix, then the whole document: a repeated prompt inside one layer.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

from kernels.delta_scan import delta_scan
from kernels.layout import Layout
from kernels.short_conv import short_conv
from models.initialise import Linear, draw_uniform
from models.matrix_memory import unit
from models.mixer import Abilities, Cost
from models.mixers.gated_delta_net import GatedDeltaConfig, GatedDeltaNet


class Config(GatedDeltaConfig):
    """Gated DeltaNet's settings and the encoder's; ours, after JRT (arXiv 2407.05483) and arXiv 2412.06464."""

    kind: Literal["prefix_delta"] = "prefix_delta"
    encoder: Literal["separate", "shared"] = Field(
        "separate", description="separate: the encoder has projections of k, v and the strength, and a convolution, of its own "
                                "(JRT's k and v). shared: it reads with the decoder's; no extra parameters (ablation)")

    @classmethod
    def cases(cls) -> dict[str, Config]:
        return {
            "separate": cls(heads=2),
            "shared": cls(heads=2, encoder="shared"),
            "bare": cls(heads=2, expand_k=1, expand_v=1, conv=None, gate=False, negative_eigenvalues=True),
        }


class PrefixDelta(GatedDeltaNet):
    """GatedDeltaNet, and proj_k_enc, proj_v_enc, proj_beta_enc, conv_weight_enc where the encoder is separate."""

    keep_init = GatedDeltaNet.keep_init | {"conv_weight_enc"}

    def __init__(self, config: Config, width: int, layer: int):
        super().__init__(config, width, layer)
        keys, values = config.heads * self.key_width, config.heads * self.value_width
        self.separate, self.conv_weight_enc = config.encoder == "separate", None
        if self.separate:
            self.proj_k_enc, self.proj_v_enc = Linear(width, keys, bias=False), Linear(width, values, bias=False)
            self.proj_beta_enc = Linear(width, config.heads, bias=False)
            if config.conv:
                self.conv_weight_enc = nn.Parameter(torch.empty(keys + values, config.conv))

    @classmethod
    def abilities(cls, config: Config) -> Abilities:
        return Abilities(prefix=True)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """As Gated DeltaNet; the encoder's convolution as the decoder's."""
        super().reset_parameters(generator)
        if self.conv_weight_enc is not None:
            draw_uniform(self.conv_weight_enc, self.config.conv**-0.5, generator)

    def start(self, x_BLD: torch.Tensor, k_BLHK, v_BLHV, layout: Layout) -> torch.Tensor | None:
        """S_enc of each row's prefix, zeros where it has none; None if no row has one."""
        if not layout.prefixed or layout.offset_B is not None:
            return None
        M = max(m for _, _, m in layout.documents)
        x_BMD, k, v, beta = x_BLD[:, :M], k_BLHK[:, :M], v_BLHV[:, :M], self.proj_beta
        if self.separate:
            (k, v), beta = self._encoded(x_BMD), self.proj_beta_enc
        _, memory = delta_scan(k, k, v, self.beta(x_BMD, beta), log_decay_BLH=self.log_decay(x_BMD),
                               lengths_B=layout.prefix_B, return_state=True)
        return memory

    def _encoded(self, x_BMD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The encoder's own k and v, made as the decoder makes its."""
        inputs = torch.cat((self.proj_k_enc(x_BMD), self.proj_v_enc(x_BMD)), -1)
        inputs = F.silu(inputs if self.conv_weight_enc is None else short_conv(inputs, self.conv_weight_enc))
        keys = self.config.heads * self.key_width
        k, v = (part.unflatten(-1, (self.config.heads, -1)) for part in inputs.split((keys, inputs.shape[-1] - keys), -1))
        return unit(k), v

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """flops as if the whole row were prefix, its dearest use; a step has no encoder, which writes without reading."""
        heads = self.config.heads
        own = sum(parameter.numel() for name, parameter in self.named_parameters() if "_enc" in name)
        encoder = 2 * own + heads * 4 * self.key_width * self.value_width
        step = 2 * (self.matrices() - own) + heads * self.memory_flops()
        return Cost(parameters=self.parameter_count(), flops=length * (step + encoder), step_flops=step,
                    state_bytes=self.state_bytes(dtype))
