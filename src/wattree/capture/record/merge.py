"""Runs at several sizes → one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import zip_longest

from wattree.capture.record.sizes import SizePoint, Sizes
from wattree.capture.record.tracker import RunOperator, TrackedRun
from wattree.capture.recording import (
    RecordedOperator,
    RecordedTensor,
    Recording,
    TensorSource,
)
from wattree.graph import Extent

#: The operators of two runs at the first place where they differ; None where one has ended.
Difference = tuple[RunOperator | None, RunOperator | None]


def first_difference(one: TrackedRun, other: TrackedRun) -> Difference | None:
    """Return the first operators in which two runs differ; None if they are equal."""
    for mine, yours in zip_longest(one.operators, other.operators):
        if mine is None or yours is None or _shape_of(mine) != _shape_of(yours):
            return mine, yours
    return None


def _shape_of(operator: RunOperator) -> tuple[object, ...]:
    return operator.target, operator.module, operator.inputs, operator.outputs


def merged(
    runs: Sequence[TrackedRun],
    points: Sequence[SizePoint],
    *,
    name: str,
    how: str,
    warnings: Sequence[str],
) -> Recording:
    """Return the recording of runs that do the same at different sizes."""
    first, sizes = runs[0], Sizes(points=points)
    tensors = tuple(
        RecordedTensor(
            extents=tuple(
                sizes.extent(*lengths) for lengths in zip(*(t.shape for t in same), strict=True)
            ),
            dtype=same[0].dtype,
            storage=same[0].storage,
            storage_elements=sizes.extent(*(t.storage_elements for t in same)),
            source=TensorSource(same[0].source),
            name=same[0].name,
            requires_grad=same[0].requires_grad,
        )
        for same in zip(*(run.tensors for run in runs), strict=True)
    )
    operators = tuple(
        _operator(same, sizes) for same in zip(*(run.operators for run in runs), strict=True)
    )
    recomputed = Extent(coefficient=0.0)
    if first.recomputed_flop:
        # Shown at the first point alone, where it is exact: no size to warn of.
        again = Sizes(points=points).extent(*(_region_flop(run) for run in runs))
        recomputed = sizes.growing_like(again, first.recomputed_flop)
    lines = list(warnings)
    if sizes.approximate:
        lines.append(_approximate(sizes, points[0]))
    return Recording(
        name=name,
        operators=operators,
        tensors=tensors,
        outputs=first.outputs,
        modules=first.modules,
        tied=first.tied,
        batch=points[0].batch,
        sequence=points[0].sequence,
        recomputed_flop=recomputed,
        loss=first.loss,
        warnings=tuple(lines),
        how=how,
    )


def _operator(same: Sequence[RunOperator], sizes: Sizes) -> RecordedOperator:
    """Return one operator of all runs.

    Only the first run has a backward. A gradient of a product loops over what the product does,
    so it grows as that.
    """
    first = same[0]
    flop = sizes.extent(*(o.flop for o in same))
    merged = {
        "flop": flop,
        "input_gradient_flop": sizes.growing_like(flop, first.input_gradient_flop),
        "weight_gradient_flop": sizes.growing_like(flop, first.weight_gradient_flop),
        "saved": tuple(dict.fromkeys(first.saved)),
    }
    plain = {each.name: getattr(first, each.name) for each in fields(RunOperator)}
    return RecordedOperator(**plain | merged)


def _region_flop(run: TrackedRun) -> int:
    """Return the FLOP in checkpointed regions, or of all operators if there are none."""
    inside = sum(o.flop for o in run.operators if o.region is not None)
    return inside or sum(o.flop for o in run.operators)


def _approximate(sizes: Sizes, point: SizePoint) -> str:
    shown = ", ".join(f"{values[0]:g}" for values in sorted(sizes.approximate)[:3])
    more = f" and {len(sizes.approximate) - 3} more" if len(sizes.approximate) > 3 else ""
    where = f"batch {point.batch}"
    if point.sequence is not None:
        where += f" and sequence length {point.sequence}"
    return (
        f"some sizes are no products of batch and sequence length ({shown}{more} at {where}); "
        "they are exact there and scaled elsewhere"
    )
