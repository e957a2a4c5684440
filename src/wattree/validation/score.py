"""Errors of predictions against measurements: per row, per source, and the order of pairs.

Plain functions over plain values; who predicted, and how, is not asked here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wattree.validation.rows import MeasuredRow, choice_of

#: Key of the summary over every source.
ALL_SOURCES = "all"
#: Two measurements closer than this are no pair: their order is noise.
PAIR_MARGIN = 0.05
#: Two predictions closer than this, relatively, are a tie: rounding only.
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One quantity of one row, measured and predicted.

    Attributes:
        row: Where it comes from.
        quantity: One of `measurement.QUANTITIES`.
        measured, predicted: In SI units; None if there is none.
        skipped: Why there is no prediction or no measurement; None if there are both.
        anchor: The row only anchors the prediction of others and does not count itself.
        interval: What the measured value lies between with 80 % probability; None if unknown.
        evidence: What is known of such jobs, as `Result.evidence_class`; empty if unknown.
        peak_bytes, capacity_bytes: Predicted peak of the fullest device, and what it has: a run
            that was measured also fitted. None of rows that are no job. [B]
    """

    row: MeasuredRow
    quantity: str
    measured: float | None
    predicted: float | None
    skipped: str | None = None
    anchor: bool = False
    interval: tuple[float, float] | None = None
    evidence: str = ""
    peak_bytes: float | None = None
    capacity_bytes: float | None = None

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured value is in the interval; None unless both are known."""
        if self.error is None or self.measured is None or self.interval is None:
            return None
        return self.interval[0] <= self.measured <= self.interval[1]

    @property
    def error(self) -> float | None:
        """`predicted / measured - 1`; None unless there are both."""
        if self.measured is None or self.predicted is None or self.skipped is not None:
            return None
        return self.predicted / self.measured - 1

    @property
    def counts(self) -> bool:
        """Whether it enters a summary: a core row that is no anchor."""
        return self.row.core and not self.anchor

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one entry of `rows` in `validate --json`."""
        return {
            "row_id": self.row.row_id,
            "quantity": self.quantity,
            "measured": self.measured,
            "predicted": self.predicted,
            "error": self.error,
            "interval": None if self.interval is None else list(self.interval),
            "evidence": self.evidence,
            "peak_bytes": self.peak_bytes,
            "capacity_bytes": self.capacity_bytes,
            "skipped": self.skipped,
            "anchor": self.anchor,
            "source_id": self.row.source_id,
            "core": self.row.core,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one quantity over one source or all. Errors are None where nothing was predicted.

    Attributes:
        count: Rows with a measurement and a prediction.
        mean_abs_error, median_abs_error, p90_abs_error: Of `|predicted / measured - 1|`.
        bias: Mean of the signed error.
        pairs: Pairs whose measured order means something.
        pairs_ordered_right: How many of them the predictions order the same way; a predicted tie
            counts one half.
        skipped: Rows without a prediction.
        inside: Share of the rows whose measured value is in its 80 % interval; None without one.
    """

    count: int
    mean_abs_error: float | None
    median_abs_error: float | None
    p90_abs_error: float | None
    bias: float | None
    pairs: int
    pairs_ordered_right: float
    skipped: int
    inside: float | None = None

    @property
    def order(self) -> float | None:
        """Share of pairs ordered right; None if there is no pair."""
        return self.pairs_ordered_right / self.pairs if self.pairs else None

    @property
    def coverage(self) -> float | None:
        """Share of rows that have a prediction; None if there is no row."""
        rows = self.count + self.skipped
        return self.count / rows if rows else None

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one entry of `summary` in `validate --json`."""
        return asdict(self)


def summaries(scored: Iterable[Scored]) -> dict[str, dict[str, Summary]]:
    """Return quantity → source (or `all`) → summary, over core rows that are no anchors.

    Sources are sorted; `all` comes last. A quantity without such a row is absent.
    """
    grouped: dict[str, dict[str, list[Scored]]] = defaultdict(lambda: defaultdict(list))
    for entry in scored:
        if entry.counts:
            grouped[entry.quantity][entry.row.source_id].append(entry)
    return {
        quantity: {source: _summary(sources[source]) for source in sorted(sources)}
        | {ALL_SOURCES: _summary([entry for entries in sources.values() for entry in entries])}
        for quantity, sources in sorted(grouped.items())
    }


def worst(scored: Iterable[Scored], *, count: int) -> tuple[Scored, ...]:
    """Return the `count` entries with the largest absolute error, largest first.

    Equal errors are ordered by `row_id`, so that the list does not depend on the input's order.
    """
    erring = [entry for entry in scored if entry.counts and entry.error is not None]
    erring.sort(key=lambda entry: (-abs(entry.error or 0.0), entry.row.row_id))
    return tuple(erring[:count])


def _summary(entries: Sequence[Scored]) -> Summary:
    errors = np.array([entry.error for entry in entries if entry.error is not None])
    pairs, right = _ordered_pairs(entries)
    found = errors.size > 0
    return Summary(
        count=int(errors.size),
        mean_abs_error=float(np.mean(np.abs(errors))) if found else None,
        median_abs_error=float(np.median(np.abs(errors))) if found else None,
        p90_abs_error=float(np.quantile(np.abs(errors), 0.9)) if found else None,
        bias=float(np.mean(errors)) if found else None,
        pairs=pairs,
        pairs_ordered_right=right,
        skipped=sum(entry.error is None for entry in entries),
        inside=inside_share(entries)[0],
    )


def inside_share(entries: Iterable[Scored]) -> tuple[float | None, int]:
    """Return the share of entries whose measured value is in its interval, and of how many."""
    found = [entry.is_inside for entry in entries if entry.is_inside is not None]
    return (sum(found) / len(found) if found else None), len(found)


def interval_coverage(scored: Iterable[Scored]) -> dict[str, dict[str, tuple[float, int]]]:
    """Return quantity → class of evidence (or `all`) → share inside the intervals, and rows."""
    grouped: dict[str, dict[str, list[Scored]]] = defaultdict(lambda: defaultdict(list))
    for entry in scored:
        if entry.counts and entry.is_inside is not None:
            for name in (entry.evidence, ALL_SOURCES):
                grouped[entry.quantity][name].append(entry)
    return {
        quantity: {
            name: (share, rows)
            for name, (share, rows) in ((n, inside_share(classes[n])) for n in sorted(classes))
            if share is not None
        }
        for quantity, classes in sorted(grouped.items())
    }


def _ordered_pairs(entries: Sequence[Scored]) -> tuple[int, float]:
    groups: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    for entry in entries:
        if entry.error is not None:
            assert entry.measured is not None
            assert entry.predicted is not None
            merit = _merit(entry)
            groups[choice_of(entry.row)].append((merit(entry.measured), merit(entry.predicted)))
    counted = [_ordered(members) for members in groups.values()]
    return sum(pairs for pairs, _ in counted), float(sum(right for _, right in counted))


def _ordered(members: Sequence[tuple[float, float]]) -> tuple[int, float]:
    pairs, right = 0, 0.0
    for i, (measured_a, predicted_a) in enumerate(members):
        for measured_b, predicted_b in members[:i]:
            low, high = sorted((measured_a, measured_b))
            if high <= low * (1 + PAIR_MARGIN):
                continue
            pairs += 1
            if math.isclose(predicted_a, predicted_b, rel_tol=_TIE):
                right += 0.5
            elif (predicted_a > predicted_b) == (measured_a > measured_b):
                right += 1.0
    return pairs, right


def _merit(entry: Scored) -> Callable[[float], float]:
    """Return what ranks two rows: tokens per second for step times, else the value itself.

    Rows of one setting may differ in global batch, so step times alone do not rank them.
    """
    row = entry.row
    if entry.quantity != "step_time_s":
        return lambda value: value
    samples = row.global_batch or 1
    tokens = samples * (row.seq_len or 1)
    return lambda step_time_s: tokens / step_time_s


def summary_json(summary: Mapping[str, Mapping[str, Summary]]) -> dict[str, Any]:
    """Return `summary` of `validate --json`."""
    return {
        quantity: {source: entry.as_json() for source, entry in sources.items()}
        for quantity, sources in summary.items()
    }
