"""Coverage of intervals of peak memory on left-out rows, and the required spreads."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.accounts.memory_spread import OVERHEAD_SPREAD
from wattree.cost import Calibration
from wattree.validation.coverage import fitting_spread
from wattree.validation.memory_fit import MemoryRow, fit_memory, memory_bytes

_FOLDS = 5
_MEMORY = "memory.peak_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutMemory:
    """One row of memory as a fit predicts it that never saw it.

    Attributes:
        kind: `allocated`, `reserved` or `process`.
        software: `measured`, `generic` where its whole source was left out or its software has no
            rows, or `unnamed` where the job does not name it.
        hold_out: `source`, `random` or `published`.
        error: Logarithm of predicted over measured peak.
        overhead: Share of the peak that is no tensor.
        publisher: Of a run that no fit has. Each counts once.
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
            spreads.get(f"{_MEMORY}.software.{self.software}", 0.0),
            self.overhead * OVERHEAD_SPREAD,
        )


def left_out_memory(rows: Sequence[MemoryRow], start: Calibration) -> list[LeftOutMemory]:
    """Return the errors of rows by fits without their source, and without a fifth of the rows."""
    shuffled = np.random.default_rng(0).permutation(len(rows)) % _FOLDS
    sources = np.array([row.row.source_id for row in rows])
    found = []
    for hold_out, software, keys in (
        ("source", "generic", sources),
        ("random", "measured", shuffled.astype(str)),
    ):
        for key in sorted(set(keys)):
            others = [row for row, own in zip(rows, keys, strict=True) if own != key]
            without = fit_memory(others, start) if others else start
            for row, own in zip(rows, keys, strict=True):
                if own == key:
                    predicted = memory_bytes(row, without)
                    found.append(
                        LeftOutMemory(
                            kind=row.kind,
                            software=software,
                            hold_out=hold_out,
                            error=math.log(predicted / row.measured_bytes),
                            overhead=max(1.0 - row.tensor_bytes / predicted, 0.0),
                        )
                    )
    return found


def fitted_memory_spreads(errors: Sequence[LeftOutMemory]) -> dict[str, float]:
    """Return class of evidence → spread with which 80 % of the rows of the class are inside."""
    spreads = {f"{_MEMORY}.software.measured": 0.0}
    groups: dict[str, list[LeftOutMemory]] = defaultdict(list)
    for each in errors:
        known = each.software == "measured"
        groups[each.kind if known else f"software.{each.software}"].append(each)
    for name in sorted(groups, key=lambda name: name.startswith("software")):
        own = groups[name]
        counts = Counter(each.publisher for each in own)
        spreads[f"{_MEMORY}.{name}"] = fitting_spread(
            np.array([each.error**2 for each in own]),
            np.array([1.0 / counts[each.publisher] for each in own]),
            np.array([each.deviation(spreads) ** 2 for each in own]),
            np.ones(len(own)),
        )
    # What is reserved holds what is allocated, and rows of either are few.
    inner, outer = (f"{_MEMORY}.{kind}" for kind in ("allocated", "reserved"))
    if outer in spreads:
        spreads[outer] = max(spreads[outer], spreads.get(inner, 0.0))
    return spreads
