"""Priors of the fitted constants: their distribution before rows are considered.

The numbers, with their sources, are in `priors.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattree.files import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Prior of a constant.

    Attributes:
        value: Start value.
        spread: Standard deviation of its logarithm.
        source: Where the start value comes from.
        parent: Constant that `value` is a multiple of: that of the level above. None: it is
            absolute.
    """

    value: float
    spread: float
    source: str
    parent: str | None = None


def _priors(group: str) -> Mapping[str, Prior]:
    found = read_yaml(Path(__file__).with_suffix(".yaml"))[group]
    names = ("value", "spread", "source", "parent")
    return {name: Prior(**dict(zip(names, entry, strict=False))) for name, entry in found.items()}


#: Constants that `fit` remakes, with their priors.
FITTED: Mapping[str, Prior] = _priors("language")
#: Those that rows of vision and recommendation training remake.
FITTED_NETWORKS: Mapping[str, Prior] = _priors("network")
