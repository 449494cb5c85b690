"""The operations of kernels/, found by themselves, and what a signature tells about the shapes of its arguments.

An operation is a public function of a folder kernels/<op>/ that takes a `backend` and whole rows. A case of it is a
choice of settings and of optional tensors.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernels

WINDOW = 3  # of sliding windows and of closed ones
# parameters that are tensors without shape letters in their name: the shapes they may have
SHAPES = {"log_decay": ("BLHK", "BLH"), "table": ("HT", "1T"), "state": ("",)}


def operations() -> dict[str, Callable]:
    found = {}
    for info in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"kernels.{info.name}") if info.ispkg else None
        for name, function in vars(module).items() if module else ():
            own = inspect.isfunction(function) and function.__module__.startswith(module.__name__)
            if own and not name.startswith("_") and not name.endswith("_step"):
                if "backend" in inspect.signature(function).parameters:
                    found[name] = function
    return found


OPERATIONS = operations()


@dataclass(frozen=True)
class Case:
    operation: str
    settings: tuple[tuple[str, Any], ...] = ()
    optional: tuple[str, ...] = ()  # tensors given beside the required ones
    shapes: tuple[tuple[str, str], ...] = ()  # letters of tensors whose name has none

    @property
    def function(self) -> Callable:
        return OPERATIONS[self.operation]

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.function).parameters)

    def __getitem__(self, setting: str) -> Any:
        """A setting's value, the default where the case leaves it; None for what the operation does not have."""
        default = self.parameters[setting].default if setting in self.parameters else None
        return dict(self.settings).get(setting, default)

    def letters(self, name: str) -> str:
        chosen = dict(self.shapes).get(name)
        return letters(self.function, name)[0] if chosen is None else chosen

    @property
    def tensors(self) -> list[str]:
        return [name for name, p in self.parameters.items()
                if letters(self.function, name) and (p.default is p.empty or name in self.optional)]

    @property
    def causal(self) -> bool:
        return self["causal"] in (True, None) and self["reach"] in ("causal", None)

    @property
    def tied(self) -> bool:
        """Whether M is L: keys and queries of the same tokens."""
        return "causal" in self.parameters and self["causal"]

    @property
    def counts(self) -> dict[str, str | None]:
        """Which parameter counts the real tokens along L and along M."""
        if self.tied or not any("M" in self.letters(name) for name in self.tensors):
            return {"L": "lengths_B", "M": "lengths_B"}
        if "prefix_B" in self.parameters:
            return {"L": "lengths_B", "M": "prefix_B"}
        return {"L": "lengths_B", "M": "context_B"} if "context_B" in self.parameters else {"L": None, "M": "lengths_B"}

    @property
    def unit(self) -> int:
        """A row may be cut after a multiple of so many tokens."""
        return self["closed"] or (self["window"] if self["dissection"] == "window" else 1)

    @property
    def tuned(self) -> bool:
        """Whether a mere number stands off its default: such cases need no more than agreement with naive."""
        return any(isinstance(value, float) for _, value in self.settings)

    def with_optional(self, *names: str) -> Case:
        return Case(self.operation, self.settings, tuple(dict.fromkeys((*self.optional, *names))), self.shapes)

    def __str__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings]
        return "-".join([self.operation, *settings, *(letters for _, letters in self.shapes if letters), *self.optional])


def letters(function: Callable, name: str) -> tuple[str, ...]:
    """The shapes that a parameter may have, () where it is no tensor."""
    if name in SHAPES:
        return SHAPES[name]
    stem, _, last = name.rpartition("_")
    if stem and last.isupper():
        return (last,)
    if name.startswith("past_"):  # the same tokens as another parameter, earlier
        return tuple(other.rpartition("_")[2].replace("L", "P") for other in inspect.signature(function).parameters
                     if other.startswith(name.removeprefix("past_") + "_"))
    return ()
