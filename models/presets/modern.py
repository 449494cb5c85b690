"""Modern mixers at the sizes of JRT's models, so that they compare at equal parameters.

Not published configurations: width, depth and head sizes are usual ones, and the one free number (the MLP, or the layers
of a model without MLPs) is the one that the solver finds closest to jrt-360m's and jrt-1.3b's parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from models.config import ModelConfig
from models.presets.card import Preset, catalogue
from models.presets.jrt import GPT2_VOCABULARY

PARAMETERS = {"360m": 356_578_304, "1.3b": 1_375_143_168}
WIDTH = {"360m": 1024, "1.3b": 2048}
MLP_STEP = 64
LAYERS = 24


@dataclass(frozen=True)
class Modern:
    """A mixer's settings at both widths; sizes: the MLP of its 24 layers, or the layers if it has no MLPs (layers=True)."""

    about: str
    mixers: dict[str, dict[str, dict[str, Any]]]
    sizes: dict[str, int]
    plan: tuple[str, ...] = ()
    layers: bool = False
    more: tuple[tuple[str, Any], ...] = ()

    def config(self, scale: str, size: int) -> ModelConfig:
        """The model with an MLP, or a number of layers, of `size`."""
        mixers = self.mixers[scale]
        period = self.plan or tuple(mixers)
        layers = size if self.layers else LAYERS
        plan = (period * layers)[:layers]
        return ModelConfig.model_validate({
            "width": WIDTH[scale], "vocabulary": GPT2_VOCABULARY, "plan": plan, "mixers": mixers,
            "mlp": None if self.layers else size} | dict(self.more))


def _both(kind: str, small: dict[str, Any], large: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    return {"360m": {kind: {"kind": kind} | small}, "1.3b": {kind: {"kind": kind} | large}}


def _joined(*parts: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    return {scale: {name: mixer for part in parts for name, mixer in part[scale].items()} for scale in WIDTH}


GATED_DELTA = _both("gated_delta_net", {"heads": 3}, {"heads": 6})
ATTENTION = _both("attention", {"heads": 16}, {"heads": 32})

MODELS = {
    "mamba2": Modern("Mamba-2, heads of 64, no MLP", _both("mamba2", {}, {}), {"360m": 46, "1.3b": 49}, layers=True),
    "gla": Modern("gated linear attention, 4 heads", _both("gla", {}, {}), {"360m": 2752, "1.3b": 5888}),
    "retnet": Modern("retention, heads of 256", _both("retnet", {"heads": 4}, {"heads": 8}), {"360m": 1408, "1.3b": 3136}),
    "delta_net": Modern("delta rule, heads of 128", _both("delta_net", {"heads": 8}, {"heads": 16}), {"360m": 2752, "1.3b": 5888}),
    "gated_delta_net": Modern("gated delta rule, heads of 256", GATED_DELTA, {"360m": 2112, "1.3b": 4544}),
    "hybrid": Modern("three gated delta layers to one of attention, six times", _joined(GATED_DELTA, ATTENTION),
                     {"360m": 2240, "1.3b": 4864}, plan=("gated_delta_net",) * 3 + ("attention",)),
    "prefix_delta": Modern("JRT's prefix on a gated delta rule, heads of 256",
                           _both("prefix_delta", {"heads": 3}, {"heads": 6}), {"360m": 1280, "1.3b": 3008},
                           more=(("prefix_tokens", 1024),)),
}


def _preset(name: str, scale: str, model: Modern) -> Preset:
    return Preset(f"{name}-{scale}", "modern", model.about, f"sized by models/sizing.py to jrt-{scale}",
                  partial(model.config, scale, model.sizes[scale]))


PRESETS = catalogue(*(_preset(name, scale, model) for name, model in MODELS.items() for scale in WIDTH))
