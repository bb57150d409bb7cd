"""Literals and arithmetic of a Python file, evaluated without running it.

An untrusted config is never executed: it is parsed, and only numbers, strings, names assigned further up and
+ - * / // % ** are evaluated. Every result is bounded before it is computed, so `9**9**9` costs nothing.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brimful.configs.files import read_config
from brimful.errors import BadInput
from brimful.language import Plain, Quoted, say

MAX_INT_BITS = 64
MAX_TEXT_CHARS = 10_000
MAX_DEPTH = 60

Value = int | float | str | bool | None | tuple[Any, ...]


class Unreadable(Exception):
    """An expression that only Python could evaluate: a finding, and an error only for a key that matters."""


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
    name = str(path)
    text = read_config(path, what=say("configs.py_file"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in the file is not our user's problem
            return ast.parse(text)
    except SyntaxError as error:
        raise BadInput(
            say(
                "configs.line_not_python", name=Quoted(name), line=Plain(error.lineno or 1), problem=error.msg
            )
        ) from None
    except (RecursionError, MemoryError):
        raise BadInput(say("configs.file_nested_too_deeply", name=Quoted(name))) from None
    except ValueError as error:
        raise BadInput(say("configs.not_python", name=Quoted(name), error=error)) from None


def evaluate(node: ast.expr, names: Mapping[str, Value], depth: int = 0) -> Value:
    """The value of the expression; Unreadable if only running it would tell, or if it is out of bounds."""
    if depth > MAX_DEPTH:
        raise Unreadable(say("configs.nested_too_deeply"))
    if isinstance(node, ast.Constant):
        return _constant(node.value)
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise Unreadable(say("configs.not_assigned_above", name=Quoted(node.id)))
        return names[node.id]
    if isinstance(node, ast.UnaryOp):
        return _unary(node.op, evaluate(node.operand, names, depth + 1))
    if isinstance(node, ast.BinOp):
        left = evaluate(node.left, names, depth + 1)
        return combine(node.op, left, evaluate(node.right, names, depth + 1))
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(evaluate(part, names, depth + 1) for part in node.elts)
    raise Unreadable(say("configs.needs_python", expression=type(node).__name__.lower()))


def combine(op: ast.operator, left: Value, right: Value) -> Value:
    """`left op right`, refused before it is computed if the result would be huge."""
    work = _ARITHMETIC.get(type(op))
    if work is None:
        raise Unreadable(say("configs.operator_refused"))
    if isinstance(left, str) and isinstance(right, str) and work is operator.add:
        if len(left) + len(right) > MAX_TEXT_CHARS:
            raise Unreadable(say("configs.text_too_long"))
        return left + right
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise Unreadable(say("configs.arithmetic_on_text"))
    if work is operator.pow:
        _bound_power(left, right)
    try:
        return _constant(work(left, right))
    except ZeroDivisionError:
        raise Unreadable(say("configs.division_zero")) from None
    except OverflowError:
        raise Unreadable(say("configs.number_too_large")) from None


def _bound_power(base: float, exponent: float) -> None:
    if base < 0 and exponent != int(exponent):
        raise Unreadable(say("configs.root_of_negative"))
    if (
        isinstance(base, int)
        and isinstance(exponent, int)
        and base.bit_length() * abs(exponent) > 2 * MAX_INT_BITS
    ):
        raise Unreadable(say("configs.number_too_large"))


def _unary(op: ast.unaryop, value: Value) -> Value:
    if isinstance(op, ast.Not):
        return not value
    if not isinstance(value, (int, float)) or isinstance(op, ast.Invert):
        raise Unreadable(say("configs.sign_on_text"))
    return -value if isinstance(op, ast.USub) else +value


def _constant(value: object) -> Value:
    if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise Unreadable(say("configs.number_too_large"))
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable(say("configs.not_finite"))
    if value is None or isinstance(value, (int, float, str)):
        return value
    raise Unreadable(say("configs.not_a_setting", name=type(value).__name__))
