"""The mixers mamba and mamba2 against transformers' on their plain torch paths, weights loaded by name."""

import numpy as np
import pytest
import torch

from kernels.layout import Layout
from models import registry
from models.config import ModelConfig
from models.language_model import LanguageModel
from models.mixers import mamba, mamba2
from tests.golden.attn import attn

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def close(got, expected):
    np.testing.assert_allclose(got.detach().double().numpy(), np.asarray(expected, np.float64), rtol=1e-4, atol=1e-5)


def weights(arrays, prefix, dtype):
    return {name.removeprefix(prefix): torch.from_numpy(array).to(dtype) for name, array in arrays.items()
            if name.startswith(prefix)}


def loaded(config, width, arrays, dtype):
    """The mixer with the file's weights: exactly its parameter names and shapes."""
    mixer = registry.build(config, width, seed=0).to(dtype).eval()
    mixer.load_state_dict(weights(arrays, "w.", dtype), strict=True)
    return mixer


def mamba_config(meta):
    assert meta["dt_rank"] == 4
    return mamba.Config(state_size=meta["d_state"], expand=meta["d_inner"] // meta["hidden"], conv_width=meta["conv"], dt_rank=4)


def mamba2_config(meta):
    return mamba2.Config(state_size=meta["d_state"], expand=meta["d_inner"] // meta["hidden"], conv_width=meta["conv"],
                         head_dim=meta["head_dim"], n_groups=meta["n_groups"], norm_eps=meta["norm_eps"])


CASES = pytest.mark.parametrize(("name", "config"), [("mamba_tf", mamba_config), ("mamba2_tf", mamba2_config)],
                                ids=["mamba", "mamba2"])


@DTYPES
@CASES
def test_mixer(name, config, dtype):
    meta, arrays = attn(name)
    x = torch.from_numpy(arrays["x"]).to(dtype)
    mixer = loaded(config(meta), meta["hidden"], arrays, dtype)
    close(mixer(x, Layout.dense(*x.shape[:2])), arrays["out"])


@DTYPES
@CASES
@torch.no_grad()
def test_mixer_in_pieces_and_steps(name, config, dtype):
    """17 tokens, 11 more, then one at a time."""
    meta, arrays = attn(name)
    x = torch.from_numpy(arrays["x"]).to(dtype)
    mixer = loaded(config(meta), meta["hidden"], arrays, dtype)
    first, state = mixer.prefill(x[:, :17], Layout.dense(2, 17))
    more, state = mixer.extend(x[:, 17:28], Layout.dense(2, 11), state)
    outputs = [first, more]
    for token in x[:, 28:].unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
    close(torch.cat(outputs, 1), arrays["out"])


@DTYPES
@torch.no_grad()
def test_model_in_one_pass_and_token_by_token(dtype):
    """One layer with its norms: the last hidden states, and 8 tokens at once followed by 12 single steps."""
    meta, arrays = attn("mamba_model_tf")
    ids, ours = torch.from_numpy(arrays["ids"]), {"embeddings": "embedding", "layers.0.norm": "blocks.0.norm1",
                                                  "layers.0.mixer": "blocks.0.mixer", "norm_f": "norm"}
    vocabulary, width = arrays["w.embeddings.weight"].shape
    config = ModelConfig(width=width, vocabulary=vocabulary, vocabulary_multiple=1, mixers={"m": mamba.Config(state_size=8, dt_rank=4)},
                         plan=["m"], norm_eps=1e-5)
    model = LanguageModel(config).to(dtype).eval()
    found = {}
    for name, tensor in weights(arrays, "w.", dtype).items():
        theirs = next(stem for stem in ours if name.startswith(f"{stem}."))
        found[ours[theirs] + name.removeprefix(theirs)] = tensor
    model.load_state_dict(found, strict=True)
    close(model.hidden(ids, Layout.dense(2, 20)), arrays["out"])
    logits = arrays["out"].astype(np.float64) @ arrays["w.embeddings.weight"].T.astype(np.float64)
    split = meta["prefill"]
    y, state = model.prefill(ids[:, :split], Layout.dense(2, split), all_logits=True)
    outputs = [y]
    for token in ids[:, split:].unbind(1):
        y, state = model.step(token, state)
        outputs.append(y[:, None])
    close(torch.cat(outputs, 1), logits)
