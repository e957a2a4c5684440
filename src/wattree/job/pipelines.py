"""What a program's schedules of pipelines need of micro-batches and of chunks on each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from wattree.strategy.schedules import PIPELINE_SCHEDULES

#: A schedule that needs modules which `torch.compile` has not wrapped.
UNCOMPILED: Final = "modules not compiled"


class _Need(NamedTuple):
    """A rule: of integers or arrays (stages, chunks on each, micro-batches); and what breaks it."""

    holds: Callable[[Any, Any, Any], Any]
    broken: str


def _rounds(stages: Any, micro_batches: Any) -> Any:
    """Return how many rounds of a micro-batch per stage there are, at least one."""
    return micro_batches // stages + (micro_batches < stages)


_WHOLE: Final = (
    "{micro_batches} micro-batches, which have to be a multiple of %s (global_batch and "
    "micro_batch set them),"
)
#: Words of `offers.yaml` → rules.
_NEEDS: Final = {
    "micro-batches a multiple of pp": _Need(
        lambda stages, _, micro_batches: micro_batches % stages == 0,
        _WHOLE % "pp {stages}",
    ),
    "micro-batches a multiple of (micro-batches // pp)": _Need(
        lambda stages, _, micro_batches: micro_batches % _rounds(stages, micro_batches) == 0,
        _WHOLE % "(micro-batches // pp) = {rounds}",
    ),
    "at least as many micro-batches as chunks": _Need(
        lambda stages, chunks, micro_batches: micro_batches >= stages * chunks,
        "fewer micro-batches ({micro_batches}) than chunks of the model ({parts})",
    ),
    "one chunk per stage": _Need(lambda _stages, chunks, _: chunks == 1, "virtual_stages above 1"),
    "several chunks per stage": _Need(lambda _stages, chunks, _: chunks > 1, "virtual_stages 1"),
    UNCOMPILED: _Need(lambda _stages, chunks, _: chunks > 0, ""),  # known without numbers
}


def runs_pipeline(
    needs: Sequence[str], schedule: str, stages: Any, virtual_stages: int, micro_batches: Any
) -> Any:
    """Return whether a schedule has what it needs; an array if there are several pipelines.

    Args:
        stages: One or many, `(n,)`.
        micro_batches: Of a step and replica, as many as `stages`.
    """
    chunks = _chunks(schedule, virtual_stages)
    holds = stages > 0
    for each in needs:
        holds = holds & _NEEDS[each].holds(stages, chunks, micro_batches)
    return holds


def broken_needs(
    needs: Sequence[str], schedule: str, stages: int, virtual_stages: int, micro_batches: int
) -> list[str]:
    """Return what a pipeline lacks, in words."""
    chunks = _chunks(schedule, virtual_stages)
    return [
        _NEEDS[each].broken.format(
            micro_batches=micro_batches,
            stages=stages,
            rounds=_rounds(stages, micro_batches),
            parts=stages * chunks,
        )
        for each in needs
        if not _NEEDS[each].holds(stages, chunks, micro_batches)
    ]


def _chunks(schedule: str, virtual_stages: int) -> int:
    known = PIPELINE_SCHEDULES.get(schedule)
    return (known.chunks if known else None) or virtual_stages
