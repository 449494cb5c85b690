"""Named models: the small ones that learn recall on a CPU, and the published ones, to the parameter.

Sources: learnability 0 and 4 (tiny, mini), the released configs of JRT (jrt 3.4). `JRT 360M` counts 356,578,304
parameters; `Based 360M` 362,702,848 with its 27 layers and decay, 350,024,704 in the 26-layer form without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.errors import ConfigError
from models.config import ModelConfig

GPT2_VOCABULARY = 50_257


def _small(plan: str, width: int, heads: int, vocabulary: int) -> ModelConfig:
    """Four mixers without MLPs, feature dim 8, window 16: a attention, c conv, l based, p prefix, w window."""
    every: dict[str, dict[str, Any]] = {
        "attention": {"kind": "attention", "heads": heads},
        "conv": {"kind": "base_conv"},
        "based": {"kind": "based", "heads": heads, "feature_dim": 8},
        "prefix": {"kind": "prefix", "heads": heads, "feature_dim": 8},
        "window": {"kind": "sliding_window", "heads": heads, "window": 16},
    }
    letters = {name[0]: name for name in every} | {"l": "based"}
    layers = [letters[letter] for letter in plan]
    return ModelConfig.model_validate({
        "width": width, "vocabulary": vocabulary, "plan": layers, "init_std": 0.1,
        "mixers": {name: every[name] for name in sorted(set(layers))}})


def _published(layers: int, linear: dict[str, Any], width: int = 1024, more_linear: tuple[int, ...] = (),
               **settings: Any) -> ModelConfig:
    """Linear attention at layers 1, 6, 11, ..., a window of 129 keys after each, BaseConv elsewhere, SwiGLU of 2 D.

    The released window_size 256 looks 128 tokens back: 129 keys (the paper's tables say 64 and 128).
    """
    at = (1, 6, 11, 16, 21, *more_linear)
    name = linear["kind"]
    plan = [name if i in at else "window" if i - 1 in at else "conv" for i in range(layers)]
    mixers = {name: {"heads": 16, "feature_dim": 16} | linear, "conv": {"kind": "base_conv"},
              "window": {"kind": "sliding_window", "heads": 16, "window": 129}}
    return ModelConfig.model_validate({"width": width, "vocabulary": GPT2_VOCABULARY, "plan": plan, "mixers": mixers,
                                       "mlp": 2 * width} | settings)


_PRESETS: dict[str, Callable[[], ModelConfig]] = {
    "transformer-tiny": lambda: _small("aaaa", 128, 4, 1024),
    "based-tiny": lambda: _small("clwl", 128, 4, 1024),
    "jrt-tiny": lambda: _small("cpwp", 128, 4, 1024),
    "transformer-mini": lambda: _small("aaaa", 64, 2, 256),
    "based-mini": lambda: _small("clcl", 64, 2, 256),
    "jrt-mini": lambda: _small("cpcp", 64, 2, 256),
    "jrt-360m": lambda: _published(26, {"kind": "prefix"}, prefix_tokens=1024),
    "jrt-1.3b": lambda: _published(36, {"kind": "prefix"}, 1792, (27, 33), prefix_tokens=1024),
    "based-360m": lambda: _published(27, {"kind": "based", "decay_start": 3}),
    "based-360m-26": lambda: _published(26, {"kind": "based"}),
    "based-1.3b": lambda: _published(36, {"kind": "based"}, 1792, (27, 33)),
    # released attention 360M: 24 layers, SwiGLU of 8/3 D rounded up to 256, half of each head turns
    "transformer-360m": lambda: ModelConfig.model_validate({
        "width": 1024, "vocabulary": GPT2_VOCABULARY, "vocabulary_multiple": 16, "mlp": 2816, "plan": ["attention*24"],
        "mixers": {"attention": {"kind": "attention", "heads": 16, "rotary_fraction": 0.5}}}),
}


def preset_names() -> list[str]:
    """Names that `preset` takes, small ones first."""
    return list(_PRESETS)


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of a named model, with `changes` to its top-level fields (seed=1, vocabulary=512). ConfigError."""
    if name not in _PRESETS:
        raise ConfigError(f"no model preset {name!r}; there are {', '.join(_PRESETS)}")
    config = _PRESETS[name]()
    if not changes:
        return config
    return ModelConfig.model_validate(config.model_dump() | changes)
