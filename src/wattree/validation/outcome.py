"""What `validate` returns: every row with its prediction, summed up, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group

from wattree.validation.score import (
    ALL_SOURCES,
    Scored,
    Summary,
    interval_coverage,
    summaries,
    summary_json,
    worst,
)
from wattree.validation.table import coverage_table, skipped_table, summary_table, worst_table

#: Rows in the list of largest errors on a terminal.
_WORST_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Predictions of measured rows.

    Attributes:
        scored: One entry per row and quantity, every row of the files present.
        left_out: Quantity → source → mean absolute error on that source's rows when the fit never
            saw them, as the calibration records it.
        assumptions: row_id → what had to be filled to express the row.
    """

    scored: tuple[Scored, ...]
    left_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    assumptions: dict[str, tuple[str, ...]] | None = None

    @property
    def summary(self) -> dict[str, dict[str, Summary]]:
        """Quantity → source (or `all`) → errors, over core rows."""
        return summaries(self.scored)

    def left_out_of(self, quantity: str) -> dict[str, float]:
        """Return the errors of `quantity` on sources left out, of those here; `all` if of each.

        The error over all sources is the mean over rows, as that of the summary is.
        """
        recorded, summary = self.left_out.get(quantity, {}), self.summary.get(quantity, {})
        counts = {name: each.count for name, each in summary.items() if name != ALL_SOURCES}
        found = {name: recorded[name] for name in counts if name in recorded}
        rows = sum(counts[name] for name in found)
        if rows and rows == sum(counts.values()):
            found[ALL_SOURCES] = sum(found[name] * counts[name] for name in found) / rows
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` writes."""
        return {
            "rows": [
                entry.as_json()
                | {"assumptions": list((self.assumptions or {}).get(entry.row.row_id, ()))}
                for entry in self.scored
            ],
            "summary": summary_json(self.summary),
            "interval_coverage": {
                quantity: {
                    name: {"inside": inside, "rows": rows}
                    for name, (inside, rows) in classes.items()
                }
                for quantity, classes in interval_coverage(self.scored).items()
            },
            "mean_abs_error_source_left_out": {
                quantity: self.left_out_of(quantity) for quantity in self.summary
            },
        }

    def table(self) -> Group:
        """Return errors by source, the largest errors, and what was skipped, for a terminal."""
        tables = [
            summary_table(
                sources,
                quantity=quantity,
                left_out=self.left_out_of(quantity) or None,
            )
            for quantity, sources in self.summary.items()
        ]
        covered = interval_coverage(self.scored)
        tables += [coverage_table(covered)] if covered else []
        found = worst(self.scored, count=_WORST_SHOWN)
        tables += [worst_table(found)] if found else []
        skipped = [entry for entry in self.scored if entry.skipped is not None]
        tables += [skipped_table(skipped)] if skipped else []
        return Group(*tables)
