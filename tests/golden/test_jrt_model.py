"""A whole tiny JRT model against the released code: logits, decode, left padding."""

import numpy as np
import pytest
import torch

from kernels.layout import Layout
from models.config import ModelConfig
from models.language_model import LanguageModel
from tests.golden.reference import fill, reference, tensor
from tests.golden.test_jrt_prefix import DTYPES, close

LAYERS = ("conv", "prefix", "window", "conv")
# released name of a mixer's parameter to ours
CONV = {"in_proj/weight": "in_proj.weight", "in_proj/bias": "in_proj.bias", "out_proj/weight": "out_proj.weight",
        "out_proj/bias": "out_proj.bias", "conv/conv/weight": "conv_weight"}
PREFIX = {f"{name}/weight": f"{name}.weight"
          for name in ("proj_q", "proj_k", "proj_v", "proj_k_enc", "proj_v_enc", "out_proj")}
WINDOW = {"Wqkv/weight": "Wqkv.weight", "out_proj/weight": "out_proj.weight"}


def key_map() -> dict[str, str]:
    names = {"P_transformer/embeddings/word_embeddings/weight": "embedding.weight", "P_transformer/ln_f/weight": "norm.weight"}
    for layer, kind in enumerate(LAYERS):
        theirs, ours = f"P_transformer/layers/{layer}/", f"blocks.{layer}."
        for inner in ("norm1", "norm2"):
            names[f"{theirs}{inner}/weight"] = f"{ours}{inner}.weight"
        for inner in ("fc1", "fc2"):
            names[f"{theirs}mlp/{inner}/weight"] = f"{ours}mlp.{inner}.weight"
        for name, own in {"conv": CONV, "prefix": PREFIX, "window": WINDOW}[kind].items():
            names[f"{theirs}mixer/{name}"] = f"{ours}mixer.{own}"
    return names


def tiny(golden, dtype: torch.dtype) -> LanguageModel:
    config = ModelConfig(
        width=16, vocabulary=int(golden["vocab_size"]), plan=LAYERS, mlp=256, norm_eps=float(golden["rms_eps"]),
        mixers={
            "conv": {"kind": "base_conv", "kernel": 3},
            "prefix": {"kind": "prefix", "heads": 2, "feature_dim": int(golden["feature_dim"])},
            "window": {"kind": "sliding_window", "heads": 2, "window": int(golden["window_size_config"]) // 2 + 1},
        })
    model = LanguageModel(config).to(dtype).eval()
    names = key_map()
    assert names.keys() == {name for name in golden if name.startswith("P_")}
    fill(model, {ours: golden[theirs] for theirs, ours in names.items()})
    return model


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
    total = sum(tensor(golden[name]).sum() for name in key_map())
    model = tiny(golden, torch.float64)
    assert total.item() == pytest.approx(sum(p.sum().item() for p in model.parameters()), abs=1e-9)
