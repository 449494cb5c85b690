"""LanguageModel: embedding, blocks, norm, head; in parallel, in pieces or token by token (contract 2).

Letters: B rows, L slots, D width, E vocabulary rows. Design choices: rows are aligned and pads zeroed once, for all
layers; the residual stream is float32 (float64 in a float64 model) whatever the weights are; `hidden` and `head` are
separate so that a loss pays for the head only where it looks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernels.errors import LayoutError, StateError
from kernels.layout import Layout
from models import registry
from models.config import ModelConfig
from models.cost import Abilities, Cost, conjunction
from models.initialise import Linear, draw_normal, seeded
from models.layers import NORMS, Block
from models.mixer import Mixer, check_fits, check_length, check_no_prefix, one_token, take_slots, zero_pads
from models.state import ModelState


class Embedding(nn.Embedding):
    """nn.Embedding that its owner draws."""

    def reset_parameters(self) -> None:
        """Left to LanguageModel.reset_parameters."""


class LanguageModel(nn.Module):
    """A causal language model over any mixers. Knows kinds by their configs and nothing else.

    initialise=False leaves the weights unset (a checkpoint follows). On the meta device nothing is drawn.
    """

    def __init__(self, config: ModelConfig, initialise: bool = True):
        super().__init__()
        self.config = config
        D = config.width
        self.embedding = Embedding(config.table_rows, D)
        self.positions = Embedding(config.max_length, D) if config.positions == "learned" else None
        self.blocks = nn.ModuleList(
            Block(registry.build(config.mixers[name], D, layer), config)
            for layer, name in enumerate(config.plan))
        self.norm = NORMS[config.norm](D, config.norm_eps)
        self.head_proj = None if config.tie else Linear(D, config.table_rows, bias=False)
        self.able = conjunction([block.mixer.able for block in self.blocks],
                                None if self.positions is None else config.max_length)
        if initialise:
            self.reset_parameters(config.seed)

    # ------------------------------------------------------------------------------------------------ whole sequences
    def forward(self, ids_BL: torch.Tensor, layout: Layout) -> torch.Tensor:
        """logits_BLE, 0 at pads. Any integer may stand at a pad."""
        return self.head(self.hidden(ids_BL, layout))

    def hidden(self, ids_BL: torch.Tensor, layout: Layout) -> torch.Tensor:
        """x_BLD after the final norm, 0 at pads; give the slots of interest to `head`."""
        check_fits(ids_BL, layout)
        self._check_length(layout)
        x_BLD, _ = self._trunk(ids_BL, layout, None)
        return x_BLD

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (..., E) of x (..., D)."""
        return F.linear(x, self.embedding.weight if self.head_proj is None else self.head_proj.weight)

    # ------------------------------------------------------------------------------------------------------- streaming
    def prefill(self, ids_BL: torch.Tensor, layout: Layout, all_logits: bool = False,
                ) -> tuple[torch.Tensor, ModelState]:
        """(logits_BE at each row's last real token, state); with all_logits, logits_BLE. Each row needs a token."""
        self._check_call("prefill", ids_BL, layout)
        for row, length in enumerate(layout.lengths):
            if length == 0:
                raise LayoutError(f"lengths, row {row}: got 0 tokens in prefill, expected at least 1. "
                                  "Begin the row with a token, for example the end-of-text id.")
        self._check_length(layout)
        x_BLD, layers = self._trunk(ids_BL, layout, self.init_state(ids_BL.shape[0], ids_BL.device))
        return self._logits(x_BLD, layout, all_logits), layers

    def extend(self, ids_BL: torch.Tensor, layout: Layout, state: ModelState, all_logits: bool = False,
               ) -> tuple[torch.Tensor, ModelState]:
        """Further tokens, any number per row; a row of 0 new tokens gets zeros. Uses `state` up."""
        self._check_call("extend", ids_BL, layout)
        check_no_prefix(layout)
        self._check_state(state, ids_BL)
        self._check_length(layout, state)
        x_BLD, state = self._trunk(ids_BL, layout, state.spend(), goes_on=True)
        return self._logits(x_BLD, layout, all_logits), state

    def step(self, ids_B: torch.Tensor, state: ModelState) -> tuple[torch.Tensor, ModelState]:
        """(logits_BE, state): one token for every row. Uses `state` up."""
        self._check_streaming("step")
        if ids_B.ndim != 1:
            raise LayoutError(f"step: got ids of shape {tuple(ids_B.shape)}, expected (B,), one token a row")
        self._check_state(state, ids_B)
        layout = one_token(ids_B.shape[0], ids_B.device)
        self._check_length(layout, state)
        layout = layout.after(state.spend().count_B)
        x_BD = self._embed(ids_B[:, None], layout)[:, 0]
        layers = []
        for block, held in zip(self.blocks, state.layers):
            x_BD, held = block.step(x_BD, layout, held)
            layers.append(held)
        return self.head(self.norm(x_BD)), ModelState._trusted(layers)

    def init_state(self, B: int, device: Any = None, dtype: torch.dtype | None = None) -> ModelState:
        """The state of B rows that have seen nothing; device and dtype default to the model's."""
        device = self.embedding.weight.device if device is None else device
        dtype = self.norm.weight.dtype if dtype is None else dtype
        return ModelState._trusted([block.mixer.init_state(B, dtype, device) for block in self.blocks])

    # ----------------------------------------------------------------------------------------------------- the one pass
    def _trunk(self, ids_BL: torch.Tensor, layout: Layout, state: ModelState | None, goes_on: bool = False,
               ) -> tuple[torch.Tensor, ModelState | None]:
        index_BL, rows = layout.align()
        if not layout.aligned:
            ids_BL = ids_BL.gather(1, index_BL)
        if goes_on:
            rows = rows.after(state.count_B)
        x_BLD, layers = self._embed(ids_BL, rows), []
        for block, held in zip(self.blocks, state.layers if state is not None else [None] * len(self.blocks)):
            x_BLD, held = block(x_BLD, rows, held)
            layers.append(held)
        x_BLD = self.norm(x_BLD)
        if rows.padded and not self.blocks[0].clean:
            x_BLD = zero_pads(x_BLD, rows)
        if not layout.aligned:
            x_BLD = take_slots(x_BLD, layout.restore_BL)
        return x_BLD, None if state is None else ModelState._trusted(layers)

    def _embed(self, ids_BL: torch.Tensor, rows: Layout) -> torch.Tensor:
        if rows.padded:
            ids_BL = torch.where(rows.real_BL, ids_BL, 0)
        x_BLD = self.embedding(ids_BL)
        x_BLD = x_BLD.to(Mixer.sum_dtype(x_BLD.dtype))
        if self.positions is not None:
            x_BLD = x_BLD + self.positions(rows.position_BL)
        elif self.config.positions == "sinusoidal":
            x_BLD = x_BLD + torch.cat(rows.rope(2 * math.ceil(x_BLD.shape[-1] / 2), 10_000.0, x_BLD.dtype)[::-1],
                                      dim=-1)[..., :x_BLD.shape[-1]]
        return zero_pads(x_BLD, rows) if rows.padded else x_BLD

    def _logits(self, x_BLD: torch.Tensor, layout: Layout, all_logits: bool) -> torch.Tensor:
        if all_logits:
            return self.head(x_BLD)
        if x_BLD.shape[1] == 0:
            return self.head(x_BLD.new_zeros(x_BLD.shape[0], x_BLD.shape[2]))
        last_B = (layout.lengths_B - 1).clamp(min=0)
        if not layout.aligned:
            last_B = layout.align()[0].gather(1, last_B[:, None])[:, 0]
        x_BD = x_BLD[torch.arange(x_BLD.shape[0], device=x_BLD.device), last_B]
        return self.head(x_BD)      # a row without tokens points at a pad, whose x is 0

    # ---------------------------------------------------------------------------------------------------------- checks
    def _check_call(self, use: str, ids_BL: torch.Tensor, layout: Layout) -> None:
        self._check_streaming(use)
        if layout.packed:
            raise LayoutError(f"{use}: got packed rows, expected one document a row. Use layout.unpack() first.")
        check_fits(ids_BL, layout)

    def _check_streaming(self, use: str) -> None:
        for block in self.blocks:
            block.mixer._check_streaming(use, None)

    def _check_length(self, layout: Layout, state: ModelState | None = None) -> None:
        check_length("the model", self.able.max_length, layout, state)

    def _check_state(self, state: ModelState, ids: torch.Tensor) -> None:
        if not isinstance(state, ModelState) or len(state.layers) != len(self.blocks):
            raise StateError(f"got {state!r}, expected a state of this model's {len(self.blocks)} layers")
        state.check_fresh()
        for number, (held, block) in enumerate(zip(state.layers, self.blocks)):
            if held.kind != block.mixer.config.kind:
                raise StateError(f"layer {number}: got a state of {held.kind}, expected {block.mixer.config.kind}")
        if state.rows != ids.shape[0]:
            raise StateError(f"state has {state.rows} rows, ids have {ids.shape[0]}; use select or cat")
        if state.dtype != self.norm.weight.dtype:
            raise StateError(f"state was made in {state.dtype}, the model is in {self.norm.weight.dtype}")
        if state.device != ids.device:
            raise StateError(f"state is on {state.device}, ids on {ids.device}; use state.to")

    # ------------------------------------------------------------------------------------------------- what it is
    def abilities(self) -> Abilities:
        """The layers' conjunction; prefix if any layer reads one; reach is the sum, None if any layer sees all."""
        return self.able

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """One row of `length` tokens through the whole model; state tensors as for x of `dtype`."""
        total = Cost(0, 0, 0, 0)
        for block in self.blocks:
            total = total + block.mixer.cost(length, dtype)
        D, mlp = self.config.width, self.config.mlp or 0
        matrices = 3 if self.config.mlp_kind == "swiglu" else 2
        per_token = 2 * D * (self.config.table_rows + self.config.layers * matrices * mlp)
        return Cost(sum(p.numel() for p in self.parameters()), total.flops + length * per_token,
                    total.step_flops + per_token, total.state_bytes)

    # ------------------------------------------------------------------------------------------------- parameters
    def reset_parameters(self, seed: int) -> None:
        """Draw every weight from (seed, layer); the global generator is neither read nor moved.

        Matrices N(0, init_std^2), residual outputs (out_proj, fc2) divided by sqrt(2 * layers), biases 0; a mixer's
        keep_init and its one-dimensional parameters keep what the mixer itself drew.
        """
        std, generator = self.config.init_std, seeded(seed, "embedding")
        for module in (self.embedding, self.positions, self.head_proj):
            if module is not None:
                draw_normal(module.weight, std, generator)
        for layer, block in enumerate(self.blocks):
            generator = seeded(seed, layer)
            block.mixer.reset_parameters(generator)
            for name, parameter in block.named_parameters():
                if name.removeprefix("mixer.") in block.mixer.keep_init:
                    continue
                if parameter.ndim > 1:
                    residual = name.endswith(("out_proj.weight", "fc2.weight"))
                    draw_normal(parameter, std / math.sqrt(2 * len(self.blocks)) if residual else std, generator)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

    def _from_mixers(self, attribute: str) -> set[str]:
        return {f"blocks.{layer}.mixer.{name}" for layer, block in enumerate(self.blocks)
                for name in getattr(block.mixer, attribute)}

    def matrices(self) -> set[str]:
        """Names of the parameters that a matrix optimiser such as Muon takes: two axes, no embedding, no filter."""
        tables = {"embedding.weight", "positions.weight", "head_proj.weight"} | self._from_mixers("keep_init")
        return {name for name, parameter in self.named_parameters() if parameter.ndim == 2 and name not in tables}

    def no_decay(self) -> set[str]:
        """Names of the parameters without weight decay: embeddings, norms, biases, and what mixers name."""
        small = {name for name, parameter in self.named_parameters() if parameter.ndim < 2}
        return small | self._from_mixers("no_decay") | {"embedding.weight", "positions.weight"} & set(self._names())

    def lr_scale(self) -> dict[str, float]:
        """Factor on the learning rate by parameter name, where a mixer sets one."""
        return {f"blocks.{layer}.mixer.{name}": factor for layer, block in enumerate(self.blocks)
                for name, factor in block.mixer.lr_scale.items()}

    def _names(self) -> list[str]:
        return [name for name, _ in self.named_parameters()]


def build(config: ModelConfig | dict) -> LanguageModel:
    """A model with fresh weights from its config, or from the config's dict."""
    return LanguageModel(config if isinstance(config, ModelConfig) else ModelConfig.model_validate(config))


