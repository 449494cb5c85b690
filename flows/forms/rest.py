"""The part of a form that nobody wrote: every field of a request that no other field stands for, group by group."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import Field, create_model
from pydantic.fields import FieldInfo

from flows.forms.fields import UNSET, At, Fold, Form, default_of, join, specs
from tasks.specs import Spec

TITLES = {"adamw": "AdamW", "cpu": "CPU", "gpus": "GPUs", "zero": "ZeRO", "dtype": "number format", "warmup": "warm-up",
          "url": "address",
          "train": "training", "tokenise": "tokenising", "cloze": "prompts", "corpus": "text"}


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
