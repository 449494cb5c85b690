"""From a request to a form that a person can fill, and back.

A form is a model whose fields stand for fields of one request class, in an order of its own. `At` says for which: the
dotted path below that of the group the field is in; without it, the field's own name. What no field stands for is
collected by `the_rest`, group by group as in the request, so that nothing of a request is out of reach.

What the pages of Prefect 3.9 render well decides how a form is written:

    X | None with default None    an empty box (the null of the schema is left out; an empty box is not sent)
    X | None with a default       a box of X in which one value, often 0, means None: At(nothing=0)
    one of several models         tabs, named after the models' titles; each has fields the others lack
    a group that is left alone    tabs `As usual` and `Change`, folded until somebody wants it
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from flows.forms.choices import Select
from tasks.specs import Spec

UNSET: Any = object()
TITLES = {"adamw": "AdamW", "cpu": "CPU", "gpus": "GPUs", "zero": "ZeRO", "dtype": "number format", "warmup": "warm-up",
          "url": "address",
          "train": "training", "tokenise": "tokenising", "cloze": "prompts", "corpus": "text"}


@dataclass(frozen=True)
class At:
    """Where a field of a form stands in the request.

    path      below the path of its group; None = the field's name, "" = the group's own place, "/x.y" = from the top
    nothing   the value that means None there
    explicit  whatever is not the form's default is said, even if it is the request's: to say it may mean another thing
    if_said   and it is read from a request only where it was said
    """

    path: str | None = None
    nothing: Any = UNSET
    explicit: bool = False
    if_said: bool = False


class Fold:
    """Metadata of a group that is shown folded."""


class Form(Spec):
    """Base of forms and of their groups. A box for words that is emptied again says nothing."""

    model_config = ConfigDict(allow_inf_nan=False)

    part_of: ClassVar[type[Spec] | None] = None   # the model whose fields these are, where the request allows several
    constants: ClassVar[dict[str, Any]] = {}      # of a tab: what choosing it says, path -> value

    @classmethod
    def fits(cls, request: Spec, path: str) -> bool:
        """Whether this group is the one for what stands in a request at `path`."""
        if cls.part_of is not None:
            return isinstance(look(request, path), cls.part_of)
        return all(look(request, join(path, key)) == each for key, each in cls.constants.items())

    @model_validator(mode="before")
    @classmethod
    def _emptied_boxes(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if not (
            isinstance(value, str) and not value.strip() and name in cls.model_fields and _is_box(cls.model_fields[name]))}

    @model_serializer(mode="wrap")
    def _what_was_filled(self, write: Any) -> dict[str, Any]:
        """What differs from the form as it opens; of a tab that was chosen everything, since its names tell which it is."""
        found = write(self)
        for name, field in type(self).model_fields.items():
            value, default = getattr(self, name), default_of(field)
            if len(groups(field)) > 1 and type(value) is not type(default):
                found[name] = {one: each for one in type(value).model_fields if (each := getattr(value, one)) is not None}
            elif value is None or value == default:
                found.pop(name, None)              # whoever asks for set fields only has left it out
        return found

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for position, (name, facts) in enumerate(properties.items()):
            _render(facts, any(isinstance(one, Fold) for one in cls.model_fields[name].metadata))
            facts["position"] = position           # a database may sort the names
        return schema


def _is_box(field: FieldInfo) -> bool:
    """Whether a field is for words of one's own, and may be left out."""
    kinds = (field.annotation, *get_args(field.annotation))
    return str in kinds and not field.is_required() and not any(isinstance(one, Select) for one in field.metadata)


def _render(facts: dict[str, Any], folded: bool) -> None:
    """Change the schema of one field to what the page shows well."""
    if "oneOf" in facts:
        facts["anyOf"] = facts.pop("oneOf")
    kinds = [kind for kind in facts.get("anyOf", ()) if kind.get("type") != "null"]
    if len(kinds) == 1:
        facts.pop("anyOf")
        facts.update(kinds[0])
    if facts.get("default", UNSET) is None:
        del facts["default"]
    if folded:              # the tabs are for the page; `$ref` beside them is what the server checks, field by field
        facts["anyOf"] = [{"title": "As usual", "type": "object"}, {"title": "Change", "$ref": facts["$ref"]}]
        facts["default"] = {}


def tabs(*models: type[Form]) -> Any:
    """The type of a field that is one of several models, told apart by the names of their fields; the first by default."""
    def which(value: Any) -> str:
        if isinstance(value, Form):
            return type(value).__name__
        given = set(value) if isinstance(value, dict) else set()
        return next((one.__name__ for one in models if given <= set(one.model_fields)), max(
            models, key=lambda one: len(given & set(one.model_fields))).__name__)

    return Annotated[Union[tuple(Annotated[one, Tag(one.__name__)] for one in models)], Discriminator(which)]      # noqa: UP007


# ------------------------------------------------------------------------------------------------- form <-> request
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


def join(base: str, path: str) -> str:
    return path[1:] if path.startswith("/") else ".".join(part for part in (base, path) if part)


def look(value: Any, path: str) -> Any:
    """What stands in a model at a path; UNSET where there is no such place."""
    for part in path.split(".") if path else ():
        value = getattr(value, part, UNSET)
    return value


def _is_said(request: Spec, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return name in look(request, parent).model_fields_set


def default_of(field: FieldInfo) -> Any:
    return UNSET if field.is_required() else field.get_default(call_default_factory=True)


def groups(field: FieldInfo) -> tuple[type[Form], ...]:
    """The group that a field is, or those that it can be."""
    return tuple(one for one in specs(field.annotation) if issubclass(one, Form))


def specs(annotation: Any) -> tuple[type[Spec], ...]:
    """The models that an annotation allows."""
    if get_origin(annotation) is Annotated:
        return specs(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(one for each in get_args(annotation) for one in specs(each))
    return (annotation,) if isinstance(annotation, type) and issubclass(annotation, Spec) else ()


# ------------------------------------------------------------------------------------------------------- the rest
def the_rest(name: str, model: type[Spec], taken: Iterable[str], base: str = "", alone: bool = False,
             usual: Any = UNSET, **own: Any) -> type[Form]:
    """A form of all fields of `model`, which stands at `base` of a request, that are not among the paths `taken`; groups
    inside are folded. What can be only one value, or one of several models, is left out.

    name   of the class, unique among forms
    alone  `model` is one of several that the request allows there
    usual  what a request has there where nothing is said
    own    further fields, first in the form: name -> (type, default)
    """
    taken, fields = set(taken), dict(own)
    for number, (field, info) in enumerate(model.model_fields.items()):
        path, models = join(base, field), specs(info.annotation)
        if path in taken or len(models) > 1 or _is_tag(info.annotation):
            continue
        if models:
            inner = the_rest(name + field.title().replace("_", ""), models[0], taken, path, usual=default_of(info))
            if inner.model_fields:
                fields[field] = group(inner, title(field), about(info) or first_line(models[0]))
        else:
            default = getattr(usual, field) if isinstance(usual, Spec) else default_of(info)
            fields[field] = _box(field, info, default, says_group=usual is None and number == 0)
    made = create_model(name, __base__=Form, __module__=__name__, __doc__=first_line(model), **fields)
    made.part_of = model if alone else None
    return made


def group(model: type[Form], name: str, description: str, path: str | None = None) -> tuple[Any, Any]:
    """A folded group, as a field of `create_model`."""
    return Annotated[model, At(path), Fold()], Field(model(), title=name, description=description)


def _box(name: str, info: FieldInfo, default: Any, says_group: bool) -> tuple[Any, Any]:
    """One field of a request, with what the page needs. says_group: to fill it is to ask for its group, which is None."""
    kind, metadata, words = info.annotation, list(info.metadata), about(info)
    if default is UNSET:                                              # needed only where its group is used at all
        kind, default, metadata = (kind, (), [At(nothing=())]) if get_origin(kind) is tuple else (kind | None, None, [])
    elif says_group:
        kind, default, metadata = kind | None, None, [*metadata, At(explicit=True)]
    elif default is not None and type(None) in get_args(kind):        # for example 300, None = all
        kind, metadata = next(one for one in get_args(kind) if one is not type(None)), [At(nothing=0), annotated_types.Ge(0)]
        words = words.replace("empty =", "0 =")
    return Annotated[(kind, *metadata)] if metadata else kind, Field(default, title=title(name), description=words)


def _is_tag(annotation: Any) -> bool:
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def title(name: str) -> str:
    """`zero_stage` -> `ZeRO stage`"""
    words = " ".join(TITLES.get(word, word) for word in name.split("_"))
    return words[:1].upper() + words[1:]


def about(info: FieldInfo) -> str:
    return plain((info.description or "").replace("None =", "empty ="))


def first_line(model: type[Spec]) -> str:
    """What a group is, without what the stage makes of it."""
    return plain((model.__doc__ or "").strip().split("\n")[0].partition(" Produces ")[0])


def plain(text: str) -> str:
    """Words for a page that does not know Markdown; what would be taken for a tag elsewhere stays in backticks."""
    return re.sub(r"`([^`<]*)`", r"'\1'", text)
