"""What `validate` returns: every row with its prediction, summed up, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group

from wattree.shown import Shown
from wattree.validation.score import (
    ALL_SOURCES,
    Scored,
    Summary,
    interval_coverage,
    summaries,
    summary_json,
    worst,
)
from wattree.validation.table import (
    HoldOutLine,
    coverage_table,
    hold_out_table,
    skipped_table,
    summary_table,
    worst_table,
)

#: What is held out of a fit to all rows.
NOTHING = "nothing"
_HELD_OUT = "step_time_s, held out"
#: Rows in the list of largest errors on a terminal.
_WORST_SHOWN = 10


def hold_out_key(kind: str, *, is_network: bool) -> str:
    """Return the key under which calibrations record one kind of hold-out; empty: nothing."""
    group = "networks" if is_network else "language models"
    return f"{_HELD_OUT}, {group}, {kind or NOTHING}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Validation(Shown):
    """Predictions of measured rows.

    Attributes:
        scored: One entry per row and quantity, every row of the files present.
        left_out: Quantity → source → mean absolute error on that source's rows when they are left
            out of the fit, as stored in the calibration.
        assumed: row_id → assumptions needed to write the row as a job.
    """

    scored: tuple[Scored, ...]
    left_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    assumed: dict[str, tuple[str, ...]] | None = None

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

    @property
    def hold_outs(self) -> list[HoldOutLine]:
        """Return how well fits predict rows that they have not seen, as the calibration has it."""
        found = []
        for key, errors in self.left_out.items():
            head, _, rest = key.partition(f"{_HELD_OUT}, ")
            if head or not rest:
                continue
            group, _, kind = rest.rpartition(", ")
            whole = {name: errors[f"{ALL_SOURCES}, {name}"] for name in ("mean", "median")}
            each = {name: error for name, error in errors.items() if "all, " not in name}
            worst_name = max(each, key=each.__getitem__)
            found.append(
                HoldOutLine(
                    rows=group, held_out=kind, **whole, worst=worst_name, error=each[worst_name]
                )
            )
        return found

    def records(self) -> list[dict[str, Any]]:
        """Return every row, with what had to be assumed."""
        assumed = self.assumed or {}
        return [
            entry.as_json() | {"assumed": list(assumed.get(entry.row.row_id, ()))}
            for entry in self.scored
        ]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` writes."""
        return {
            "rows": self.records(),
            "summary": summary_json(self.summary),
            "hold_outs": [asdict(line) for line in self.hold_outs],
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
        tables += [hold_out_table(self.hold_outs)] if self.hold_outs else []
        covered = interval_coverage(self.scored)
        tables += [coverage_table(covered)] if covered else []
        found = worst(self.scored, count=_WORST_SHOWN)
        tables += [worst_table(found)] if found else []
        skipped = [entry for entry in self.scored if entry.skipped is not None]
        tables += [skipped_table(skipped)] if skipped else []
        return Group(*tables)
