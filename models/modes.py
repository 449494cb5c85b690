"""What mixers with several uses share: the field that says which one, and what it makes of their abilities."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from kernels.layout import Layout
from models.cost import Abilities


def mode_field() -> Any:
    """The field `mode` of a Config."""
    return Field("causal", description="causal: a token reads itself and those before it, in a language model. non_causal: it "
                                       "reads its whole document (forward alone). cross: it reads a context (encode, then read)")


def abilities_in(mode: str, **others: Any) -> Abilities:
    """Abilities of a mixer that streams where it is causal and only there; `others` as in Abilities."""
    causal = mode == "causal"
    return Abilities(causal=causal, streaming=causal, non_causal=mode == "non_causal", cross=mode == "cross", **others)


def real_counts(layout: Layout) -> torch.Tensor | None:
    """Tokens of each aligned row for a kernel that reads every slot; None without pads."""
    return layout.lengths_B if layout.padded else None


__all__ = ["abilities_in", "mode_field", "real_counts"]
