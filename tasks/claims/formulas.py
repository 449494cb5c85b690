"""Arithmetic over claim ids, read as a syntax tree and never executed as code.

A formula may hold claim ids, numbers, + - * / **, unary minus, comparisons (chained ones too), `and`, and the functions
mean, min, max and abs. Anything else is refused by name.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from storage.errors import SpecError

ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
              ast.Pow: operator.pow}
COMPARISONS = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
               ast.Eq: operator.eq, ast.NotEq: operator.ne}
LARGEST_POWER = 64


def _mean(*values: float) -> float:
    return sum(values) / len(values)


FUNCTIONS: dict[str, Callable[..., float]] = {"mean": _mean, "min": min, "max": max, "abs": abs}


@lru_cache(maxsize=1024)
def parse(formula: str) -> ast.expr:
    """The syntax tree of a formula.

    :raises SpecError: it is no expression, or holds something that formulas may not hold
    """
    try:
        tree = ast.parse(formula.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SpecError(f"the formula {formula!r} cannot be read: {error}") from error
    _check(tree, formula)
    return tree


def names(formula: str) -> tuple[str, ...]:
    """The claim ids that a formula uses, each once, in their order."""
    called = {id(node.func) for node in ast.walk(parse(formula)) if isinstance(node, ast.Call)}
    found = [(node.lineno, node.col_offset, node.id) for node in ast.walk(parse(formula))
             if isinstance(node, ast.Name) and id(node) not in called]
    return tuple(dict.fromkeys(name for _, _, name in sorted(found)))


def value(formula: str, values: Mapping[str, float]) -> float:
    """What a formula gives; a comparison gives 1.0 or 0.0.

    :raises SpecError: an id that `values` lacks, a division by zero, or a power out of reach
    """
    try:
        return float(_value(parse(formula), values))
    except ZeroDivisionError as error:
        raise SpecError(f"the formula {formula!r} divides by zero") from error
    except (OverflowError, TypeError) as error:          # TypeError: a fractional power of a negative number is complex
        raise SpecError(f"the formula {formula!r} has no value: {error}") from error
    except KeyError as error:
        raise SpecError(f"the formula {formula!r} names {error.args[0]!r}, which is no claim") from error


def _check(node: ast.expr, formula: str) -> None:
    """Refuse all that is not arithmetic."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float()) | ast.Name():
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return _all((left, right), formula)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _check(operand, formula)
        case ast.BoolOp(op=ast.And(), values=parts):
            return _all(parts, formula)
        case ast.Compare(left=left, ops=ops, comparators=parts) if all(type(op) in COMPARISONS for op in ops):
            return _all((left, *parts), formula)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in FUNCTIONS and parts:
            return _all(parts, formula)
    raise SpecError(f"the formula {formula!r} holds {ast.unparse(node)!r}; it may hold claim ids, numbers, + - * / **, "
                    f"comparisons, `and` and {', '.join(FUNCTIONS)}")


def _all(nodes, formula: str) -> None:
    for node in nodes:
        _check(node, formula)


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(type(op), _value(left, values), _value(right, values))
        case ast.BoolOp(values=parts):
            return float(all(_value(part, values) for part in parts))
        case ast.Compare(left=left, ops=ops, comparators=parts):
            ends = [_value(each, values) for each in (left, *parts)]
            return float(all(COMPARISONS[type(op)](a, b) for op, a, b in zip(ops, ends, ends[1:])))
        case ast.Call(func=ast.Name(id=name), args=parts):
            return FUNCTIONS[name](*(_value(part, values) for part in parts))
    raise SpecError(f"{ast.unparse(node)!r} has no value")


def _arithmetic(kind: type[ast.operator], left: float, right: float) -> float:
    if kind is ast.Pow and abs(right) > LARGEST_POWER:
        raise OverflowError(f"the power {right:g} is beyond {LARGEST_POWER}")
    return ARITHMETIC[kind](left, right)
