"""Runs in a process of its own: loads every folder given with transformers alone, and says what it gives.

    python exported.py FOLDERS.json OUT.safetensors

FOLDERS.json: {name: {"folder", "ids", "mask", "right_ids", "right_mask"}}. OUT: logits of `ids`, of the padded batch
on either side, and the greedy texts with and without a cache, by `name/what`.
"""

import json
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


@torch.no_grad()
def answers(asked: dict) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(asked["folder"], trust_remote_code=True)
    tensors = {name: torch.tensor(asked[name]) for name in ("ids", "left", "left_mask", "right", "right_mask")}
    found = {"dense": model(tensors["ids"]).logits}
    for side in ("left", "right"):
        found[side] = model(tensors[side], attention_mask=tensors[f"{side}_mask"]).logits
    for name, use_cache in (("cached", True), ("anew", False)):
        new = model.generate(tensors["left"], attention_mask=tensors["left_mask"], max_new_tokens=asked["new"],
                             eos_token_id=None, use_cache=use_cache)
        found[name] = new[:, tensors["left"].shape[1]:]
    if asked["text"]:
        tokenizer = AutoTokenizer.from_pretrained(asked["folder"], trust_remote_code=True)
        inputs = tokenizer(asked["text"], padding=True, return_tensors="pt")
        new = model.generate(inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=asked["new"])
        found["text"] = torch.tensor(list("\n".join(tokenizer.batch_decode(
            new[:, inputs.input_ids.shape[1]:], skip_special_tokens=True)).encode()), dtype=torch.uint8)
    return found


def main(asked: str, out: str) -> None:
    with open(asked) as file:
        wanted = json.load(file)
    found = {f"{name}/{what}": tensor.contiguous() for name, one in wanted.items()
             for what, tensor in answers(one).items()}
    assert "tasks" not in sys.modules and "flows" not in sys.modules
    save_file(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
