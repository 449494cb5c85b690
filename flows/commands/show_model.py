"""`reread models show` and `reread models mixers`: one preset layer by layer, one kind with its settings, every kind."""

from __future__ import annotations

import textwrap
from itertools import groupby
from typing import Any

from flows.commands.models import LENGTHS, can, facts, short
from flows.commands.output import document, say, size, table

ABILITIES = ("causal", "non_causal", "cross", "prefix", "streaming", "native_packing")


def show_model(name: str, json: bool) -> None:
    """A preset; or a kind of mixer, where no preset has the name. ConfigError for neither."""
    from difflib import get_close_matches

    from kernels.errors import ConfigError
    from models import registry
    from models.presets import FAMILIES, preset_names

    presets, kinds = preset_names(*FAMILIES), registry.names()
    if name in presets:
        show, found = _preset, preset_facts(name)
    elif name in kinds:
        show, found = _kind, kind_facts(name)
    else:
        close = get_close_matches(name.lower(), [*presets, *kinds], n=4, cutoff=0.5)
        raise ConfigError(f"no preset or mixer {name!r}; " + (f"close to it are {', '.join(close)}; " if close else "")
                          + "`reread models` lists all")
    document(found) if json else show(found)


def preset_facts(name: str) -> dict[str, Any]:
    """What is listed of a preset, and its layers, sources and config."""
    from models.presets import describe
    from models.sizing import Sketch

    card = describe(name)
    sketch = Sketch(card.build())
    costs = {length: sketch.layer_costs(length) for length in LENGTHS}
    layers = [{"layer": layer, "name": part.name, "kind": part.kind, "parameters": part.parameters,
               "mixer_parameters": part.mixer, "mlp_parameters": part.mlp,
               "state_bytes": {str(length): costs[length][layer].state_bytes for length in LENGTHS}}
              for layer, part in enumerate(sketch.parts)]
    return {**facts(name), "about": card.about, "source": card.source, "counted": card.counted,
            "conflicts": list(card.conflicts), "outside_parameters": sketch.outside, "layers": layers,
            "config": sketch.config.model_dump(mode="json")}


def kind_facts(kind: str) -> dict[str, Any]:
    """A kind's abilities over all its modes, and its settings; or why its file cannot be used."""
    from models import registry

    entry = registry.entry(kind)
    reason, able = entry.broken, []
    if reason is None:
        try:
            able = [registry.abilities(config) for config in entry.config.cases().values()]
        except Exception as error:  # noqa: BLE001  a user's file may fail in any way; the reason is shown
            reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        return {"kind": kind, "about": None, "broken": reason, "not_causal": None, **dict.fromkeys(ABILITIES), "growth": [],
                "settings": []}
    settings = [{"name": name, "default": None if field.is_required() else field.default,
                 "meaning": field.description}
                for name, field in entry.config.model_fields.items() if name != "kind"]
    return {"kind": kind, "about": _about(entry.module), "broken": None, "not_causal": entry.config.why_not_causal or None,
            **{name: any(getattr(one, name) for one in able) for name in ABILITIES},
            "growth": sorted({one.growth for one in able if one.streaming}), "settings": settings}


def _about(module: str) -> str | None:
    """The first paragraph of a file's docstring, on one line."""
    import importlib

    text = importlib.import_module(module).__doc__
    return " ".join(text.split("\n\n")[0].split()) if text else None


def list_mixers(json: bool) -> None:
    """Every mixer file: what it can do in at least one of its modes, or why it cannot be used."""
    from models import registry

    found = [kind_facts(kind) for kind in registry.names()]
    if json:
        document([{key: value for key, value in one.items() if key != "settings"} for one in found])
        return
    columns = ["causal", "both ways", "cross", "prefix", "stream", "packed"]
    rows = [[one["kind"], *("yes" if one[name] else "-" for name in ABILITIES), ", ".join(one["growth"]) or "-"]
            for one in found if one["broken"] is None]
    table(["mixer", *columns, "state"], rows)
    for one in found:
        if one["broken"] is not None:
            _paragraph(f"{one['kind']} cannot be used: ", one["broken"])
    say("\nIn at least one mode; packed: several documents a row without unpacking. One of them: reread models show lavo")


def _preset(found: dict[str, Any]) -> None:
    config, states = found["config"], found["state_bytes"]
    say(f"{found['name']}: {found['about']}")
    _paragraph("source      ", found["source"])
    published = [f"published {found['published']}"] if found["published"] else []
    if found["counted"] is not None:
        same = "the same" if found["counted"] == found["parameters"] else "NOT the same"
        published.append(f"released configuration {found['counted']:,}, {same}")
    _paragraph("parameters  ", "; ".join([f"{found['parameters']:,}", *published]))
    _paragraph("cost        ", f"{short(found['flops_per_token'])} FLOPs a token, forward, in a text of {LENGTHS[0]:,}")
    _paragraph("state       ", ", ".join(f"{size(states[str(length)])} after {length:,} tokens" for length in LENGTHS))
    able = can(found["abilities"]).rpartition(", ")[0] + (" tokens" if found["abilities"]["max_length"] else "")
    _paragraph("abilities   ", f"{able}; state {found['abilities']['growth']} in the length of the text")
    mlp = "no MLP" if config["mlp"] is None else f"{config['mlp_kind']} MLP of {config['mlp']:,}"
    _paragraph("trunk       ", f"width {config['width']:,}, {len(found['layers'])} layers, vocabulary {config['vocabulary']:,}, {mlp}, "
                               f"{config['norm']} norm, {config['positions'].replace('none', 'no')} positions, "
                               f"{'tied' if config['tie'] else 'separate'} head")
    for name, settings in config["mixers"].items():
        given = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "kind" and value is not None)
        _paragraph(f"{name:<11} ", f"{settings['kind']}: {given}" if given else settings["kind"])
    say()
    _layers(found)
    for number, conflict in enumerate(found["conflicts"]):
        say() if number == 0 else None
        _paragraph("conflict    ", conflict)


def _layers(found: dict[str, Any]) -> None:
    """A row for each run of equal layers; the figures are one layer's."""
    rows = []
    for name, run in groupby(found["layers"], key=lambda layer: layer["name"]):
        layers = list(run)
        first, last = layers[0], layers[-1]["layer"]
        where = f"{first['layer']}" if len(layers) == 1 else f"{first['layer']}-{last}"
        rows.append([where, name, first["kind"], f"{first['mixer_parameters']:,}", f"{first['mlp_parameters']:,}",
                     *(size(first["state_bytes"][str(length)]) for length in LENGTHS)])
    rows.append(["", "embedding, last norm", "", f"{found['outside_parameters']:,}"])
    numbers = ("mixer", "MLP", "state at 2,048", "at 32,768")
    table(["layer", "name", "kind", *numbers], rows, right=numbers)


def _kind(found: dict[str, Any]) -> None:
    say(f"{found['kind']}: {found['about'] or 'a mixer'}")
    if found["broken"] is not None:
        _paragraph("cannot be used: ", found["broken"])
        return
    able = [name.replace("_", " ").replace("native packing", "packed") for name in ABILITIES if found[name]]
    _paragraph("abilities   ", f"{', '.join(able)} (in at least one mode); state: {', '.join(found['growth']) or 'none'}")
    if found["not_causal"]:
        _paragraph("not causal  ", found["not_causal"])
    for setting in found["settings"]:
        say()
        _paragraph(f"  {setting['name']} = {setting['default']}  ", setting["meaning"] or "")


def _paragraph(label: str, text: str) -> None:
    """Wrapped at 100 columns, indented as far as its label, at most 16."""
    say(textwrap.fill(label + text, 100, subsequent_indent=" " * min(len(label), 16), break_on_hyphens=False))
