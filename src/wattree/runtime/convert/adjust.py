"""Attributes of modules around converted layers that count features or heads of a shard."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from wattree.errors import StrategyError
from wattree.runtime.convert.plan import ConversionPlan


def adjusted_by(
    plan: ConversionPlan, module: nn.Module, names: Iterable[str], size: int
) -> dict[tuple[str, str], int]:
    """Return what a plan changes around converted layers: module and attribute → new value.

    Args:
        module: The whole model, still dense.
        size: Ranks; nothing changes on one.

    Raises:
        StrategyError: A module has no such attribute.
    """
    found, misfits = dict[tuple[str, str], int](), {}
    for each in plan.adjustments:
        for name in names:
            place, attribute = name.rpartition(".")[0], each.attribute
            if not fnmatchcase(name, each.layers):
                continue
            parent = module.get_submodule(place)
            before = getattr(parent, attribute, None)
            if not isinstance(before, int):
                kind = type(parent).__name__
                misfits[place] = f"is a {kind} without '{attribute}', which {plan.name} changes"
            elif size > 1:
                found[place, attribute] = before // size if each.value is None else each.value
    if misfits:
        raise StrategyError(misfits)
    return found
