"""`reread models`: the presets and what they cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from flows.commands.output import document, size, table

LENGTHS = (2048, 32768)


def weightless(config: Any) -> Any:
    """The model of a config without memory for its weights: enough to count."""
    import torch

    from models import LanguageModel

    with torch.device("meta"):
        return LanguageModel(config, initialise=False)


def describe(name: str) -> dict[str, Any]:
    """{name, parameters, flops_per_token, state_bytes, mixers, abilities} of a preset; FLOPs of a forward pass."""
    from models import preset

    config = preset(name)
    model = weightless(config)
    costs = {length: model.cost(length) for length in LENGTHS}
    return {"name": name, "parameters": costs[2048].parameters, "flops_per_token": costs[2048].flops // 2048,
            "state_bytes": {str(length): cost.state_bytes for length, cost in costs.items()},
            "mixers": list(config.plan), "abilities": asdict(model.able)}


def list_models(json: bool) -> None:
    from models import preset_names

    found = [describe(name) for name in preset_names()]
    if json:
        document(found)
        return
    table(["model", "parameters", "FLOPs/token", "state at 2,048", "state at 32,768", "mixers"],
          [[one["name"], f"{one['parameters']:,}", f"{one['flops_per_token']:,}",
            *(size(one["state_bytes"][str(length)]) for length in LENGTHS), shortened(one["mixers"])] for one in found],
          right=("parameters", "FLOPs/token", "state at 2,048", "state at 32,768"))


def shortened(mixers: list[str]) -> str:
    """conv, conv, conv, prefix -> conv×3 prefix."""
    parts: list[list[Any]] = []
    for name in mixers:
        if parts and parts[-1][0] == name:
            parts[-1][1] += 1
        else:
            parts.append([name, 1])
    return " ".join(name if count == 1 else f"{name}×{count}" for name, count in parts)
