"""The mixer s4d against CAB's S4D, one way and both, and against the authors' minimal layer."""

import numpy as np
import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.mixers import s4d
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CAB = {"C": "kernel.kernel.C", "log_dt": "kernel.kernel.log_dt", "log_A_real": "kernel.kernel.log_w_real",
       "A_imag": "kernel.kernel.w_imag", "D": "D", "out_proj.weight": "output_linear.weight", "out_proj.bias": "output_linear.bias"}
OFFICIAL = {"C": "kernel.C", "log_dt": "kernel.log_dt", "log_A_real": "kernel.log_A_real", "A_imag": "kernel.A_imag", "D": "D",
            "out_proj.weight": "output_linear.0.weight", "out_proj.bias": "output_linear.0.bias"}
FILES = {"s4d_cab": CAB, "s4d_bi_cab": CAB, "s4d_official": OFFICIAL}
every_file = pytest.mark.parametrize("name", FILES)


def close(got, expected):
    np.testing.assert_allclose(got.detach().double().numpy(), np.asarray(expected, np.float64), rtol=1e-4, atol=1e-5)


def config(name, meta):
    if name == "s4d_official":
        return s4d.Config(state_size=meta["d_state"])
    return s4d.Config(state_size=meta["d_state"], channels=meta["channels"], init="inv", shared_A=True, output="linear",
                      mode="non_causal" if "bi" in name else "causal")


def loaded(name, dtype):
    """(mixer with the file's weights, x, the file's arrays)."""
    meta, arrays = attn(name)
    x = torch.from_numpy(arrays["u" if name == "s4d_official" else "x"]).to(dtype)
    mixer = registry.build(config(name, meta), x.shape[-1], seed=0).to(dtype).eval()
    shapes = {key: tensor.shape for key, tensor in mixer.state_dict().items()}
    assert shapes.keys() == FILES[name].keys()
    mixer.load_state_dict({ours: torch.from_numpy(arrays[f"w.{theirs}"]).to(dtype).reshape(shapes[ours])
                           for ours, theirs in FILES[name].items()})
    return mixer, x, arrays


@DTYPES
@every_file
def test_outputs(name, dtype):
    mixer, x, arrays = loaded(name, dtype)
    close(mixer(x, Layout.dense(*x.shape[:2])), arrays["out"])


@every_file
def test_kernels(name):
    """sum_n Re(read_n exp(step_n t)), and the first reads of a fresh mixer's A, which the file's were made from."""
    mixer, x, arrays = loaded(name, torch.float64)
    log_decay, angle, real, imag = mixer.waves()
    wave = torch.complex(log_decay, angle)[:, :, None] * torch.arange(x.shape[1])
    kernel = torch.einsum("rdn,dnl->rdl", torch.complex(real, imag), wave.exp()).real
    close(kernel.view(arrays["kernel"].shape), arrays["kernel"])
    fresh = registry.build(mixer.config, x.shape[-1], seed=0)
    close(fresh.A_imag, arrays[f"w.{FILES[name]['A_imag']}"])


@DTYPES
@pytest.mark.parametrize("name", ["s4d_cab", "s4d_official"])
@torch.no_grad()
def test_pieces_steps_and_last_state(name, dtype):
    """Rows cut at different tokens, padded, with other numbers at the pads; then one token at a time."""
    mixer, x, arrays = loaded(name, dtype)
    L, cuts = x.shape[1], (7, 30)
    start, more = x[:, : max(cuts)].clone(), torch.full_like(x, 1e3)
    start[0, cuts[0] :] = -50.0
    for row, cut in enumerate(cuts):
        more[row, : L - 3 - cut] = x[row, cut : L - 3]
    y, state = mixer.prefill(start, Layout.right_padded(cuts, max(cuts)))
    z, state = mixer.extend(more, Layout.right_padded([L - 3 - cut for cut in cuts], L), state)
    outputs = [torch.stack([torch.cat((y[row, :cut], z[row, : L - 3 - cut])) for row, cut in enumerate(cuts)])]
    for token in x[:, L - 3 :].unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
    close(torch.cat(outputs, 1), arrays["out"])
    if "final_state_re" in arrays:
        close(state["h"][..., 0], arrays["final_state_re"])
        close(state["h"][..., 1], arrays["final_state_im"])
