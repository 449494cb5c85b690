"""The optional GPU libraries behind our signatures, mapped on a CPU.

Each stand-in is our own naive form behind the library's signature, its layout and its demands on types. fla's signatures
are read from the installed source (importing it takes ten seconds; a long test compares). mamba_ssm and causal_conv1d
cannot be built without CUDA: their signatures are the published ones.
"""

import ast
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import pytest
import torch

from kernels import backends
from kernels.adapters import fla, mamba
from kernels.delta_scan import delta_scan
from kernels.errors import UnsupportedUse
from kernels.gated_scan import gated_scan
from kernels.layout import Layout
from kernels.selective_scan import selective_scan
from kernels.short_conv import short_conv
from tests.kernels import test_delta_scan, test_gated_scan
from tests.kernels.agreement import draw, error, with_gradients

B, H, K, V = 2, 3, 5, 4
FUNCTIONS = {"gla": "chunk_gla", "simple_gla": "chunk_simple_gla", "delta_rule": "chunk_delta_rule",
             "gated_delta_rule": "chunk_gated_delta_rule"}


def signature(operation: str) -> inspect.Signature:
    """Of fla's entry function, from its source: names, order, kinds and defaults."""
    found = importlib.util.find_spec("fla")
    path = Path(found.submodule_search_locations[0] if found else "") / "ops" / operation / "chunk.py"
    if not path.is_file():
        pytest.skip("flash-linear-attention is not installed")
    node = next(n for n in ast.parse(path.read_text()).body
                if isinstance(n, ast.FunctionDef) and n.name == FUNCTIONS[operation])
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    for argument in filter(None, every):
        argument.annotation = None
    node.decorator_list, node.returns, node.body = [], None, [ast.Pass()]
    names: dict = {}
    exec(compile(ast.fix_missing_locations(ast.Module([node], [])), str(path), "exec"), names)
    return inspect.signature(names[node.name])


def stand_in(parameters: inspect.Signature, body):
    """A function that takes what `parameters` allow, and nothing else, and gives `body` all of it by name."""
    def run(*args, **options):
        bound = parameters.bind(*args, **options)
        bound.apply_defaults()
        run.calls.append(bound.arguments)
        return body(**bound.arguments)

    run.calls = []
    return run


def gated_body(q, k, v, g, scale, initial_state, output_final_state, state_v_first, cu_seqlens, cu_seqlens_cpu,
               g_gamma=None, kwargs=None):
    assert not state_v_first and cu_seqlens is None and cu_seqlens_cpu is None and g_gamma is None and not kwargs
    assert q.dtype == k.dtype == v.dtype != torch.float64 and g.dtype == torch.float32
    assert initial_state is None or initial_state.dtype == torch.float32
    y, state = gated_scan(q, k, v, g, state=initial_state, scale=scale, backend="naive", return_state=True)
    return y, state if output_final_state else None


def delta_body(q, k, v, beta, scale, initial_state, output_final_state, cu_seqlens, g=None, **rest):
    assert cu_seqlens is None and not any(value for value in rest.values())
    assert q.dtype == k.dtype == v.dtype == beta.dtype and q.dtype != torch.float64
    assert g is not None or q.dtype != torch.float32, "the plain delta rule refuses float32"
    y, state = delta_scan(q, k, v, beta, log_decay_BLH=g, state=initial_state, scale=scale, backend="naive",
                          return_state=True)
    return y, state if output_final_state else None


@pytest.fixture
def library(monkeypatch):
    """fla with our stand-ins, taken for installed and for able to run here: {operation: stand-in}."""
    functions = {operation: stand_in(signature(operation), gated_body if "gla" in operation else delta_body)
                 for operation in FUNCTIONS}
    for operation, function in functions.items():
        put_module(monkeypatch, f"fla.ops.{operation}", **{FUNCTIONS[operation]: function})
    monkeypatch.setattr(backends, "obstacle", lambda *args: None)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield functions
    torch.set_float32_matmul_precision(precision)


def put_module(monkeypatch, path, **contents):
    """An importable module of that dotted name, its parents included."""
    parts = path.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        module = types.ModuleType(name)
        module.__path__, module.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
        if depth == len(parts):
            module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("streamed", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("kind", ["head", "channel"])
def test_gated_scan_through_fla(library, kind, streamed):
    """Outputs and gradients, a row with pads and a row of none, a state in and out."""
    leaves = list(test_gated_scan.row(20, kind, torch.float32))
    options = {"scale": 0.7, "return_state": True}
    if streamed:
        leaves.append(draw(B, H, K, V, seed=5, dtype=torch.float32))
    lengths_B = torch.tensor([20, 11])
    real = test_gated_scan.first(lengths_B, 20)
    weights = [draw(B, 20, H, V, gradient=False, dtype=torch.float32) * real, draw(B, H, K, V, seed=3, dtype=torch.float32)]

    def scan(backend):
        y, state = gated_scan(*leaves[:4], state=leaves[4] if streamed else None, lengths_B=lengths_B, backend=backend,
                              **options)
        assert y.dtype == state.dtype == torch.float32 and state.shape == (B, H, K, V)
        return y * real, state

    got, expected = (with_gradients(lambda name=name: scan(name), leaves, weights) for name in ("fla", "naive"))
    assert error(got, expected) <= 1e-6
    (given,) = library["gla" if kind == "channel" else "simple_gla"].calls
    assert given["q"].shape == (B, 20, H, K) and given["scale"] == 0.7
    assert not given["k"][1, 11:].any() and not given["g"][1, 11:].any(), "pads neither write nor decay"


@pytest.mark.parametrize("streamed", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("kind, dtype", [("plain", torch.bfloat16), ("decayed", torch.bfloat16), ("decayed", torch.float32)])
def test_delta_scan_through_fla(library, kind, dtype, streamed):
    leaves = test_delta_scan.row(20, kind, dtype)
    state = [draw(B, H, K, V, seed=5, dtype=torch.float32)] if streamed else []
    lengths_B = torch.tensor([20, 11])
    real = test_delta_scan.first(lengths_B, 20)
    weights = [draw(B, 20, H, V, gradient=False, dtype=dtype) * real, draw(B, H, K, V, seed=3, dtype=torch.float32)]

    def scan(backend):
        y, after = test_delta_scan.run(
            leaves, state[0] if streamed else None, lengths_B=lengths_B, scale=0.7, backend=backend, return_state=True)
        assert y.dtype == dtype and after.dtype == torch.float32 and after.shape == (B, H, K, V)
        return y * real, after

    got, expected = (with_gradients(lambda name=name: scan(name), [*leaves, *state], weights) for name in ("fla", "naive"))
    assert error(got, expected) <= 1e-6
    (given,) = library["delta_rule" if kind == "plain" else "gated_delta_rule"].calls
    assert given["beta"].shape == (B, 20, H) and given["beta"].dtype == dtype and not given["beta"][1, 11:].any()
    assert kind == "plain" or not given["g"][1, 11:].any()


def test_no_state_is_asked_of_fla_where_none_is_wanted(library):
    y = gated_scan(*test_gated_scan.row(9, "head", torch.float32), backend="fla", lengths_B=torch.tensor([9, 4]))
    assert y.shape == (B, 9, H, V)
    (given,) = library["simple_gla"].calls
    assert given["output_final_state"] is False and given["scale"] == K**-0.5


def test_strong_gates_are_bounded_for_fla(library):
    """In float32, 64 summed log-decays of -1e4 would leave their neighbours 2 digits."""
    q, k, v, _ = test_gated_scan.row(9, "channel", torch.float32)
    log_decay = torch.tensor([0.0, -1e-4, -1e4]).repeat(3).view(1, 9, 1, 1).expand(B, 9, H, K)
    y = gated_scan(q, k, v, log_decay, backend="fla")
    assert error([y], [gated_scan(q, k, v, log_decay, backend="naive")]) <= 1e-6
    assert library["gla"].calls[0]["g"].min() == fla.LEAST_LOG_DECAY


def test_what_fla_cannot_take(monkeypatch):
    x32, x64, x16 = (torch.zeros(1, 2, 1, 4, dtype=dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16))
    assert fla.gated_reason(x16, x16, x16) is None
    assert "TF32" in fla.gated_reason(x32, x32, x32)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert fla.gated_reason(x32, x32, x32) is None
    assert "got float64" in fla.gated_reason(x64, x64, x64)
    assert "of one type" in fla.gated_reason(x32, x32, x16)
    gate = torch.zeros(1, 2, 1)
    assert fla.delta_reason(x32, x32, x32, gate) is None and fla.delta_reason(x16, x16, x16, None) is None
    assert "got float32" in fla.delta_reason(x32, x32, x32, None)
    wide = torch.zeros(1, 2, 1, 257)
    assert "at most 256" in fla.delta_reason(wide, wide, x32, gate) and fla.gated_reason(wide, wide, x32) is None


def test_on_a_cpu_the_libraries_are_refused_with_a_remedy_and_never_chosen():
    q, k, v, log_decay = test_gated_scan.row(3, "head", torch.float32)
    with pytest.raises(UnsupportedUse, match="gated_scan: backend 'fla' cannot run here: .*Use backend='auto'"):
        gated_scan(q, k, v, log_decay, backend="fla")
    x, taps = torch.zeros(1, 3, 8), torch.zeros(8, 3)
    with pytest.raises(UnsupportedUse, match="short_conv: backend 'causal_conv1d' cannot run here: .*causal_conv1d"):
        short_conv(x, taps, backend="causal_conv1d")
    assert error([gated_scan(q, k, v, log_decay)], [gated_scan(q, k, v, log_decay, backend="chunked")]) == 0


@pytest.mark.long
@pytest.mark.parametrize("operation", FUNCTIONS)
def test_the_signatures_are_the_imported_ones(operation):
    pytest.importorskip("fla")
    function = getattr(importlib.import_module(f"fla.ops.{operation}"), FUNCTIONS[operation])
    theirs = inspect.signature(function)
    ours = signature(operation)
    assert [(p.name, p.kind, p.default) for p in theirs.parameters.values()] == [
        (p.name, p.kind, p.default) for p in ours.parameters.values()]
    names = {"q", "k", "v", "scale", "initial_state", "output_final_state"} | (
        {"g"} if operation != "delta_rule" else set()) | ({"beta"} if "delta" in operation else set())
    theirs.bind(**dict.fromkeys(names))


# ------------------------------------------------------------------------------------------- mamba_ssm, causal_conv1d
def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """mamba_ssm's signature and layout (B, D, L), (B, N, L), over our naive form; its kernel's demands on types."""
    assert delta.dtype == B.dtype == C.dtype == u.dtype and A.dtype == torch.float32
    assert (D is None or D.dtype == torch.float32) and z is None and delta_bias is None and not delta_softplus
    y, state = selective_scan(*(x.transpose(1, 2) for x in (u, delta)), A, *(x.transpose(1, 2) for x in (B, C)),
                              skip_D=D, backend="naive", return_state=True)
    y = y.transpose(1, 2).contiguous()
    return (y, state) if return_last_state else y


@pytest.mark.parametrize("skip", [True, False], ids=["skip", "no skip"])
def test_selective_scan_through_mamba(monkeypatch, skip):
    put_module(monkeypatch, "mamba_ssm.ops.selective_scan_interface", selective_scan_fn=selective_scan_fn)
    L, D, N, single = 12, 6, 3, {"dtype": torch.float32}
    delta = torch.nn.functional.softplus(draw(B, L, D, seed=1, gradient=False)).float().requires_grad_()
    A = (-0.2 - draw(D, N, seed=2, gradient=False).abs()).float().requires_grad_()
    leaves = [draw(B, L, D, **single), delta, A, draw(B, L, N, seed=3, **single), draw(B, L, N, seed=4, **single)]
    skip_D = draw(D, seed=5, **single) if skip else None
    lengths_B, wanted = torch.tensor([12, 7]), leaves + ([skip_D] if skip else [])
    real = (torch.arange(L) < lengths_B[:, None]).unsqueeze(-1)
    weights = [draw(B, L, D, gradient=False, **single) * real, draw(B, D, N, seed=7, gradient=False, **single)]
    got = with_gradients(lambda: mamba.selective_scan(*leaves, skip_D, lengths_B, None), wanted, weights)
    expected = with_gradients(lambda: selective_scan(
        *leaves, skip_D=skip_D, lengths_B=lengths_B, backend="naive", return_state=True), wanted, weights)
    assert error(got[2:], expected[2:]) <= 1e-6
    assert error([got[0] * real, got[1]], [expected[0] * real, expected[1]]) <= 1e-6
    low = [x.bfloat16() if i in (0, 3, 4) else x for i, x in enumerate(leaves)]
    y, state = mamba.selective_scan(*low, skip_D, None, None)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32, "delta stays float32, x's type comes back"


def test_what_mamba_cannot_take():
    x, A, state = torch.zeros(1, 2, 4), -torch.ones(4, 3), torch.zeros(1, 4, 3)
    slots, half = torch.zeros(1, 2, 3), torch.bfloat16
    assert mamba.selective_reason(x, x, A, slots, slots, None) is None
    assert mamba.selective_reason(x.to(half), x, A, slots.to(half), slots.to(half), None) is None
    assert "no initial state" in mamba.selective_reason(x, x, A, slots, slots, state)
    for N in (0, 257):
        assert f"1 to 256 states a channel, got {N}" in mamba.selective_reason(x, x, -torch.ones(4, N), slots, slots, None)
    given = {"x": x, "delta": x, "A": A, "input": slots, "output": slots}
    for name, tensor in given.items():
        assert f"{name} is torch.float64" in mamba.selective_reason(*(given | {name: tensor.double()}).values(), None)


def causal_conv1d_fn(x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False,
                     final_states_out=None, activation=None):
    """causal_conv1d's signature, its layout (B, D, L) and its demands, over a written-out sum."""
    (_, D, L), width = x.shape, weight.shape[1]
    assert 2 <= width <= 4 and D % 8 == 0 and activation is None and not return_final_states and final_states_out is None
    assert x.stride(1) == 1 and x.stride(2) % 8 == 0 and x.stride(0) % 8 == 0, "channels last"
    assert bias is None or bias.dtype == weight.dtype
    assert seq_idx is None or (seq_idx.dtype == torch.int32 and seq_idx.is_contiguous() and initial_states is None)
    assert initial_states is None or (initial_states.shape[2] == width - 1 and initial_states.stride(1) == 1)
    before = x.new_zeros(*x.shape[:2], width - 1) if initial_states is None else initial_states
    inputs = torch.cat((before, x), 2)
    y = 0.0 if bias is None else bias[:, None]
    for o in range(width):
        tap = inputs[:, :, width - 1 - o : width - 1 - o + L] * weight[:, width - 1 - o, None]
        if seq_idx is not None and o:
            same = torch.nn.functional.pad(seq_idx[:, o:] == seq_idx[:, :-o], (o, 0))
            tap = tap * same[:, None]
        y = y + tap
    return y.to(x.dtype)


@pytest.mark.parametrize("use", ["start", "past", "packed", "bias"])
def test_short_conv_through_causal_conv1d(monkeypatch, use):
    put_module(monkeypatch, "causal_conv1d", causal_conv1d_fn=causal_conv1d_fn)
    monkeypatch.setattr(backends, "obstacle", lambda *args: None)
    mamba.conv_installed.cache_clear()
    try:
        leaves, options = [draw(2, 7, 8, dtype=torch.float32), draw(8, 3, dtype=torch.float32)], {}
        if use == "packed":
            options["position_BL"] = Layout.packed([[2, 3, 1], [7]], 7).position_BL
        elif use != "start":
            options["past_BPD" if use == "past" else "bias_D"] = draw(*(2, 2, 8)[use == "bias" and 2 :], dtype=torch.float32)
            leaves.extend(options.values())
        weights = [draw(2, 7, 8, dtype=torch.float32, gradient=False)]
        got, expected = (with_gradients(lambda name=name: [short_conv(*leaves[:2], backend=name, **options)], leaves, weights)
                         for name in ("causal_conv1d", "naive"))
        assert error(got, expected) <= 1e-6
    finally:
        mamba.conv_installed.cache_clear()


def test_what_causal_conv1d_cannot_take(monkeypatch):
    monkeypatch.setattr(mamba, "conv_installed", lambda: True)
    x, taps = torch.zeros(1, 5, 8), torch.zeros(8, 3)
    assert mamba.conv_reason(x, taps) is None
    assert "2 to 4 taps" in mamba.conv_reason(x, torch.zeros(8, 5))
    assert "multiple of 8" in mamba.conv_reason(x[..., :6], taps[:6])
    assert "float32" in mamba.conv_reason(x.double(), taps.double())
    monkeypatch.setattr(mamba, "conv_installed", lambda: False)
    assert "not installed" in mamba.conv_reason(x, taps)
