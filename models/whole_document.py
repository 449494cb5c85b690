"""Mixers that read a document as a whole (lara, nystrom, prob_sparse, skyformer, reformer): never causal, no state.

Letters: B rows, L slots, N tokens of each of some rows, H heads, K width of a head. Segments, counts and draws of these
methods follow from a document's length: rows of equal length are mixed together, without a single pad.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from kernels.layout import Layout
from kernels.taylor.features import without_autocast
from models.initialise import Linear
from models.mixer import Abilities, Cost, Mixer, MixerConfig
from models.mixers.attention import head_width
from models.state import State


class WholeDocumentConfig(MixerConfig):
    """What these mixers share."""

    mode: Literal["causal", "non_causal"] = Field("non_causal", description="causal is refused, with the reason")
    heads: int = Field(4, ge=1, description="H; must divide the width")
    bias: bool = Field(True, description="Of the projections")


class WholeDocumentMixer(Mixer):
    """proj_q, proj_k, proj_v, `attend`, out_proj. The arithmetic between the projections is in float32 or wider.

    `exact`: the projections are float32 at least too, for where outputs hang on a choice among tokens (the greatest
    scores, a hash) or on an inverse, both of which magnify rounding.
    """

    exact: ClassVar[bool] = False
    projected: ClassVar[tuple[str, ...]] = ("proj_q", "proj_k", "proj_v")

    def __init__(self, config: WholeDocumentConfig, width: int, layer: int):
        super().__init__(config, width, layer)
        self.head_width = head_width(config.kind, width, config.heads)
        for name in (*self.projected, "out_proj"):
            self.add_module(name, Linear(width, width, bias=config.bias))

    @classmethod
    def abilities(cls, config: MixerConfig) -> Abilities:
        return Abilities(causal=False, non_causal=True, streaming=False)

    # --------------------------------------------------------------------------------------- what an author writes
    def attend(self, *tokens_BHNK: torch.Tensor) -> torch.Tensor:
        """y (B, H, N, K) of whole documents of N tokens, from what `projected` names: q, k and v. N is at least 1."""
        raise NotImplementedError

    def flops(self, length: int) -> int:
        """Of one document, projections included."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------- what they share
    def mix(self, x_BLD: torch.Tensor, layout: Layout, state: State | None) -> tuple[torch.Tensor, None]:
        wide = self.sum_dtype(x_BLD.dtype)
        tokens = [self._project(x_BLD, name).to(wide).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
                  for name in self.projected]
        with without_autocast(x_BLD.device):
            y_BHLK = by_length(self.attend, tokens, layout)
        y_BLD = y_BHLK.transpose(1, 2).flatten(2)
        return self._project(y_BLD if self.exact else y_BLD.to(x_BLD.dtype), "out_proj"), None

    def _project(self, x_BLD: torch.Tensor, name: str) -> torch.Tensor:
        linear = getattr(self, name)
        if not self.exact:
            return linear(x_BLD)
        wide = self.sum_dtype(x_BLD.dtype)
        with without_autocast(x_BLD.device):
            bias = None if linear.bias is None else linear.bias.to(wide)
            return F.linear(x_BLD.to(wide), linear.weight.to(wide), bias)

    def cost(self, length: int, dtype: torch.dtype = torch.float32) -> Cost:
        """A further token changes every output: its step is the whole forward again. There is no state."""
        return Cost(self.parameter_count(), self.flops(length), self.flops(length + 1), 0)


def by_length(attend, tokens_BHLK: list[torch.Tensor], layout: Layout) -> torch.Tensor:
    """(B, H, L, K): `attend` of the rows of each length, cut to that length; 0 at pads. Rows are aligned documents."""
    L = layout.shape[1]
    if set(layout.lengths) == {L}:
        return attend(*tokens_BHLK)

    def rows_of() -> tuple[dict[int, torch.Tensor], torch.Tensor]:
        rows = {n: [b for b, length in enumerate(layout.lengths) if length == n] for n in sorted(set(layout.lengths))}
        order = torch.tensor([b for found in rows.values() for b in found], device=layout.device)
        return {n: torch.tensor(found, device=layout.device) for n, found in rows.items()}, order.argsort()

    rows, restore_B = layout.cached("rows by length", rows_of)
    parts = []
    for n, index in rows.items():
        part = [t.index_select(0, index)[:, :, :n] for t in tokens_BHLK]
        parts.append(F.pad(attend(*part) if n else part[-1], (0, 0, 0, L - n)))
    return torch.cat(parts).index_select(0, restore_B)
