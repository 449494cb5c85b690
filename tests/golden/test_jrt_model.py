"""A whole tiny JRT model against the released code: logits, decode, left padding."""

import numpy as np
import pytest
import torch

from kernels.layout import Layout
from models.adapters import released
from models.language_model import LanguageModel
from tests.golden.reference import reference, tensor
from tests.golden.test_jrt_prefix import DTYPES, close


def official(golden) -> tuple[dict, dict[str, torch.Tensor]]:
    """(config, tensors) as the authors' checkpoints have them."""
    size = {name: int(golden[name]) for name in ("feature_dim", "n_head", "window_size_config", "M")}
    config = {
        "n_embd": 16, "n_layer": int(golden["n_layer"]), "n_head": size["n_head"], "vocab_size": int(golden["vocab_size"]),
        "pad_vocab_size_multiple": 8, "n_inner": 32, "layer_norm_epsilon": float(golden["rms_eps"]),
        "rotary_emb_fraction": int(golden["rotary_dim"]) / (16 // size["n_head"]),
        "alt_mixer_layers": [1], "alt_mixer_2_layers": [2],
        "mixer": {"_target_": "based.models.mixers.convolution.BaseConv", "expand_proj": 4, "kernel_sizes": [3]},
        "alt_mixer": {"_target_": "based.models.mixers.prefix_linear_attention.PrefixLinearAttention",
                      "num_heads": size["n_head"], "feature_dim": size["feature_dim"], "feature_name": "taylor_exp",
                      "enc_length": size["M"]},
        "alt_mixer_2": {"_target_": "based.models.mixers.slide_attention.SlidingAttention",
                        "window_size": size["window_size_config"]}}
    tensors = {name.removeprefix("P_").replace("/", "."): tensor(golden[name]) for name in golden if name.startswith("P_")}
    return config, tensors


def tiny(golden, dtype: torch.dtype) -> LanguageModel:
    """The released model, by the map that `reread import` uses."""
    found = released.read(*official(golden))
    assert found.kind == "released JRT" and found.model.config.prefix_tokens == int(golden["M"])
    return found.model.to(dtype)


@DTYPES
@pytest.mark.parametrize("length", [5, 8, 13])
@torch.no_grad()
def test_logits_and_decode(length, dtype, suffix, tolerance):
    golden = reference("tiny_model_jrt")
    model, M = tiny(golden, dtype), int(golden["M"])
    ids_BL, decode_BL = torch.from_numpy(golden[f"ids{length}"]), torch.from_numpy(golden["decode_ids"])
    layout = Layout.dense(2, length).with_prefix(M)
    close(model(ids_BL, layout), golden[f"logits{length}_{suffix}"], tolerance)
    logits_BE, state = model.prefill(ids_BL, layout)
    close(logits_BE, golden[f"logits{length}_{suffix}"][:, -1], tolerance)
    # in one piece and token by token
    pieces, _ = model.extend(decode_BL, Layout.dense(2, 4), state.clone(), all_logits=True)
    close(pieces, golden[f"decode_logits{length}_{suffix}"], tolerance)
    steps = []
    for ids_B in decode_BL.unbind(1):
        logits_BE, state = model.step(ids_B, state)
        steps.append(logits_BE)
    close(torch.stack(steps, 1), golden[f"decode_logits{length}_{suffix}"], tolerance)


@torch.no_grad()
def test_released_left_padding():
    """Pads are real tokens for the convolutions and the window, and keys zeroed before the map for the prefix layer."""
    golden = reference("tiny_model_jrt")
    model, mask = tiny(golden, torch.float64), torch.from_numpy(golden["leftpad_mask"]).bool()
    ids_BL = torch.from_numpy(golden["leftpad_ids"])
    layout = Layout.dense(2, 8).with_prefix(int(golden["M"]))
    close(model(ids_BL, layout.with_muted(~mask)), golden["leftpad_logits_64"], 1e-10)
    exact = model(ids_BL, Layout.from_mask(mask).with_prefix(int(golden["M"])))
    for row in range(2):
        bare = ids_BL[row, mask[row]]
        alone = model(bare[None], Layout.dense(1, len(bare)).with_prefix(int(golden["M"])))
        close(exact[row, mask[row]], alone[0].numpy(), 1e-10)
    assert np.abs(exact[mask].numpy() - golden["leftpad_logits_64"][mask.numpy()]).max() > 0.1


def test_weights_are_the_released_ones():
    """Nothing is lost by float16 storage: a sum over all weights in float64."""
    golden = reference("tiny_model_jrt")
    total = sum(tensor.sum() for tensor in official(golden)[1].values())
    model = tiny(golden, torch.float64)
    assert total.item() == pytest.approx(sum(p.sum().item() for p in model.parameters()), abs=1e-9)
