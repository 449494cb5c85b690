"""`--set a.b.c=value`: change one field of a typed spec, and say clearly what is wrong when that cannot be done.

A value is parsed as YAML. A dotted path walks through models by field, through maps by key and through lists by index.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args, get_origin

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
    """Models as what was set in them explicitly (defaults stay unset: some mean "whatever suits the task"), lists for
    tuples, numbers for what YAML 1.1 leaves as text (1e-2)."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {name: plain(getattr(value, name)) for name, field in fields.items()
                if name in value.model_fields_set or _is_tag(field.annotation)}
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of maps within maps by dotted name; a list is a leaf, and so is an empty map."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found


def _is_tag(annotation: Any) -> bool:
    """True for `Literal["recall"]`: it tells the branches of a union apart and has to be there."""
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def apply(spec: Model, settings: Iterable[str]) -> Model:
    """A copy of `spec` with the settings applied in order, validated as a whole.

    :raises SpecError: a path that names no field (with close matches), or a value that the field refuses
    """
    changes = [parse(setting) for setting in settings]
    data = plain(spec)
    for keys, value in changes:
        assign(spec, data, keys, value)
    return validate(type(spec), data, "--set") if changes else spec


def assign(spec: BaseModel, data: dict, keys: list[str], value: Any) -> None:
    """Change `data`, the plain form of `spec`, at `keys`."""
    name, where, model = ".".join(keys), data, spec
    for depth, key in enumerate(keys):
        path, last = ".".join(keys[:depth]), depth == len(keys) - 1
        if _is_free(model) and key not in model:          # overrides are dotted names themselves
            where[".".join(keys[depth:])] = value
            return
        step = _step(name, path, key, model, new=last and isinstance(model, dict) and isinstance(value, dict))
        if last:
            where[step] = value
            return
        inside = getattr(model, step) if isinstance(model, BaseModel) else model[step]
        if isinstance(where, dict) and step not in where:             # a default, now about to be changed inside
            where[step] = plain(inside)
        where, model = where[step], inside


def _step(name: str, path: str, key: str, model: Any, new: bool) -> str | int:
    """The key or index that `key` means in `model`.

    :raises SpecError: there is none
    """
    if isinstance(model, (list, tuple)):
        if key.isdigit() and int(key) < len(model):
            return int(key)
        raise SpecError(f"--set {name}: {path} is "
                        + (f"a list of {len(model)}; an item is named by its number from 0 to {len(model) - 1}, not {key!r}"
                           if model else "an empty list; give the whole list instead"))
    if isinstance(model, (BaseModel, dict)):
        names = type(model).model_fields if isinstance(model, BaseModel) else model
        if key in names or new:
            return key
        raise unknown(name, key, path, names)
    raise SpecError(f"--set {name}: {path} is {model!r}, it has no field {key!r}"
                    + ("; give the whole value instead" if model is None else ""))


def _is_free(model: Any) -> bool:
    """A map whose names are anybody's (model_overrides), unlike a map of models (architectures), to which an entry can
    only be added whole."""
    return isinstance(model, dict) and not any(isinstance(item, BaseModel) for item in model.values())


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
        message = message.replace("valid tuple", "list").replace("Tuple should", "List should").replace(" after validation", "")
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
