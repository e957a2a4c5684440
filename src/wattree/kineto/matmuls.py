"""FLOP of a rank's matmuls, from the shapes that `record_shapes=True` puts into a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

#: Operator → which of its arguments are the factors.
_FACTORS: Mapping[str, tuple[int, int]] = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
#: Operators that multiply batches of matrices: attention step by step, above all.
BATCHED = frozenset({"aten::bmm", "aten::baddbmm"})
COUNTED = frozenset(_FACTORS)


@dataclass(slots=True)
class Matmuls:
    """Matmuls in the order in which the host called them.

    Attributes:
        rows: Start [s], name, type of the elements, and FLOP of each.
    """

    rows: list[tuple[float, str, str, float]] = field(default_factory=list)

    def take(self, name: str, start_s: float, given: Mapping[str, Any]) -> None:
        """Count an operator if it is a matmul whose shapes are known."""
        if name not in _FACTORS:
            return
        shapes, types = given.get("Input Dims"), given.get("Input type")
        one, other = _FACTORS[name]
        if not isinstance(shapes, list) or not isinstance(types, list):
            return
        if min(len(shapes), len(types)) <= other or not _are_matrices(shapes[one], shapes[other]):
            return
        flop = 2.0 * prod(shapes[one]) * shapes[other][-1]
        self.rows.append((start_s, name, str(types[one]), flop))

    def of_steps(self, steps: Sequence[tuple[float, float]]) -> dict[tuple[str, str], float]:
        """Return operator and type → FLOP of a step, on average.

        Args:
            steps: When the host began and ended each. [s]
        """
        found: dict[tuple[str, str], float] = {}
        for start_s, name, kind, flop in self.rows:
            if any(begin_s <= start_s < end_s for begin_s, end_s in steps):
                found[name, kind] = found.get((name, kind), 0.0) + flop / len(steps)
        return found


def _are_matrices(one: object, other: object) -> bool:
    return all(
        isinstance(each, Sequence)
        and len(each) >= 2
        and all(isinstance(size, int) for size in each)
        for each in (one, other)
    )
