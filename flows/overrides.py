"""`--set a.b.c=value`: change one field of a typed spec, and say clearly what is wrong when that cannot be done.

A value is parsed as YAML. A dotted path walks through models by field, through maps by key and through lists by index.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from storage.errors import SpecError

Model = TypeVar("Model", bound=BaseModel)
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def parse(setting: str) -> tuple[list[str], Any]:
    """`train.steps=100` -> (["train", "steps"], 100)."""
    import yaml

    path, equals, text = setting.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise SpecError(f"--set takes NAME=VALUE with a dotted name, for example train.steps=100; got {setting!r}")
    try:
        return keys, plain(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise SpecError(f"--set {path}: the value {text!r} is not valid YAML: {error}") from error


def plain(value: Any) -> Any:
    """Lists for tuples, numbers for what YAML 1.1 leaves as text (1e-2)."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def apply(spec: Model, settings: Iterable[str]) -> Model:
    """A copy of `spec` with the settings applied in order, validated as a whole.

    :raises SpecError: a path that names no field (with close matches), or a value that the field refuses
    """
    changes = [parse(setting) for setting in settings]
    data = plain(spec.model_dump())
    for keys, value in changes:
        assign(spec, data, keys, value)
    return validate(type(spec), data, "--set") if changes else spec


def assign(spec: BaseModel, data: dict, keys: list[str], value: Any) -> None:
    """Change `data`, the plain dump of `spec`, at `keys`. `spec` tells which maps take new names."""
    name, where, model = ".".join(keys), data, spec
    for depth, key in enumerate(keys):
        path, last = ".".join(keys[:depth]), depth == len(keys) - 1
        if isinstance(where, list):
            if not key.isdigit() or int(key) >= len(where):
                raise SpecError(f"--set {name}: {path} is a list of {len(where)}; an item is named by its number "
                                f"from 0 to {len(where) - 1}, not {key!r}")
            step: Any = int(key)
        elif isinstance(where, dict):
            if key not in where and not (last and _takes_new_names(model, value)):
                raise unknown(name, key, path, where)
            step = key
        else:
            raise SpecError(f"--set {name}: {path} is {where!r}, it has no field {key!r}"
                            + ("; give the whole value instead" if where is None else ""))
        if last:
            where[step] = value
        else:
            where, model = where[step], _inside(model, step)


def _inside(model: Any, step: Any) -> Any:
    if isinstance(model, BaseModel):
        return getattr(model, step)
    return model[step] if isinstance(model, (dict, list, tuple)) else None


def _takes_new_names(model: Any, value: Any) -> bool:
    """Free maps (model_overrides) take any name; maps of models (architectures) a new one if it comes whole."""
    if not isinstance(model, dict):
        return False
    return isinstance(value, dict) or not any(isinstance(item, BaseModel) for item in model.values())


def unknown(setting: str, key: str, path: str, names: Iterable[str]) -> SpecError:
    """The error for a name that does not exist, with the nearest that do."""
    names = [str(name) for name in names]
    close = difflib.get_close_matches(key, names, n=3, cutoff=0.5)
    place = f"{path} has" if path else "there is"
    hint = f"did you mean {' or '.join(close)}?" if close else f"it can be: {', '.join(names) or '(nothing)'}"
    return SpecError(f"--set {setting}: {place} no {key!r}; {hint}")


def validate(model: type[Model], data: Any, source: str) -> Model:
    """`data` as `model`.

    :raises SpecError: one line per problem, naming the field, what was given and what is expected
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(explain(error, source, data)) from error


def explain(error: ValidationError, source: str, data: Any = None) -> str:
    """Pydantic's findings in one sentence each: field, value, expectation."""
    lines = []
    for finding in error.errors(include_url=False):
        place = _place(finding["loc"], data)
        given, message = finding.get("input"), finding["msg"].removeprefix("Value error, ")
        if finding["type"] == "extra_forbidden":
            lines.append(f"{place}: there is no such field")
        elif finding["type"] == "missing":
            lines.append(f"{place}: missing")
        elif isinstance(given, (dict, list, tuple, BaseModel)) or given is None:
            lines.append(f"{place}: {message}")
        else:
            lines.append(f"{place}: got {given!r}; {message[0].lower()}{message[1:]}")
    return f"{source}: " + (lines[0] if len(lines) == 1 else "\n  " + "\n  ".join(lines))


def _place(parts: tuple, data: Any) -> str:
    """The dotted name of a finding; the name of a union's branch, which is no key of the data, is left out."""
    names, where = [], data
    for number, part in enumerate(parts):
        following = parts[number + 1] if number + 1 < len(parts) else None
        if isinstance(where, dict) and part not in where and following in where:
            continue
        names.append(str(part))
        if isinstance(where, dict):
            where = where.get(part)
        elif isinstance(where, list) and isinstance(part, int) and part < len(where):
            where = where[part]
    return ".".join(names) or "the whole"
