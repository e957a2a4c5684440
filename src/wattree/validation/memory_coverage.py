"""Coverage of intervals of peak memory on left-out rows, and the required spreads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.accounts.memory_spread import OVERHEAD_SPREAD, software_spread
from wattree.arrays import Floats
from wattree.cost import AUTO_SOFTWARE, Calibration
from wattree.validation.coverage import fitting_spread
from wattree.validation.memory_fit import MemoryRow, fit_memory, memory_bytes

_FOLDS = 5
#: Publishers of all families count as so many of each, so that few of its own decide little.
PUBLISHERS_OF_ALL = 3
_MEMORY = "memory.peak_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutMemory:
    """One row of memory as a fit predicts it that never saw it.

    Attributes:
        kind: `allocated`, `reserved` or `process`.
        software: Family; `auto` where the job does not name it, and empty where other rows of its
            source were in the fit.
        hold_out: `source`, `random` or `published`.
        error: Logarithm of predicted over measured peak.
        overhead: Share of the peak that is no tensor.
        publisher: Who measured it. Each counts once.
    """

    kind: str
    software: str
    hold_out: str
    error: float
    overhead: float
    publisher: str = ""

    def deviation(self, spreads: Mapping[str, float]) -> float:
        """Return the standard deviation of the logarithm of the prediction."""
        return math.hypot(
            spreads.get(f"{_MEMORY}.{self.kind}", 0.0),
            software_spread(spreads, self.software) if self.software else 0.0,
            self.overhead * OVERHEAD_SPREAD,
        )


def left_out_memory(
    rows: Sequence[tuple[str, MemoryRow]], start: Calibration
) -> list[LeftOutMemory]:
    """Return the errors of rows by fits without their source, and without a fifth of the rows.

    Args:
        rows: Software and row.
        start: Constants that stay as they are where no row is left.
    """
    shuffled = np.random.default_rng(0).permutation(len(rows)) % _FOLDS
    sources = [row.row.source_id for _, row in rows]
    found = []
    for hold_out, keys in (("source", sources), ("random", [str(fold) for fold in shuffled])):
        for key in sorted(set(keys)):
            others = [row for (_, row), own in zip(rows, keys, strict=True) if own != key]
            without = fit_memory(others, start) if others else start
            for (software, row), own in zip(rows, keys, strict=True):
                if own == key:
                    predicted = memory_bytes(row, without)
                    found.append(
                        LeftOutMemory(
                            kind=row.kind,
                            software=software if hold_out == "source" else "",
                            hold_out=hold_out,
                            error=math.log(predicted / row.measured_bytes),
                            overhead=max(1.0 - row.tensor_bytes / predicted, 0.0),
                            publisher=row.row.source_id,
                        )
                    )
    return found


def fitted_memory_spreads(errors: Sequence[LeftOutMemory]) -> dict[str, float]:
    """Return class of evidence → spread with which 80 % of the rows of the class are inside.

    A family's publishers count beside those of all families, whose spread `generic` has.
    """
    spreads: dict[str, float] = {}
    for kind in sorted({each.kind for each in errors if not each.software}):
        own = [each for each in errors if not each.software and each.kind == kind]
        spreads[f"{_MEMORY}.{kind}"] = _fitting_spread(own, np.ones(len(own)), {})
    # What is reserved holds what is allocated, and rows of either are few.
    inner, outer = (f"{_MEMORY}.{kind}" for kind in ("allocated", "reserved"))
    if outer in spreads:
        spreads[outer] = max(spreads[outer], spreads.get(inner, 0.0))
    named = [each for each in errors if each.software not in ("", AUTO_SOFTWARE)]
    unnamed = [each for each in errors if each.software == AUTO_SOFTWARE]
    found = {"generic": (named, _weights(named)), "unnamed": (unnamed, _weights(unnamed))}
    share = PUBLISHERS_OF_ALL / max(len({each.publisher for each in named}), 1)
    for software in {each.software for each in named} - {"generic"}:
        own = [each for each in named if each.software == software]
        weights = np.concatenate([_weights(own), share * _weights(named)])
        found[software] = ([*own, *named], weights)
    return spreads | {
        f"{_MEMORY}.software.{software}": _fitting_spread(own, weights, spreads)
        for software, (own, weights) in sorted(found.items())
        if own
    }


def _weights(errors: Sequence[LeftOutMemory]) -> Floats:
    """Return weights with which each publisher counts once."""
    counts = Counter(each.publisher for each in errors)
    return np.array([1.0 / counts[each.publisher] for each in errors])


def _fitting_spread(
    errors: Sequence[LeftOutMemory], weights: Floats, others: Mapping[str, float]
) -> float:
    return fitting_spread(
        np.array([each.error**2 for each in errors]),
        weights,
        np.array([each.deviation(others) ** 2 for each in errors]),
        np.ones(len(errors)),
    )
