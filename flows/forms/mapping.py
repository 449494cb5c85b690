"""From a filled form to what it asks for, and from a request back to the form: dotted path -> value on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic.fields import FieldInfo

from flows.forms.fields import UNSET, At, Form, default_of, groups, join, look, specs
from flows.forms.rest import title
from tasks.specs import Spec


def written(form: Form, default: Callable[[str], Any], base: str = "") -> dict[str, Any]:
    """Path -> value of everything that a form says other than the request's own defaults, which `default` gives by path."""
    found: dict[str, Any] = {}
    for name, field, path, at in _places(type(form), base):
        value = getattr(form, name)
        if isinstance(value, Form):
            inside = written(value, _defaults(value.part_of, path, default), path)
            if value.constants and (inside or type(value) is not type(default_of(field))):
                inside = {join(path, key): each for key, each in value.constants.items()} | inside
            found |= inside
        elif value == default_of(field) and (at.explicit or at.nothing is not UNSET):
            continue
        elif at.nothing is not UNSET and value == at.nothing:
            found[path] = None
        elif at.explicit or value != default(path):
            found[path] = value
    return found


def read(form: type[Form], request: Spec, base: str = "") -> dict[str, Any]:
    """The fields of a form that say what `request` does; those that say it by default are left out."""
    found: dict[str, Any] = {}
    for name, field, path, at in _places(form, base):
        models = groups(field)
        if models:
            fitting = next((one for one in models if one.fits(request, path)), None)
            inside = read(fitting, request, path) if fitting else {}
            if inside or len(models) > 1:
                found[name] = (fitting or models[0])(**inside)
            continue
        value = look(request, path)
        if at.nothing is not UNSET and value is None:
            value = at.nothing
        elif at.nothing is False and value is not UNSET:
            value = True
        if value is not UNSET and value != default_of(field) and not (at.if_said and not _is_said(request, path)):
            found[name] = value
    return found


def paths(form: type[Form], base: str = "") -> Iterator[str]:
    """Where every field of a form stands; of tabs, all of them."""
    for _, field, path, _ in _places(form, base):
        models = groups(field)
        for model in models:
            yield from (*paths(model, path), *(join(path, key) for key in model.constants))
        if not models:
            yield path


def labels(form: Form, base: str = "", before: str = "") -> dict[str, str]:
    """Path -> what a person reads on the page: `Advanced > Training > Workers`."""
    found: dict[str, str] = {}
    for name, field, path, _ in _places(type(form), base):
        label, value = f"{before}{field.title or title(name)}", getattr(form, name)
        found[path] = label
        if isinstance(value, Form):
            found |= labels(value, path, f"{label} > ")
    found.pop("", None)
    return found


def nested(found: dict[str, Any]) -> dict[str, Any]:
    """Dotted paths as maps within maps; None for a whole group outweighs what is in it."""
    data: dict[str, Any] = {}
    for path, value in sorted(found.items(), key=lambda item: -item[0].count(".")):
        *parents, last = path.split(".")
        where = data
        for parent in parents:
            where = where.setdefault(parent, {})
        where[last] = value
    return data


def default_at(model: type[Spec], path: str) -> Any:
    """What a request takes at a path where nothing is said; UNSET where something has to be."""
    head, _, rest = path.partition(".")
    if head not in model.model_fields:
        return UNSET
    field = model.model_fields[head]
    if not rest:
        return default_of(field)
    return look(default_of(field), rest) if _has_own(field) else default_at(specs(field.annotation)[0], rest)


def filled(model: type[Spec], data: dict[str, Any]) -> dict[str, Any]:
    """`data` for `model`, with what a group that is partly said would otherwise lose of the model's own default for it."""
    for name, field in model.model_fields.items():
        if _has_own(field) and isinstance(data.get(name), dict):
            data[name] = default_of(field).model_dump(include=default_of(field).model_fields_set) | data[name]
    return data


def _has_own(field: FieldInfo) -> bool:
    """Whether the default of a group is other than that of its class."""
    return isinstance(field.default, Spec) and bool(field.default.model_fields_set)


def _defaults(part: type[Spec] | None, base: str, otherwise: Callable[[str], Any]) -> Callable[[str], Any]:
    if part is None:
        return otherwise
    return lambda path: default_at(part, path[len(base) + 1:]) if path.startswith(f"{base}.") else otherwise(path)


def _places(form: type[Form], base: str) -> Iterator[tuple[str, FieldInfo, str, At]]:
    for name, field in form.model_fields.items():
        at = next((one for one in field.metadata if isinstance(one, At)), At())
        yield name, field, join(base, name if at.path is None else at.path), at


def _is_said(request: Spec, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return name in look(request, parent).model_fields_set
