"""The Taylor feature map against the released one."""

import pytest
import torch

from kernels.taylor import feature_map
from kernels.taylor.features import expand
from tests.golden.reference import reference, symmetric, tensor


@pytest.mark.parametrize(("width", "name"), [(4, "d4"), (16, "d16"), (4, "d4_scale9")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_feature_map(name, width, dtype):
    golden = reference("taylor_feature_map")
    scale = (9 if name.endswith("scale9") else width) ** -0.5
    x = tensor(golden[f"x_{name}"], dtype)
    expected = symmetric(golden[f"phi{64 if dtype == torch.float64 else 32}_{name}"], width)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    assert (feature_map(x, scale) - expected).abs().max() <= tolerance
    x1 = torch.cat([torch.ones_like(x[..., :1]), x * scale**0.5], -1)
    assert (expand(x1) - expected).abs().max() <= tolerance


def test_symmetric_features_have_the_released_kernel():
    """phi·phi = 1 + s + s²/2 in either layout: merging equal pairs changes no weight."""
    golden = reference("taylor_feature_map")
    x, phi = tensor(golden["x_d4"]), tensor(golden["phi64_d4"])
    released = phi @ phi.transpose(-1, -2)
    s = (x @ x.transpose(-1, -2)) / 2
    ours = feature_map(x, 0.5)
    assert ours.shape[-1] == 15
    assert (released - (1 + s + s * s / 2)).abs().max() <= 1e-10
    assert (ours @ ours.transpose(-1, -2) - released).abs().max() <= 1e-10
