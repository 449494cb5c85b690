"""Skyformer against the released core, with the landmarks that it drew.

It divides the first estimate of the inverse by one number for the whole tensor: passed in here. Ours takes one a document and
head, and differs by little.
"""

import pytest
import torch

from models import registry
from models.mixers.skyformer import Config
from tests.golden.attn import attn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@torch.no_grad()
def test_released(dtype):
    meta, arrays = attn("skyformer")
    q, k, v, out = (torch.from_numpy(arrays[name]).to(dtype) for name in ("q", "k", "v", "out"))
    N, drawn = q.shape[2], torch.from_numpy(arrays["sketch"])
    assert torch.equal(drawn[0], drawn[1])                                # one draw a length: rows share it
    mixer = registry.build(Config(heads=2, landmarks=meta["nb_features"]), 2 * meta["head_dim"], seed=0)
    half = meta["nb_features"] // 2
    assert (drawn[0, 0, :half] < N).all() and (drawn[0, 0, half:] >= N).all()
    assert [len(index) for index in mixer.sampled(N)] == [half, half]
    mixer.sampled = lambda _: (drawn[0, 0, :half], drawn[0, 0, half:] - N)
    ours = mixer.attend(q, k, v)
    mixer.inverse_scale = lambda a_BHCC: a_BHCC.sum(-2).amax()
    torch.testing.assert_close(mixer.attend(q, k, v), out, rtol=1e-3, atol=1e-4)
    assert 0 < (ours - out).abs().max() < 0.05 * out.abs().max()
