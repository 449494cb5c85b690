"""`each_mixer` among the architectures of a study file: one architecture for every mixer that a language model can use.

    architectures:
      each_mixer: {model: "zoo-{kind}", leave_out: [prefix]}
      hybrid: {model: my-hybrid}                      # further ones, or one of those with other settings

Mixers are found when the study is read, so a new file models/mixers/<kind>.py is a new architecture called <kind>.
"""

from __future__ import annotations

import difflib
from typing import Any

from storage import logs
from storage.errors import SpecError

EACH = "each_mixer"
LEAVE_OUT = "leave_out"
PLACE = "{kind}"

log = logs.get("flows.studies")


def expanded(data: dict[str, Any], source: str) -> dict[str, Any]:
    """The content of a study file with every `each_mixer` written out; anything malformed is left to the schema.

    :raises SpecError: a pattern without `{kind}`, or a kind left out that does not exist
    """
    workloads = data.get("workloads")
    for name, workload in workloads.items() if isinstance(workloads, dict) else ():
        architectures = workload.get("architectures") if isinstance(workload, dict) else None
        if isinstance(architectures, dict) and EACH in architectures:
            place = f"{source}: workloads.{name}.architectures"
            workload["architectures"] = _written_out(dict(architectures), place)
    return data


def _written_out(architectures: dict[str, Any], place: str) -> dict[str, Any]:
    pattern = architectures.pop(EACH)
    if not isinstance(pattern, dict) or PLACE not in str(pattern):
        raise SpecError(f"{place}.{EACH}: expected the fields of one architecture with {PLACE} where the mixer's name "
                        f"belongs, for example {{model: \"zoo-{PLACE}\"}}")
    fields = {name: value for name, value in pattern.items() if name != LEAVE_OUT}
    kinds, without = causal_kinds(), pattern.get(LEAVE_OUT) or []
    without = [without] if isinstance(without, str) else without
    if not isinstance(without, list):
        raise SpecError(f"{place}.{EACH}.{LEAVE_OUT}: got {without!r}; expected a list of mixers, for example [prefix]")
    for kind in without:
        if kind not in kinds:
            close = difflib.get_close_matches(str(kind), kinds, n=1)
            raise SpecError(f"{place}.{EACH}.{LEAVE_OUT}: there is no causal mixer {kind!r}"
                            + (f"; did you mean {close[0]}?" if close else f"; there are {', '.join(kinds)}"))
    return {kind: _filled(fields, kind) for kind in kinds if kind not in without} | architectures


def causal_kinds() -> list[str]:
    """Kinds that some setting of makes causal and able to answer token by token, in name order; broken files, with a
    warning, are not among them."""
    from models import registry

    found = []
    for entry in registry.entries():
        broken, usable = entry.broken, False
        if broken is None:
            try:
                usable = any(able.causal and able.streaming
                             for able in map(entry.mixer.abilities, entry.config.cases().values()))
            except Exception as error:  # noqa: BLE001  a user's file may fail in any way; the reason is told
                broken = f"{type(error).__name__}: {error}"
        if broken is not None:
            log.warning("mixer %s is left out of the study: %s", entry.kind, broken)
        elif usable:
            found.append(entry.kind)
    return found


def _filled(value: Any, kind: str) -> Any:
    if isinstance(value, str):
        return value.replace(PLACE, kind)
    if isinstance(value, dict):
        return {_filled(name, kind): _filled(item, kind) for name, item in value.items()}
    return [_filled(item, kind) for item in value] if isinstance(value, list) else value
