"""Runs at several sizes → one recording."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from wattree.capture.record.sizes import Point, Sizes
from wattree.capture.record.tracker import Run, RunOperator
from wattree.capture.recording import (
    RecordedOperator,
    RecordedTensor,
    Recording,
    TensorSource,
)

__all__ = ["first_difference", "merged"]


def first_difference(one: Run, other: Run) -> tuple[RunOperator | None, RunOperator | None] | None:
    """Return the first operators in which two runs differ; None where they do not."""
    for mine, yours in zip_longest(one.operators, other.operators):
        if mine is None or yours is None or _shape_of(mine) != _shape_of(yours):
            return mine, yours
    return None


def _shape_of(operator: RunOperator) -> tuple[object, ...]:
    return operator.target, operator.module, operator.inputs, operator.outputs


def merged(
    runs: Sequence[Run], points: Sequence[Point], *, name: str, how: str, warnings: Sequence[str]
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
        RecordedOperator(
            target=same[0].target,
            module=same[0].module,
            inputs=same[0].inputs,
            outputs=same[0].outputs,
            arguments=same[0].arguments,
            flop=sizes.extent(*(o.flop for o in same)),
            input_gradient_flop=sizes.extent(*(o.input_gradient_flop for o in same)),
            weight_gradient_flop=sizes.extent(*(o.weight_gradient_flop for o in same)),
            saved=tuple(dict.fromkeys(same[0].saved)),
            is_view=same[0].is_view,
            in_place=same[0].in_place,
            region=same[0].region,
        )
        for same in zip(*(run.operators for run in runs), strict=True)
    )
    recomputed = sizes.extent(*(run.recomputed_flop for run in runs))
    told = list(warnings)
    if sizes.approximate:
        told.append(_approximate(sizes, points[0]))
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
        warnings=tuple(told),
        how=how,
    )


def _approximate(sizes: Sizes, point: Point) -> str:
    shown = ", ".join(f"{values[0]:g}" for values in sorted(sizes.approximate)[:3])
    more = f" and {len(sizes.approximate) - 3} more" if len(sizes.approximate) > 3 else ""
    where = f"batch {point.batch}"
    if point.sequence is not None:
        where += f" and sequence length {point.sequence}"
    return (
        f"some sizes are no products of batch and sequence length ({shown}{more} at {where}); "
        "they are exact there and scaled elsewhere"
    )
