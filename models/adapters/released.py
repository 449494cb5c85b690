"""Weights in from the authors of JRT and Based: their checkpoints' config and parameter names, as models of ours.

Sources: HazyResearch/prefix-linear-attention @7490f22 and HazyResearch/based (train/configs, models/gpt.py): a GPT-2
config with three mixers, `alt_mixer_2` at alt_mixer_2_layers, `alt_mixer` at alt_mixer_layers, `mixer` elsewhere. A
field that is absent has the value of the released configs. Where a config differs from the published model of its
size, or cannot mean what it says, a note tells (JRT 3.4 lists the known conflicts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernels.errors import ConfigError
from models.adapters.weight_files import Imported, fill
from models.config import ModelConfig
from models.presets import describe, preset_names

GPT2_VOCABULARY = 50_257
MIXERS = {"BaseConv": "conv", "BaseConvWithSiLU4": "conv", "LinearAttention": "based", "PrefixLinearAttention": "prefix",
          "SlidingAttention": "window", "SlidingsMHA": "window"}
# what all released models share; another value would be another architecture
FIXED = {"activation_function": "swiglu", "rms_norm": True, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
         "qkv_proj_bias": False, "out_proj_bias": False, "max_position_embeddings": 0, "parallel_block": False,
         "prenorm": True, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
         "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "n_head_kv": None, "lm_head_bias": False,
         "word_embed_proj_dim": None, "head_dim": None}
PROJECTIONS = {"conv": ("in_proj.weight", "in_proj.bias", "out_proj.weight", "out_proj.bias"),
               "based": ("proj_q.weight", "proj_k.weight", "proj_v.weight", "out_proj.weight"),
               "prefix": ("proj_q.weight", "proj_k.weight", "proj_v.weight", "proj_k_enc.weight", "proj_v_enc.weight",
                          "out_proj.weight"),
               "window": ("Wqkv.weight", "out_proj.weight")}
HEAD, TABLE, DECAY = "lm_head.weight", "transformer.embeddings.word_embeddings.weight", "transformer.decay.decay"


def matches(config: dict[str, Any]) -> bool:
    """Whether config.json is one of these."""
    return isinstance(config.get("mixer"), dict) and "n_embd" in config and "alt_mixer" in config


def read(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Imported:
    """The model and notes on what its config leaves open. Raises ConfigError, also for weights that do not fit."""
    tensors = named(tensors)
    try:
        ours, notes = model_config(config, decays=any(".decay_proj." in name for name in tensors))
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"config.json: a field is absent or of another type than in the released configs ({error!r})"
                          ) from error
    return _filled(ours, tensors, notes)


def read_preset(name: str, tensors: dict[str, torch.Tensor]) -> Imported:
    """Weights without a config, as the published model of that name. ConfigError as `published`, and as `read`."""
    return _filled(published(name), named(tensors), describe(name).conflicts)


def published(name: str) -> ModelConfig:
    """The config of a released Based or JRT model. ConfigError for a preset that is none of these."""
    known = [one for one in preset_names("published") if _ours(describe(one).build())]
    if name not in known:
        raise ConfigError(f"preset {name!r} is no released Based or JRT model; there are {', '.join(known)}")
    return describe(name).build()


def _ours(config: ModelConfig) -> bool:
    return set(config.plan) <= set(PROJECTIONS) and bool({"based", "prefix"} & set(config.plan))


def named(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without what a training run adds: the prefix `model.`, and its counters."""
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if "metrics" not in name}


def _filled(config: ModelConfig, tensors: dict[str, torch.Tensor], notes: Sequence[str]) -> Imported:
    """Fill; a head equal to the embedding is the embedding's, the decay rates are checked and not kept."""
    head, rates = tensors.pop(HEAD, None), tensors.pop(DECAY, None)
    if head is not None and not (TABLE in tensors and torch.equal(head, tensors[TABLE])):
        config, tensors[HEAD] = config.model_copy(update={"tie": False}), head
        notes = [*notes, "the head differs from the embedding: read as a matrix of its own"]
    if rates is not None:
        _check_rates(config, rates)
    kinds = " and ".join(sorted({"based": "Based", "prefix": "JRT"}[name] for name in {"based", "prefix"} & set(config.plan)))
    return Imported(fill(config, tensors, parameter_names(config)), f"released {kinds}", tuple(notes))


def _check_rates(config: ModelConfig, rates_H: torch.Tensor) -> None:
    """The decay kept with the weights is that of the config: log(1 - 2^-(start + h))."""
    start = getattr(config.mixers.get("based"), "decay_start", None)
    if start is None:
        return
    wanted_H = torch.log1p(-(2.0 ** -(start + torch.arange(len(rates_H), dtype=torch.float64))))
    if not torch.allclose(rates_H.double(), wanted_H, rtol=1e-2, atol=1e-5):
        raise ConfigError(f"{DECAY} begins {rates_H[:3].tolist()}, the config's decay {wanted_H[:3].tolist()}")


# --------------------------------------------------------------------------------------------------------------- names
def parameter_names(config: ModelConfig) -> dict[str, str]:
    """Their name -> ours, for a config that `model_config` or a released preset made."""
    names = {TABLE: "embedding.weight", "transformer.ln_f.weight": "norm.weight"}
    if not config.tie:
        names[HEAD] = "head_proj.weight"
    for layer, name in enumerate(config.plan):
        theirs, ours = f"transformer.layers.{layer}", f"blocks.{layer}"
        for part in ("norm1.weight", "norm2.weight", "mlp.fc1.weight", "mlp.fc2.weight"):
            names[f"{theirs}.{part}"] = f"{ours}.{part}"
        for part in PROJECTIONS[name]:
            names[f"{theirs}.mixer.{part}"] = f"{ours}.mixer.{part}"
        if name == "conv":
            names[f"{theirs}.mixer.conv.conv.weight"] = f"{ours}.mixer.conv_weight"
        if name == "based" and config.mixers[name].decay_start is not None:
            names[f"{theirs}.mixer.decay_proj.weight"] = f"{ours}.mixer.decay_proj.weight"
    return names


# -------------------------------------------------------------------------------------------------------------- config
def model_config(config: dict[str, Any], decays: bool = False) -> tuple[ModelConfig, list[str]]:
    """Our config of theirs, and notes. decays: the weights hold decay_proj, whatever the config says."""
    other = {field: config[field] for field, value in FIXED.items() if config.get(field, value) not in (value, None)}
    if other:
        raise ConfigError(f"config.json has {other}; the released Based and JRT models have "
                          f"{ {field: FIXED[field] for field in other} }, and ours of them nothing else")
    notes: list[str] = []
    width, layers = config["n_embd"], config["n_layer"]
    plan = _plan(config, layers)
    fields = {
        "width": width, "vocabulary": config.get("vocab_size", GPT2_VOCABULARY),
        "vocabulary_multiple": config.get("pad_vocab_size_multiple", 8), "plan": plan,
        "mlp": -(-(config.get("n_inner") or 2 * width) // 256) * 256,      # their GatedMlp rounds up to 256
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "mixers": {name: _mixer(name, _section(config, name), config, decays, notes) for name in sorted(set(plan))}}
    if "prefix" in plan:
        fields["prefix_tokens"] = _section(config, "prefix").get("enc_length", config.get("enc_length", 1024))
    if config.get("residual_in_fp32") is False:
        notes.append("residual_in_fp32 is false: our residual stream is float32 all the same")
    try:
        found = ModelConfig.model_validate(fields)
    except ValueError as error:
        raise ConfigError(f"config.json cannot be built: {error}") from error
    return found, notes + _differences(found)


def _plan(config: dict[str, Any], layers: int) -> list[str]:
    second = config.get("alt_mixer_2_layers", config.get("alt_2_mixer_layers")) or ()     # both spellings occur
    first = config.get("alt_mixer_layers") or ()
    plan = []
    for layer in range(layers):
        section = "alt_mixer_2" if layer in second else "alt_mixer" if layer in first else "mixer"
        plan.append(_name(config, section))
    return plan


def _name(config: dict[str, Any], section: str) -> str:
    """What we call the mixer of a section of theirs. ConfigError for one that we do not have."""
    target = str((config.get(section) or {}).get("_target_", "")).rpartition(".")[2]
    if target not in MIXERS:
        raise ConfigError(f"config.json: {section} is {target or 'absent'}; known are {', '.join(MIXERS)}")
    return MIXERS[target]


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    return next(config[section] for section in ("mixer", "alt_mixer", "alt_mixer_2")
                if config.get(section) and _name(config, section) == name)


def _mixer(name: str, given: dict[str, Any], config: dict[str, Any], decays: bool, notes: list[str]) -> dict[str, Any]:
    if name == "conv":
        if given.get("use_bias", True) is not True:
            raise ConfigError("config.json: mixer.use_bias is false; the released convolutions have biases")
        kernel = given.get("kernel_size", 3)
        stated = given.get("kernel_sizes", kernel)
        if (stated if isinstance(stated, list) else [stated]) != [kernel]:
            notes.append(f"kernel_sizes {stated} is read by nobody: the convolution has kernel_size {kernel}")
        return {"kind": "base_conv", "kernel": kernel, "expand": given.get("expand_proj", 4)}
    if name == "window":
        size = given.get("window_size", 256)
        return {"kind": "sliding_window", "heads": config["n_head"], "window": size // 2 + 1,
                "rotary_fraction": config.get("rotary_emb_fraction", 1.0),
                "rotary_base": config.get("rotary_emb_base", 10_000.0)}
    linear = {"kind": name, "heads": given.get("num_heads", 16), "feature_dim": given.get("feature_dim", 16)}
    feature_map = given.get("feature_map") or {}
    stated = given.get("feature_name") or str(feature_map.get("_target_", "taylor_exp")).rpartition(".")[2]
    if stated not in ("taylor_exp", "TaylorExp"):
        raise ConfigError(f"config.json: the feature map is {stated!r}; ours of these models is taylor_exp alone")
    scale = feature_map.get("input_dim")
    if isinstance(scale, int) and scale != linear["feature_dim"]:
        linear["scale_dim"] = scale
    return linear if name == "prefix" else linear | _decay(given, config, decays, notes)


def _decay(given: dict[str, Any], config: dict[str, Any], decays: bool, notes: list[str]) -> dict[str, Any]:
    """decay_start of the linear layers: their decay acts only through decay_proj, so the weights decide."""
    fixed = bool(config.get("fixed_decay")) and bool(given.get("use_decay_proj", decays))
    if not decays:
        if config.get("fixed_decay") or given.get("use_decay_proj"):
            notes.append("the config asks for decay (fixed_decay, use_decay_proj), but the weights hold no decay_proj, "
                         "without which the released code applies none: read without decay")
        return {}
    if not fixed:
        notes.append("the weights hold decay_proj, though the config does not ask for decay: read with decay")
    if config.get("decay_denom", False):
        raise ConfigError("config.json: decay_denom is true; the released models do not normalise by the decay")
    start = -config.get("decay_const", -3)
    if start != int(start) or start < 1:
        raise ConfigError(f"config.json: decay_const is {-start}; expected a whole number of -1 or less")
    return {"decay_start": int(start)}


def _differences(config: ModelConfig) -> list[str]:
    """Where the config differs from the published models of its width and kind, and their known conflicts."""
    for name in preset_names("published"):
        known = describe(name).build()
        if not _ours(known) or known.width != config.width or set(known.plan) != set(config.plan):
            continue
        if known.layers != config.layers:
            continue
        mine, theirs = _flat(config.model_dump(mode="json")), _flat(known.model_dump(mode="json"))
        found = [f"{field} is {mine.get(field)}, in preset {name} {theirs.get(field)}"
                 for field in mine | theirs if mine.get(field) != theirs.get(field) and field not in ("seed", "init_std")]
        return [*found, *(f"known conflict of {name}: {conflict}" for conflict in describe(name).conflicts)]
    return []


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in fields.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out
