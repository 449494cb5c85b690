"""Retention, GLA, DeltaNet, Gated DeltaNet and the prefix form of the last, whole layers, against their papers' recurrences.

Every layer is written out below in float64, one token and one head at a time, from its weights by name; and its parameters
are laid beside those of flash-linear-attention's layers, whose defaults the configs name as their source.
"""

import __future__

import ast
import importlib.util
import inspect
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kernels.layout import Layout
from models import registry
from models.mixers import delta_net, gated_delta_net, gla, prefix_delta, retnet

WIDTH, N = 16, 21
MODULES = {module.__name__.rpartition(".")[2]: module for module in (retnet, gla, delta_net, gated_delta_net, prefix_delta)}
CASES = pytest.mark.parametrize("kind, name", [(kind, name) for kind, module in MODULES.items() for name in module.Config.cases()])


def build(kind, name, seed=3):
    """Weights away from their first values: norms, biases and gates count."""
    mixer = registry.build(MODULES[kind].Config.cases()[name], WIDTH, seed=seed).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in mixer.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5)
    return mixer


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------------------------------------- the papers, token by token
def silu(x):
    return x / (1 + torch.exp(-x))


def convolved(taps_CK, raw_LC, t):
    """silu of the last K inputs, the newest under the last tap."""
    K = taps_CK.shape[1]
    return silu(sum(taps_CK[:, K - 1 - back] * raw_LC[t - back] for back in range(min(K, t + 1))))


def turned(x_K, t, width, base):
    """Channel i with channel i + width/2 by the angle t·base^(-2i/width)."""
    y_K = x_K.clone()
    for i in range(width // 2):
        angle = t * base ** (-2 * i / width)
        one, two = x_K[i], x_K[i + width // 2]
        y_K[i] = one * math.cos(angle) - two * math.sin(angle)
        y_K[i + width // 2] = two * math.cos(angle) + one * math.sin(angle)
    return y_K


def length_one(x_K):
    return x_K / torch.sqrt((x_K * x_K).sum() + 1e-6)


def qkv(kind, config, w, x_LD, suffix=""):
    """Per token: q, k, v (H, ·); with suffix `_enc` q is None."""
    names = ("k", "v") if suffix else ("q", "k", "v")
    parts = [x_LD @ w[f"proj_{name}{suffix}.weight"].T for name in names]
    sizes = [part.shape[1] for part in parts]
    raw_LC = torch.cat(parts, 1)
    out = []
    for t in range(len(x_LD)):
        if config.conv:
            row = convolved(w[f"conv_weight{suffix}"], raw_LC, t)
        else:
            row = raw_LC[t] if kind in ("gla", "retnet") else silu(raw_LC[t])
        row = [part.view(config.heads, -1) for part in row.split(sizes)]
        out.append([None] * (3 - len(row)) + row)
    return out


def log_decay(kind, config, w, x_D, h):
    """Of head h: a number, or one a key channel."""
    if kind == "retnet":
        return torch.tensor(math.log(1 - 2 ** -(config.decay_start + h)), dtype=torch.float64)
    if kind == "gla":
        logits = w["proj_decay.weight"] @ (w["proj_decay_low.weight"] @ x_D) + w["proj_decay.bias"]
        return -torch.log(1 + torch.exp(-logits.view(config.heads, -1)[h])) / config.decay_divisor
    if kind == "delta_net":
        return torch.zeros((), dtype=torch.float64)
    step = torch.log(1 + torch.exp((w["proj_decay.weight"] @ x_D)[h] + w["dt_bias"][h]))
    return -torch.exp(w["A_log"][h]) * step


def strength(config, w, x_D, h, suffix=""):
    most = 2 if config.negative_eigenvalues else 1
    return most / (1 + torch.exp(-(w[f"proj_beta{suffix}.weight"] @ x_D)[h]))


def written(kind, config, w, S_KV, x_D, h, k_K, v_V, suffix=""):
    """The head's state after a token."""
    S_KV = S_KV * torch.exp(log_decay(kind, config, w, x_D, h)).reshape(-1, 1)
    if kind not in ("gla", "retnet"):
        v_V = strength(config, w, x_D, h, suffix) * (v_V - S_KV.T @ k_K)
    return S_KV + torch.outer(k_K, v_V)


def normed(kind, config, w, y_HV):
    if kind == "retnet" and config.norm == "group":
        grouped = nn.functional.group_norm(
            y_HV.reshape(1, -1), config.heads, w["norm.weight"], w["norm.bias"], config.norm_eps)
        return grouped.view_as(y_HV)
    return torch.stack([y / torch.sqrt((y * y).mean() + config.norm_eps) * w["norm.weight"] for y in y_HV])


def layer(kind, mixer, x_LD, m=0):
    """y_LD of one document whose first m tokens are its prefix."""
    config, w = mixer.config, {name: value.detach() for name, value in mixer.state_dict().items()}
    heads = range(config.heads)
    states = [torch.zeros(mixer.key_width, mixer.value_width, dtype=torch.float64) for _ in heads]
    if m:
        suffix = "_enc" if config.encoder == "separate" else ""
        for t, (_, k_HK, v_HV) in enumerate(qkv(kind, config, w, x_LD[:m], suffix)):
            states = [written(kind, config, w, states[h], x_LD[t], h, length_one(k_HK[h]), v_HV[h], suffix) for h in heads]
    rows = []
    for t, (q_HK, k_HK, v_HV) in enumerate(qkv(kind, config, w, x_LD)):
        if kind == "retnet":
            q_HK, k_HK = ([turned(x, t, mixer.rotary_width, config.rotary_base) for x in xs] for xs in (q_HK, k_HK))
        elif kind != "gla":
            q_HK, k_HK = ([length_one(x) for x in xs] for xs in (q_HK, k_HK))
        states = [written(kind, config, w, states[h], x_LD[t], h, k_HK[h], v_HV[h]) for h in heads]
        y_HV = torch.stack([states[h].T @ q_HK[h] for h in heads]) / math.sqrt(mixer.key_width)
        y_HV = normed(kind, config, w, y_HV)
        if config.gate:
            y_HV = y_HV * silu(w["proj_gate.weight"] @ x_LD[t]).view_as(y_HV)
        rows.append(w["out_proj.weight"] @ y_HV.flatten())
    return torch.stack(rows)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@CASES
@torch.no_grad()
def test_whole_rows(kind, name):
    mixer, x = build(kind, name), tokens(2, N, WIDTH)
    prefixes = [9, 3] if kind == "prefix_delta" else [0, 0]
    y = mixer(x, Layout.left_padded([N, 8], N).with_prefix(prefixes))
    close(y[0], layer(kind, mixer, x[0], prefixes[0]))
    close(y[1, -8:], layer(kind, mixer, x[1, -8:], prefixes[1]))


@CASES
@torch.no_grad()
def test_pieces_and_steps(kind, name):
    mixer, x = build(kind, name), tokens(2, N, WIDTH)
    m = 5 if kind == "prefix_delta" else 0
    y, state = mixer.prefill(x[:, :7], Layout.dense(2, 7).with_prefix(m))
    outputs = [y]
    y, state = mixer.extend(x[:, 7:12], Layout.dense(2, 5), state)
    outputs.append(y)
    for t in range(12, N):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y[:, None])
    for row in range(2):
        close(torch.cat(outputs, 1)[row], layer(kind, mixer, x[row], m))


# ---------------------------------------------------------------------------- flash-linear-attention's layers, side by side
NAMES = {"q_proj": "proj_q", "k_proj": "proj_k", "v_proj": "proj_v", "g_proj": "proj_gate", "o_proj": "out_proj", "b_proj": "proj_beta",
         "a_proj": "proj_decay", "gk_proj.0": "proj_decay_low", "gk_proj.1": "proj_decay", "g_norm_swish_gate": "norm", "o_norm": "norm"}
LAYERS = {  # file, class, width
    "gla": ("gla", "GatedLinearAttention", 64),
    "retnet": ("multiscale_retention", "MultiScaleRetention", 64),
    "delta_net": ("delta_net", "DeltaNet", 64),
    "gated_delta_net": ("gated_deltanet", "GatedDeltaNet", 2048),  # its head_dim is a number of channels: 0.75 of this width
}


class Norm(nn.Module):
    """Where the library has norms that need a GPU: their parameter."""

    def __init__(self, hidden_size, **settings):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))


class Taps(nn.Module):
    """Likewise its convolution, a Conv1d of one channel a group."""

    def __init__(self, hidden_size, kernel_size, bias, activation):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, 1, kernel_size))


def library_file(*parts):
    """A file of flash-linear-attention; importing the package takes ten seconds."""
    found = importlib.util.find_spec("fla")
    path = Path(found.submodule_search_locations[0] if found else "").joinpath(*parts)
    if not path.is_file():
        pytest.skip("flash-linear-attention is not installed")
    return path


def library_layer(file, name):
    """The library's own class, from its source, with Norm and Taps for its modules."""
    path = library_file("layers", f"{file}.py")
    node = next(n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef) and n.name == name)
    names = {"torch": torch, "nn": nn, "math": math, "warnings": warnings, "ACT2FN": {"swish": nn.functional.silu}, "RMSNorm": Norm,
             "FusedRMSNormGated": Norm, "ShortConvolution": Taps, "RotaryEmbedding": lambda dim: nn.Identity()}
    exec(compile(ast.Module([node], []), str(path), "exec", __future__.annotations.compiler_flag), names)
    return names[name]


def library_loop(operation, name):
    """A plain loop of the library; its file needs torch and einops alone."""
    spec = importlib.util.spec_from_file_location("loops", library_file("ops", operation, "naive.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def our_shapes(layer_state):
    """Their parameters under our names; the three convolutions are one of ours."""
    shapes, taps = {}, {}
    for name, value in layer_state.items():
        module, _, part = name.rpartition(".")
        if module.endswith("conv1d"):
            taps[module[0]] = value.squeeze(1)
        else:
            shapes[f"{NAMES[module]}.{part}" if module else part] = tuple(value.shape)
    if taps:
        shapes["conv_weight"] = tuple(torch.cat([taps[name] for name in "qkv"]).shape)
    return shapes


@pytest.mark.parametrize("kind", LAYERS)
def test_defaults_are_the_librarys(kind):
    """The same parameters, in name and shape, by default; and norm_eps, taps, heads, ranks as their signature says."""
    file, name, width = LAYERS[kind]
    config, library = MODULES[kind].Config(), library_layer(file, name)
    with torch.device("meta"):
        theirs, ours = library(hidden_size=width).state_dict(), registry.build(config, width).state_dict()
    assert {name: tuple(value.shape) for name, value in ours.items()} == our_shapes(theirs)
    signature = SimpleNamespace(**{name: p.default for name, p in inspect.signature(library).parameters.items()})
    assert config.norm_eps == signature.norm_eps and config.heads == signature.num_heads
    assert config.conv == (signature.conv_size if signature.use_short_conv else None)
    assert config.gate == getattr(signature, "use_output_gate", getattr(signature, "use_gate", None))
    if kind == "gla":
        assert (config.decay_rank, config.decay_divisor) == (signature.gate_low_rank_dim, signature.gate_logit_normalizer)
    if kind in ("delta_net", "gated_delta_net"):
        assert config.negative_eigenvalues == signature.allow_neg_eigval
    if kind == "gated_delta_net":
        assert config.expand_v / config.expand_k == signature.expand_v
        assert config.expand_k == signature.num_heads * signature.head_dim / signature.hidden_size


@torch.no_grad()
@pytest.mark.parametrize("kind", ["gated_delta_net", "delta_net"])
def test_the_librarys_loops_on_our_inputs(kind):
    """Its plain recurrence, fed with what our mixer feeds its own scan."""
    mixer, x = build(kind, "published"), tokens(2, N, WIDTH)
    found = {}

    def record(x_BLD, q, k, v, **options):
        found.update(q=q, k=k, v=v, y=type(mixer).scan(mixer, x_BLD, q, k, v, **options))
        return found["y"]

    mixer.scan = record
    mixer(x, Layout.dense(2, N))
    q, k, v, beta = (t.transpose(1, 2).float() for t in (found["q"], found["k"], found["v"], mixer.beta(x)))
    if kind == "delta_net":
        y = library_loop("delta_rule", "delta_rule_recurrence")(q, k, v, beta)[0].transpose(1, 2)
    else:
        loop = library_loop("gated_delta_rule", "naive_recurrent_gated_delta_rule")
        y = loop(*(t.transpose(1, 2) for t in (q, k, v, beta)), mixer.log_decay(x).float())[0]
    torch.testing.assert_close(found["y"].float(), y.float(), rtol=1e-4, atol=1e-5)
