"""Attributes of modules around converted layers that count features or heads of a shard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from wattree.errors import StrategyError
from wattree.runtime.convert.plan import ConversionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """An attribute that a conversion changes.

    Attributes:
        module: Name of the module that has it.
        original: Its value in the dense model.
        value: What it becomes; None: the original divided by the ranks.
    """

    module: str
    attribute: str
    original: int
    value: int | None = None

    def on(self, size: int) -> int:
        """Return its value on a number of ranks."""
        if size == 1:
            return self.original
        return self.original // size if self.value is None else self.value


def adjusted_by(
    plan: ConversionPlan, module: nn.Module, names: Iterable[str]
) -> tuple[Adjusted, ...]:
    """Return the attributes that a plan changes around converted layers.

    Args:
        module: The whole model, still dense.

    Raises:
        StrategyError: A module has no such attribute.
    """
    found, misfits = {}, {}
    for each in plan.adjustments:
        for name in names:
            place, attribute = name.rpartition(".")[0], each.attribute
            if not fnmatchcase(name, each.layers):
                continue
            parent = module.get_submodule(place)
            if not isinstance(getattr(parent, attribute, None), int):
                kind = type(parent).__name__
                misfits[place] = f"is a {kind} without '{attribute}', which {plan.name} changes"
                continue
            found[place, attribute] = Adjusted(
                module=place,
                attribute=attribute,
                original=int(getattr(parent, attribute)),
                value=each.value,
            )
    if misfits:
        raise StrategyError(misfits)
    return tuple(found.values())


def set_adjusted(module: nn.Module, adjusted: Iterable[Adjusted], size: int) -> None:
    """Set the attributes to their values on a number of ranks."""
    for each in adjusted:
        setattr(module.get_submodule(each.module), each.attribute, each.on(size))
