"""The built-in tools: a clock and a calculator. Both are read-only, and need no network."""

import ast
import math
import operator
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from callgate.tools.executor import Safety
from callgate.tools.kinds.python.authoring import ToolError, tool

Number: TypeAlias = int | float

MAX_EXPRESSION = 500
MAX_DEPTH = 50
MAX_BITS = 4096
"""The limit of an integer, about 1200 digits."""
MAX_FACTORIAL = 500
"""500! has 3768 bits."""


@tool(safety=Safety.READ_ONLY)
async def clock(
    timezone: Annotated[str, Field(description="An IANA time zone, for example Europe/Berlin or UTC.")] = "UTC",
) -> dict[str, str]:
    """Tell the current date, time and weekday in a time zone."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ToolError(f"There is no time zone {timezone!r}. Use an IANA name such as Europe/Berlin.") from error
    now = datetime.now(zone).replace(microsecond=0)
    return {"time": now.isoformat(), "weekday": f"{now:%A}", "timezone": timezone}


@tool(safety=Safety.READ_ONLY)
async def calculator(
    expression: Annotated[str, Field(description="For example (3 + 4) * 2 ** 0.5, or round(sqrt(10), 2).")],
) -> str:
    """Work out an arithmetic expression: + - * / // % **, parentheses, pi, e, and functions such as sqrt, sin, log, round, min, max."""
    return str(calculate(expression))


def calculate(expression: str) -> Number:
    """Return the value of an expression. It is parsed as Python, and not executed."""
    if len(expression) > MAX_EXPRESSION:
        raise ToolError(f"The expression is longer than {MAX_EXPRESSION} characters.")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(f"Not an arithmetic expression: {expression!r}.") from error
    try:
        return _value(tree.body, expression.strip(), 0)
    except ZeroDivisionError as error:
        raise ToolError("Division by zero.") from error
    except OverflowError as error:
        raise ToolError("The result is too large.") from error
    except (ValueError, TypeError) as error:
        raise ToolError(f"Cannot be worked out: {error}.") from error


def _value(node: ast.expr, text: str, depth: int) -> Number:
    if depth > MAX_DEPTH:
        raise ToolError(f"The expression is nested more than {MAX_DEPTH} deep.")
    match node:
        case ast.Constant(value=bool()):
            raise ToolError("True and False are not numbers.")
        case ast.Constant(value=int() | float() as number):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, text, depth + 1)
            if isinstance(sign, ast.USub):
                return -value
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left, text, depth + 1), _value(right, text, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(arg, text, depth + 1) for arg in args)))
        case _:
            part = ast.get_source_segment(text, node)
            raise ToolError(f"Not allowed in an expression: {part}. Known functions: {', '.join(_FUNCTIONS)}.")


def _bounded(number: Number) -> Number:
    if isinstance(number, complex):
        raise ToolError("The result is not a real number.")
    if isinstance(number, int):
        if number.bit_length() > MAX_BITS:
            raise ToolError("The result is too large.")
    elif not math.isfinite(number):
        raise ToolError("The result is not a finite number.")
    return number


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and (base.bit_length() - 1) * exponent > MAX_BITS:
        raise ToolError("The power is too large.")
    result: Number = base**exponent
    return result


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or number > MAX_FACTORIAL:
        raise ToolError(f"factorial takes a whole number up to {MAX_FACTORIAL}.")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 300:
        raise ToolError("round takes a whole number of digits.")
    if digits:
        return round(number, digits)
    return round(number)


_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "sqrt": math.sqrt, "abs": abs, "round": _round, "min": min, "max": max, "floor": math.floor, "ceil": math.ceil,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan,
    "atan2": math.atan2, "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10, "pow": _power,
    "degrees": math.degrees, "radians": math.radians, "hypot": math.hypot, "factorial": _factorial,
}  # fmt: skip

_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
