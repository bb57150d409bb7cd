"""Literals and arithmetic of a Python file, worked out without running it.

A stranger's config is never executed: it is parsed, and only numbers, strings, names assigned further up
and + - * / // % ** are worked out. Every result is bounded before it is computed, so `9**9**9` costs nothing.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brimful.configs.files import decode, read_config
from brimful.errors import BadInput

MAX_INT_BITS = 64
MAX_TEXT_CHARS = 10_000
MAX_DEPTH = 60

Value = int | float | str | bool | None | tuple[Any, ...]


class Unreadable(Exception):
    """An expression only Python could work out: a finding, and an error only for a key that matters."""


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def parse_file(path: Path) -> ast.Module:
    """The syntax tree of a Python file, or one clear refusal."""
    return parse_text(read_config(path, what="a .py file"), name=str(path))


def parse_text(raw: bytes, *, name: str) -> ast.Module:
    text = decode(raw, name=name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a stranger's string is not our user's problem
            return ast.parse(text)
    except SyntaxError as error:
        raise BadInput(
            f"{name!r} line {error.lineno or 1} is not Python: {error.msg}", hint="fix that line"
        ) from None
    except (RecursionError, MemoryError):
        raise BadInput(
            f"{name!r} is nested too deeply to be a config", hint="a config is a list of assignments"
        ) from None
    except ValueError as error:
        raise BadInput(f"{name!r} is not Python: {error}", hint="a config is a list of assignments") from None


def evaluate(node: ast.expr, names: Mapping[str, Value], depth: int = 0) -> Value:
    """What the expression is worth; Unreadable where only running it would tell, or out of bounds."""
    if depth > MAX_DEPTH:
        raise Unreadable("nested too deeply")
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise Unreadable(f"{node.id!r} is not assigned further up")
        return names[node.id]
    if isinstance(node, ast.UnaryOp):
        return _unary(node.op, evaluate(node.operand, names, depth + 1))
    if isinstance(node, ast.BinOp):
        left = evaluate(node.left, names, depth + 1)
        return combine(node.op, left, evaluate(node.right, names, depth + 1))
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(evaluate(part, names, depth + 1) for part in node.elts)
    raise Unreadable(f"{type(node).__name__.lower()} needs Python to run it")


def combine(op: ast.operator, left: Value, right: Value) -> Value:
    """`left op right`, refused before it is computed where the result would be huge."""
    work = _ARITHMETIC.get(type(op))
    if work is None:
        raise Unreadable("only + - * / // % ** are worked out")
    if isinstance(left, str) and isinstance(right, str) and work is operator.add:
        if len(left) + len(right) > MAX_TEXT_CHARS:
            raise Unreadable("the text grows too long")
        return left + right
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise Unreadable("arithmetic is worked out on numbers only")
    if work is operator.pow:
        _bound_power(left, right)
    try:
        return _constant(work(left, right))
    except ZeroDivisionError:
        raise Unreadable("division by zero") from None
    except OverflowError:
        raise Unreadable("the number is too large") from None


def _bound_power(base: float, exponent: float) -> None:
    if base < 0 and exponent != int(exponent):
        raise Unreadable("a root of a negative number")
    if (
        isinstance(base, int)
        and isinstance(exponent, int)
        and base.bit_length() * abs(exponent) > 2 * MAX_INT_BITS
    ):
        raise Unreadable("the number is too large")


def _unary(op: ast.unaryop, value: Value) -> Value:
    if isinstance(op, ast.Not):
        return not value
    if not isinstance(value, (int, float)) or isinstance(op, ast.Invert):
        raise Unreadable("only + and - are worked out, on numbers")
    return -value if isinstance(op, ast.USub) else +value


def _constant(value: object) -> Value:
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise Unreadable("the number is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable("not a finite number")
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise Unreadable(f"{type(value).__name__} is not a setting")
