"""A trained model with its windows set to another width at evaluation. The weights stay, and what changes is said."""

from __future__ import annotations

from typing import Any

from storage.errors import UnsupportedUse

TABLE = ".mixer.table"      # learned scores by offset, 2w - 1 of them around offset 0


def with_window(model: Any, window: int) -> tuple[Any, str]:
    """(a copy of the model with every window of `window` tokens, what was overridden); weights are shared.

    A table of scores by offset is cut to the offsets within the window; offsets that it never learned score 0.
    Raises UnsupportedUse for a model without a window, or whose window the weights or other settings tie down.
    """
    from pydantic import ValidationError

    from models import LanguageModel, ModelConfig

    config = model.config
    if not isinstance(config, ModelConfig):
        raise UnsupportedUse("a window can be set only in a model of this project, not in one of transformers")
    fields = config.model_dump(mode="json")
    old = {name: mixer["window"] for name, mixer in fields["mixers"].items()
           if name in config.plan and isinstance(mixer.get("window"), int)}
    if not old:
        raise UnsupportedUse(f"none of its mixers ({', '.join(sorted(set(config.plan)))}) has a window")
    for name in old:
        fields["mixers"][name]["window"] = window
    try:
        changed = LanguageModel(ModelConfig.model_validate(fields), initialise=False)
    except (ValidationError, UnsupportedUse) as error:
        raise UnsupportedUse(f"window {window} does not fit the model: {error}") from error
    notes = [f"{name}: window {before} -> {window}" for name, before in old.items()]
    tensors, tables = dict(model.state_dict()), False
    for key, target in changed.state_dict().items():
        if tensors[key].shape != target.shape:
            if not key.endswith(TABLE):
                raise UnsupportedUse(f"window {window} does not fit the weights: {key} is {tuple(tensors[key].shape)}")
            tensors[key], tables = resized(tensors[key], window), True
    if tables:
        notes.append("scores of further offsets cut" if window < max(old.values()) else "offsets never learned score 0")
    changed.load_state_dict(tensors, assign=True)
    return changed.to(next(model.parameters()).device).eval(), "; ".join(notes)


def resized(table: Any, window: int) -> Any:
    """A table (tables, 2w - 1) for another window: the middle kept, zeros where there was nothing."""
    before = (table.shape[-1] + 1) // 2
    out = table.new_zeros(*table.shape[:-1], 2 * window - 1)
    near = min(before, window) - 1
    out[..., window - 1 - near:window + near] = table[..., before - 1 - near:before + near]
    return out
