"""Which form runs where, and which combinations are refused; versions and GPUs are given, not found."""

import pytest
import torch

from kernels import backends, toolchain
from kernels.backends import choose_backend
from kernels.errors import UnsupportedUse
from kernels.layout import Layout
from kernels.taylor import empty_state, taylor, taylor_step
from kernels.toolchain import Use, known_bad, refusal
from kernels.triton_mode import parse_version
from kernels.window import window
from models import registry

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def hopper(monkeypatch):
    """A machine with a Hopper GPU, fla 0.6.0 and the given Triton."""
    def machine(triton=(3, 7, 1), library=(0, 6, 0), capability=(9, 0)):
        monkeypatch.setattr(backends, "triton_version", lambda: triton)
        monkeypatch.setattr(backends, "library_version", lambda *distributions: library)
        monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: object())
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    return machine


def test_on_a_cpu_auto_is_chunked():
    assert choose_backend("taylor", "auto", CPU, fast={"triton": None}) == "chunked"
    assert choose_backend("taylor", "naive", GPU) == "naive"


def test_auto_takes_the_first_form_that_can(hopper):
    hopper()
    assert choose_backend("op", "auto", GPU, fast={"triton": None}) == "triton"
    assert choose_backend("op", "auto", GPU, fast={"triton": "K is 80, at most 32", "fla": None}) == "fla"
    assert choose_backend("op", "auto", GPU, fast={"triton": "K is 80, at most 32"}) == "chunked"
    assert choose_backend("op", "auto", GPU) == "chunked"


@pytest.mark.parametrize(("backend", "fast", "says"), [
    ("triton", {}, r"op: no backend 'triton'; choose 'auto', 'naive', 'chunked'"),
    ("cuda", {"triton": None}, r"op: unknown backend 'cuda'; .*'triton'"),
    ("triton", {"triton": "K is 80, at most 32"}, r"cannot run here: K is 80, at most 32\. Use"),
])
def test_a_form_asked_for_by_name_says_why_not(hopper, backend, fast, says):
    hopper()
    with pytest.raises(UnsupportedUse, match=says):
        choose_backend("op", backend, GPU, fast=fast)


def test_a_cpu_tensor_needs_the_interpreter():
    with pytest.raises(UnsupportedUse, match="on cpu, it needs a GPU .or TRITON_INTERPRET=1"):
        choose_backend("op", "triton", CPU, fast={"triton": None})


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedUse, match="mamba_ssm is not installed"):
        choose_backend("selective_scan", "mamba_ssm", GPU, fast={"mamba_ssm": None})


@pytest.mark.parametrize(("triton", "capability", "gradients", "form"), [
    ((3, 6, 0), (9, 0), True, "chunked"),
    ((3, 7, 0), (9, 0), True, "chunked"),
    ((3, 7, 1), (9, 0), True, "fla"),
    ((3, 6, 0), (9, 0), False, "fla"),
    ((3, 6, 0), (8, 0), True, "fla"),
    ((3, 3, 1), (9, 0), True, "fla"),
])
def test_gated_gradients_on_hopper(hopper, triton, capability, gradients, form):
    hopper(triton, capability=capability)
    with torch.set_grad_enabled(gradients):
        assert choose_backend("gated_scan", "auto", GPU, fast={"fla": None}) == form
        if form == "chunked":
            with pytest.raises(UnsupportedUse, match=r"#640.*triton>=3\.7\.1"):
                choose_backend("gated_scan", "fla", GPU, fast={"fla": None})


@pytest.mark.parametrize("operation", ["taylor", "prefix", "window", "orthogonal_memory"])
def test_our_kernels_work_where_others_do_not(hopper, operation):
    hopper((3, 6, 0))
    assert choose_backend(operation, "auto", GPU, fast={"triton": None}) == "triton"
    hopper((3, 5, 1))
    assert choose_backend(operation, "auto", GPU, fast={"triton": None}) == "chunked"
    with pytest.raises(UnsupportedUse, match=r"triton>=3\.6"):
        choose_backend(operation, "triton", GPU, fast={"triton": None})


def test_older_libraries():
    old, new = (Use(9, (3, 8, 0), library, gradients=True) for library in ((0, 5, 2), (0, 6, 0)))
    assert "#984" in refusal("delta_scan", "fla", old).source
    assert refusal("delta_scan", "fla", new) is None
    assert refusal("gated_scan", "fla", old) is None
    assert "#1327" in refusal("gated_scan", "fla", Use(10, (3, 7, 1), (0, 5, 2), gradients=True)).source


def test_what_a_machine_is_told():
    assert not list(known_bad({9}, (3, 7, 1), {"fla": (0, 6, 0)}))
    assert [rule.form for rule in known_bad({8, 9}, (3, 6, 0), {"fla": (0, 6, 0)})] == ["fla"]
    assert not list(known_bad({9}, (3, 6, 0), {})), "fla is not installed"
    assert [rule.form for rule in known_bad({8}, (3, 5, 0), {})] == ["triton"]
    assert not list(known_bad(set(), (3, 5, 0), {})) and not list(known_bad({9}, None, {}))


def test_the_table_is_readable():
    rows = toolchain.table()
    assert len(rows) == len(toolchain.RULES)
    assert all(all(row.values()) for row in rows)
    assert {"operations": "delta_scan, gated_scan", "triton": ">= 3.4.0, < 3.7.1", "gpus": "sm_9x"}.items() <= rows[1].items()


@pytest.mark.parametrize(("text", "version"), [
    ("3.7.1", (3, 7, 1)), ("3.8", (3, 8, 0)), ("3", (3, 0, 0)), ("3.7.1+git1234", (3, 7, 1)), ("3.7.1.post2", (3, 7, 1)),
    ("1!3.7.1", (3, 7, 1)), ("3.7.0rc1", (3, 6, 999)), ("3.7.1.dev5", (3, 7, 0)), ("4.0.0a2", (3, 999, 999)),
    ("v2.2.4", (2, 2, 4))])
def test_versions_are_read_and_a_pre_release_comes_before(text, version):
    assert parse_version(text) == version


def test_a_release_candidate_of_the_cure_is_not_cured():
    for text in ("3.7.0rc1", "3.7.1rc1"):
        assert refusal("gated_scan", "fla", Use(9, parse_version(text), (0, 6, 0), gradients=True))


@pytest.mark.parametrize("operation", ["taylor", "window"])
def test_a_second_derivative_is_refused_where_it_would_be_wrong(operation):
    """torch's own mark on a backward would let a search towards the weights pass it by."""
    function = taylor if operation == "taylor" else window
    x, W = (torch.randn(1, 9, 4, dtype=torch.float64) for _ in range(2))
    W = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    x.requires_grad_()
    h = (x @ W).unsqueeze(2)
    y = function(h, h, h, **({"window": 3} if operation == "window" else {}))
    with pytest.raises(UnsupportedUse, match="backend='naive'"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_what_inference_mode_leaves_serves_a_training():
    """Cached tensors made in inference mode could not enter a graph."""
    q, k, v = (torch.randn(2, 9, 2, 7) for _ in range(3))
    layout = Layout.right_padded([9, 4], 9)
    mixer = registry.build(registry.config_class("based")(heads=2, feature_dim=7), 14, seed=0)
    with torch.inference_mode():
        _, state = taylor(q, k, v, return_state=True)
        taylor_step(q[:, 0], k[:, 0], v[:, 0], state)
        mixer(torch.randn(2, 9, 14), layout)
    x = torch.randn(2, 9, 14, requires_grad=True)
    mixer(x, layout).sum().backward()
    taylor_step(q[:, 0].requires_grad_(), k[:, 0], v[:, 0], empty_state(2, 2, 7, 7, torch.float32))[0].sum().backward()
    assert torch.isfinite(x.grad).all()
