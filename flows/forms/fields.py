"""What a form is made of: a model whose fields stand for fields of one request class, in an order of its own.

`At` says for which: the dotted path below that of the group the field is in; without it, the field's own name. What no
field stands for is collected by `the_rest` (flows/forms/rest.py), so that nothing of a request is out of reach.

What the pages of Prefect 3.9 render well decides how a form is written:

    X | None with default None    an empty box (the null of the schema is left out; an empty box is not sent)
    X | None with a default       a box of X in which one value, often 0, means None: At(nothing=0)
    one of several models         tabs, named after the models' titles; each has fields the others lack
    a group that is left alone    tabs `As usual` and `Change`, folded until somebody wants it
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import ConfigDict, Discriminator, GetJsonSchemaHandler, Tag, model_serializer, model_validator
from pydantic.fields import FieldInfo

from flows.forms.choices import Select
from tasks.specs import Spec

UNSET: Any = object()


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


# ---------------------------------------------------------------------------------------------------------- looking up
def join(base: str, path: str) -> str:
    return path[1:] if path.startswith("/") else ".".join(part for part in (base, path) if part)


def look(value: Any, path: str) -> Any:
    """What stands in a model at a path; UNSET where there is no such place."""
    for part in path.split(".") if path else ():
        value = getattr(value, part, UNSET)
    return value


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
