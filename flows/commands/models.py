"""`reread models`: the presets and what they cost, one of them layer by layer, and the kinds of mixers."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatch
from typing import Any

import typer

from flows.commands.output import document, say, size, table

LENGTHS = (2048, 32768)
GROWTH = {"constant": "O(1)", "log": "O(log n)", "linear": "O(n)"}
HEADINGS = {"small": "small, for a CPU", "published": "published", "modern": "modern, at JRT's sizes",
            "zoo": "zoo, at equal parameters", "zoo-state": "zoo, at equal state bytes"}


def facts(name: str) -> dict[str, Any]:
    """What `--json` lists of a preset; FLOPs of a forward pass, state in float32."""
    from models.presets import describe
    from models.sizing import Sketch

    card = describe(name)
    sketch = Sketch(card.build())
    costs = {length: sketch.cost(length) for length in LENGTHS}
    return {"name": name, "parameters": sketch.parameters, "flops_per_token": costs[2048].flops // 2048,
            "state_bytes": {str(length): cost.state_bytes for length, cost in costs.items()},
            "mixers": list(sketch.config.plan), "abilities": asdict(sketch.able),
            "family": card.family, "published": card.published}


def list_models(only: str | None, json: bool) -> None:
    """The presets whose name fits the pattern; without one all but the zoo at equal state bytes. What cannot be built is
    named on stderr."""
    from models.presets import FAMILIES, preset_names

    families = [family for family in FAMILIES if only is not None or family != "zoo-state"]
    found, missing = [], []
    for name in preset_names(*families):
        if only is not None and not fnmatch(name, only):
            continue
        try:
            found.append(facts(name))
        except Exception as error:  # noqa: BLE001  a mixer file may fail in any way; the others are listed all the same
            missing.append(f"{name}: {error}")
    if json:
        document(found)
    elif found:
        _print(found)
        if only is None:
            say("\nThe zoo at equal bytes of state: reread models --only 'zoo-state-*'")
    elif not missing:
        say(f"no preset fits {only!r}")
    for line in missing:
        typer.echo(f"left out: {line}", err=True)


def _print(found: list[dict[str, Any]]) -> None:
    numbers = ("parameters", "FLOPs/token", "state 2,048", "32,768")
    rows: list[list[Any]] = []
    for family, heading in HEADINGS.items():
        members = [one for one in found if one["family"] == family]
        if members:
            rows += [[""]] * bool(rows) + [[f"[bold]{heading}"]]
        rows += [[f"  {one['name']}", f"{one['parameters']:,}", short(one["flops_per_token"]),
                  *(size(one["state_bytes"][str(length)]) for length in LENGTHS), can(one["abilities"])] for one in members]
    table(["model", *numbers, "can, state"], rows, right=numbers)


def can(abilities: dict[str, Any]) -> str:
    """causal, both ways, cross, prefix, packed: the ones it has; the longest text [tokens], if there is one; how its state grows."""
    words = [word for word, name in (("causal", "causal"), ("both ways", "non_causal"), ("cross", "cross"), ("prefix", "prefix"),
                                     ("packed", "native_packing")) if abilities[name]]
    if abilities["max_length"] is not None:
        words.append(f"to {abilities['max_length']:,}")
    return ", ".join([*words, GROWTH[abilities["growth"]]])


def short(count: float) -> str:
    """Numbers for people: 760 k, 1.23 M, 4.5 G."""
    for unit in ("", " k", " M", " G"):
        if count < 1000 or unit == " G":
            return f"{count:.0f}{unit}" if count >= 100 else f"{count:.3g}{unit}"
        count /= 1000
    return ""
