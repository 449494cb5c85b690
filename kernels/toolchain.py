"""Which combinations of GPU, Triton and operation are known to go wrong, and what to do about each.

A rule names the operations and forms it concerns, so that a fault in one kernel never switches off another. Facts are
from the trackers of the libraries concerned; each rule names its thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Rule:
    """One known-bad combination. Version spans are [first, last): `last` works again; None is no bound."""

    form: str  # "triton" (our kernels) | "fla" | "mamba_ssm"
    problem: str
    remedy: str
    source: str
    operations: tuple[str, ...] = ()  # () is every operation
    triton: tuple[Version | None, Version | None] = (None, None)
    library_below: Version | None = None  # of the form's own package; None is every version
    majors: tuple[int, ...] = ()  # compute capability majors; () is every GPU and the interpreter
    gradients_only: bool = False

    def concerns(self, operation: str, use: Use) -> bool:
        """Whether the rule forbids this use of an operation."""
        first, last = self.triton
        return (
            (not self.operations or operation in self.operations)
            and (not self.majors or use.major in self.majors)
            and (first is None or use.triton >= first)
            and (last is None or use.triton < last)
            and (self.library_below is None or use.library is None or use.library < self.library_below)
            and (use.gradients or not self.gradients_only))


@dataclass(frozen=True)
class Use:
    """The circumstances of a call."""

    major: int | None  # of the GPU's compute capability; None in the interpreter
    triton: Version
    library: Version | None = None  # of fla or mamba_ssm, where one of them is used
    gradients: bool = False  # whether a backward pass may follow


RULES = (
    Rule("triton", "reread's kernels are written for Triton 3.6 and later",
         "install triton>=3.6 (torch 2.11 brings 3.6.0, torch 2.13 brings 3.7.1)",
         "compiled and interpreted with 3.6.0, 3.7.1 and 3.9.0", triton=(None, (3, 6, 0))),
    Rule("fla", "gradients through a decay are wrong on Hopper, by up to several times their size",
         "install triton>=3.7.1, or pass backend='chunked' for training", "fla-org/flash-linear-attention#640, #983",
         operations=("delta_scan", "gated_scan"), triton=((3, 4, 0), (3, 7, 1)), majors=(9,), gradients_only=True),
    Rule("fla", "delta-rule gradients of k and beta are wrong on Hopper",
         "install flash-linear-attention>=0.6, or pass backend='chunked' for training",
         "fla-org/flash-linear-attention#984", operations=("delta_scan",), library_below=(0, 6, 0), majors=(9,),
         gradients_only=True),
    Rule("fla", "kernels of 8 warps race on Blackwell", "install flash-linear-attention>=0.6, or triton>=3.8",
         "fla-org/flash-linear-attention#1327, triton-lang/triton#10590", operations=("delta_scan", "gated_scan"),
         triton=(None, (3, 8, 0)), library_below=(0, 6, 0), majors=(10, 12), gradients_only=True),
)


def refusal(operation: str, form: str, use: Use) -> Rule | None:
    """The first rule that forbids this use of an operation's form, or None."""
    return next((rule for rule in RULES if rule.form == form and rule.concerns(operation, use)), None)


def known_bad(majors: set[int], triton: Version | None, libraries: dict[str, Version]) -> Iterator[Rule]:
    """Rules that concern a machine with these GPUs and installed packages: what `reread doctor` shows.

    Args:
        libraries: version of "fla" and "mamba_ssm", where installed; a rule about another package is left out.
    """
    if triton is None or not majors:
        return
    for rule in RULES:
        if rule.form != "triton" and rule.form not in libraries:
            continue
        uses = (Use(major, triton, libraries.get(rule.form), gradients=True) for major in majors)
        if any(rule.concerns(rule.operations[0] if rule.operations else "", use) for use in uses):
            yield rule


def table() -> list[dict[str, str]]:
    """All rules, readable."""
    return [
        {"operations": ", ".join(rule.operations) or "all", "form": rule.form, "triton": _span(rule) or "all",
         "gpus": ", ".join(f"sm_{major}x" for major in rule.majors) or "all",
         "use": "training" if rule.gradients_only else "all", "problem": rule.problem, "remedy": rule.remedy,
         "source": rule.source}
        for rule in RULES]


def _span(rule: Rule) -> str:
    first, last = rule.triton
    parts = (first and f">= {_text(first)}", last and f"< {_text(last)}",
             rule.library_below and f"{rule.form} < {_text(rule.library_below)}")
    return ", ".join(filter(None, parts))


def _text(version: Version) -> str:
    return ".".join(map(str, version))
