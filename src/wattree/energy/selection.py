"""Selects the runs to fit on, as users write it: `nodes<=8`, `nodes<=8 and model!=vgg-16`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from wattree.energy.observed import ranks_of
from wattree.errors import RunError, UnknownNameError
from wattree.trace.run import Run

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_FIELDS: Mapping[str, Callable[[Run], float | str]] = {
    "nodes": lambda run: run.nodes,
    "ranks": ranks_of,
    "samples": lambda run: run.work.samples or 0.0,
    "model": lambda run: run.model,
    "name": lambda run: run.name,
}
_QUOTED = re.compile(r"""(["'])(.*)\1""")
_TERM = re.compile(r"\s*(\w+)\s*(<=|>=|==|!=|<|>)\s*([^\s<>=!]+)\s*")


def selector(expression: str) -> Callable[[Run], bool]:
    """Return a function that tests whether a run is selected.

    Runs that train nothing have no model: conditions on it hold for them.

    Args:
        expression: Comparisons of `nodes`, `ranks`, `samples`, `model` or `name`, joined by `and`.

    Raises:
        RunError: It is no such expression.
    """
    terms = [_term(part, expression) for part in re.split(r"\band\b|,", expression)]
    return lambda run: all(term(run) for term in terms)


def _term(part: str, expression: str) -> Callable[[Run], bool]:
    found = _TERM.fullmatch(part)
    if found is None:
        raise RunError(
            "fit-on",
            [f"found '{expression}', expected such as 'nodes<=8 and model!=a'"],
        )
    name, sign, text = found.groups()
    text = _QUOTED.sub(r"\2", text)
    if name not in _FIELDS:
        raise UnknownNameError(kind="field of a run", name=name, known=_FIELDS, where="fit-on")
    compare, value_of = _OPERATORS[sign], _FIELDS[name]
    if name in {"model", "name"}:
        if sign not in {"==", "!="}:
            raise RunError("fit-on", [f"{name}: found '{sign}', expected '==' or '!='"])
        return lambda run: not value_of(run) or compare(value_of(run), text)
    try:
        number = float(text)
    except ValueError:
        raise RunError("fit-on", [f"{name}: found '{text}', expected a number"]) from None
    if not math.isfinite(number):
        raise RunError("fit-on", [f"{name}: found '{text}', expected a finite number"])
    return lambda run: compare(value_of(run), number)
