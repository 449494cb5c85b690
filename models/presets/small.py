"""The small ones that learn recall on a CPU: four mixers without MLPs, feature dim 8, window 16, deviation 0.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.config import ModelConfig
from models.presets.card import Preset, catalogue

SOURCE = "measured: the smallest trunks on which each system learned to recall"


def _small(plan: str, width: int, heads: int, vocabulary: int) -> Callable[[], ModelConfig]:
    """Letters of the plan: a attention, c conv, l based, p prefix, w window."""
    every: dict[str, dict[str, Any]] = {
        "attention": {"kind": "attention", "heads": heads},
        "conv": {"kind": "base_conv"},
        "based": {"kind": "based", "heads": heads, "feature_dim": 8},
        "prefix": {"kind": "prefix", "heads": heads, "feature_dim": 8},
        "window": {"kind": "sliding_window", "heads": heads, "window": 16},
    }
    letters = {name[0]: name for name in every} | {"l": "based"}
    layers = [letters[letter] for letter in plan]
    return lambda: ModelConfig.model_validate({
        "width": width, "vocabulary": vocabulary, "plan": layers, "init_std": 0.1,
        "mixers": {name: every[name] for name in sorted(set(layers))}})


def _tiny(name: str, plan: str, what: str) -> Preset:
    return Preset(f"{name}-tiny", "small", f"{what}; width 128, vocabulary 1,024", SOURCE, _small(plan, 128, 4, 1024))


def _mini(name: str, plan: str, what: str) -> Preset:
    return Preset(f"{name}-mini", "small", f"{what}; width 64, vocabulary 256", SOURCE, _small(plan, 64, 2, 256))


PRESETS = catalogue(
    _tiny("transformer", "aaaa", "four layers of attention"),
    _tiny("based", "clwl", "convolution, Based, window, Based"),
    _tiny("jrt", "cpwp", "convolution, prefix, window, prefix"),
    _mini("transformer", "aaaa", "four layers of attention"),
    _mini("based", "clcl", "convolutions and Based in turn"),
    _mini("jrt", "cpcp", "convolutions and prefix layers in turn"),
)
