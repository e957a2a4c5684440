"""Small arithmetic over named numbers, as links between axes write it. Nothing is executed."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wattree.errors import UnitError, did_you_mean

#: What a formula may call.
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "log2": math.log2,
    "ceil": math.ceil,
    "floor": math.floor,
}
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
#: Longer or deeper ones are no arithmetic that anybody checks; parsers would take long over them.
_MOST_CHARACTERS, _MOST_NODES = 500, 200
#: A power above this is a slip, and its digits would fill the memory.
_MOST_EXPONENT = 64
_EXPECTED = f"numbers, names, + - * / **, brackets and {', '.join(FUNCTIONS)}"


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic.

    Attributes:
        text: As it was written.
    """

    text: str
    names: frozenset[str]
    _tree: ast.expr | None = field(default=None, repr=False, compare=False)

    def value(self, numbers: Mapping[str, float]) -> float:
        """Return the value for these numbers.

        Raises:
            UnitError: It is not finite: a division by zero, a root of a negative number.
        """
        tree = self._tree or ast.parse(self.text, mode="eval").body
        try:
            found = float(_value(tree, numbers))
        except (ZeroDivisionError, OverflowError, ValueError, TypeError) as error:
            raise UnitError(
                f"'{self.text}' has no value at {_at(self, numbers)}: {error}"
            ) from None
        if not math.isfinite(found):
            raise UnitError(f"'{self.text}' is {found} at {_at(self, numbers)}")
        return found

    def __reduce__(self) -> tuple[object, tuple[str, frozenset[str]]]:
        """Pickle the text alone."""
        return Formula, (self.text, self.names)


def formula_of(text: object, known: frozenset[str]) -> Formula:
    """Return the arithmetic that `text` writes.

    Args:
        text: As a file writes it; a number is a formula, too.

    Raises:
        UnitError: It is no arithmetic expression, or uses an unknown name.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        text = repr(text)
    if not isinstance(text, str) or not text.strip():
        raise UnitError(f"found {text!r}, expected a formula: {_EXPECTED}")
    if len(text) > _MOST_CHARACTERS:
        raise UnitError(f"found {len(text)} characters, expected at most {_MOST_CHARACTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnitError(f"found '{text}', expected a formula: {_EXPECTED}") from None
    nodes = list(ast.walk(tree))
    if len(nodes) > _MOST_NODES:
        raise UnitError(f"found {len(nodes)} terms, expected at most {_MOST_NODES}")
    names = _names(tree, text)
    for name in sorted(names - known):
        hint = did_you_mean(name, known)
        raise UnitError(
            f"unknown name '{name}' in '{text}'; {hint}known: {', '.join(sorted(known)) or 'none'}"
        )
    return Formula(text.strip(), names, tree)


def _names(tree: ast.expr, text: str) -> frozenset[str]:
    """Return the names that a formula takes, after checking each of its nodes."""
    found: set[str] = set()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        match node:
            case ast.Constant(value=value) if type(value) in (int, float):
                pass
            case ast.Name(id=name):
                found.add(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                stack += [left, right]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                stack.append(operand)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                stack += args
            case _:
                what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
                raise UnitError(f"found '{what}' in '{text}', expected {_EXPECTED}")
    return frozenset(found)


def _value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=value):
            return float(value)  # type: ignore[arg-type]
        case ast.Name(id=name):
            return float(numbers[name])
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _value(left, numbers), _value(right, numbers)
            if isinstance(op, ast.Pow) and abs(second) > _MOST_EXPONENT:
                raise ValueError(f"the exponent {second:g} is beyond {_MOST_EXPONENT}")
            return _BINARY[type(op)](first, second)
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, numbers))
        case ast.Call(func=ast.Name(id=name), args=args):
            return float(FUNCTIONS[name](*(_value(each, numbers) for each in args)))
    raise AssertionError(node)  # `formula_of` has refused it


def _at(formula: Formula, numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{n} = {numbers[n]:g}" for n in sorted(formula.names)) or "any point"
