"""The cases in which the contract's laws try each operation, read off its signature and docstring.

A switch takes both values, a word every value quoted in its paragraph of the docstring, a number another number. What
naive refuses is no case; that every setting appears in one is tested in test_operations.py.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from kernels.errors import LayoutError, UnsupportedUse
from tests.contracts.operation_inputs import draw
from tests.contracts.operations import OPERATIONS, SHAPES, WINDOW, Case, letters

FIXED = ("backend", "chunk", "return_state")


def values(function: Callable, parameter: inspect.Parameter) -> list[Any]:
    """Settings beside the default, or instead of it where there is none."""
    name, kind = parameter.name, str(parameter.annotation)
    if name in FIXED or letters(function, name):
        return []
    if name == "window":
        return [WINDOW, 1, 17]
    if kind in ("bool", "<class 'bool'>"):
        return [not parameter.default]
    if "str" in kind:
        paragraph = re.search(rf"^ *{name}: (.*?)(?=^ *[\w*., ]+: |\Z)", inspect.getdoc(function), re.M | re.S)
        return [word for word in re.findall(r'"(\w+)"', paragraph[1] if paragraph else "") if word != parameter.default]
    return [0.4] if "float" in kind else [WINDOW]


def accepted(case: Case) -> bool:
    try:
        with torch.no_grad():
            case.function(**draw(case, 6), **dict(case.settings), backend="naive")
    except (LayoutError, UnsupportedUse):
        return False
    except Exception:  # noqa: BLE001 - the laws will show it
        return True
    return True


def optional_groups(function: Callable) -> list[tuple[str, ...]]:
    """Optional tensors; the parts of a past come together."""
    names = [name for name, p in inspect.signature(function).parameters.items()
             if p.default is None and letters(function, name)]
    past = tuple(name for name in names if name.startswith("past_"))
    return [(name,) for name in names if name not in past] + ([past] if past else [])


@cache
def settings_of(operation: str) -> list[dict[str, Any]]:
    """The defaults, each other value alone, and each two that are not mere numbers."""
    function = OPERATIONS[operation]
    choices = {name: values(function, p) for name, p in inspect.signature(function).parameters.items()}
    base = {name: options.pop(0) for name, options in choices.items() if options and not _default(function, name)}
    single = [(name, value) for name, options in choices.items() for value in options]
    pairs = [pair for pair in itertools.combinations(single, 2) if pair[0][0] != pair[1][0]
             and not any(isinstance(value, float) or (name == "window" and value == 1) for name, value in pair)]
    return [base, *({**base, name: value} for name, value in single), *({**base, **dict(pair)} for pair in pairs)]


def _default(function: Callable, name: str) -> bool:
    return inspect.signature(function).parameters[name].default is not inspect.Parameter.empty


def cases_of(operation: str) -> Iterator[Case]:
    """Every choice of settings with all optional tensors that go with it; the defaults also with none, and with each."""
    function = OPERATIONS[operation]
    required = [name for name, p in inspect.signature(function).parameters.items()
                if name in SHAPES and p.default is p.empty]
    for index, settings in enumerate(settings_of(operation)):
        for shapes in itertools.product(*([(name, shape) for shape in SHAPES[name]] for name in required)):
            plain = Case(operation, tuple(settings.items()), (), shapes)
            if not accepted(plain):
                continue
            full = plain
            for group in optional_groups(function):
                if accepted(full.with_optional(*group)):
                    full = full.with_optional(*group)
            if index == 0:
                yield plain
                for group in optional_groups(function):
                    for shape in letters(function, group[0]) if len(group) == 1 else (None,):
                        extra = () if shape is None or group[0] not in SHAPES else ((group[0], shape),)
                        case = Case(operation, plain.settings, group, (*shapes, *extra))
                        if accepted(case) and case != full:
                            yield case
            if full != plain or index:
                yield full


CASES = [case for operation in OPERATIONS for case in cases_of(operation)]
