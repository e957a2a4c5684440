"""Pipeline schedules by name, with the activation memory that each guarantees."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.strategy.schedules.breadth_first import breadth_first
from wattree.strategy.schedules.dual_pipe import dual_pipe
from wattree.strategy.schedules.dual_pipe_v import dual_pipe_v
from wattree.strategy.schedules.gpipe import gpipe
from wattree.strategy.schedules.interleaved import interleaved
from wattree.strategy.schedules.one_forward_one_backward import one_forward_one_backward
from wattree.strategy.schedules.placement import folded, looped, two_way
from wattree.strategy.schedules.schedule import PipelineSchedule
from wattree.strategy.schedules.zero_bubble_h1 import zero_bubble_h1
from wattree.strategy.schedules.zero_bubble_h2 import zero_bubble_h2
from wattree.strategy.schedules.zero_bubble_v import zero_bubble_v


def _all(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    del stage, stages
    return chunks * micro_batches


def _stages_left(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Narayanan et al., PipeDream-2BW 2021, §2.2."""
    del chunks
    return min(stages - stage, micro_batches)


def _interleaved_warm_up(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Narayanan et al., SC 2021, §2.2: the warm-up and one more; rounds may be longer here."""
    total = chunks * micro_batches
    round_length = -(-micro_batches // max(micro_batches // stages, 1))
    return min((stages - stage - 1) * 2 + (chunks - 1) * round_length + 1, total)


def _as_1f1b_at_most(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Qi et al., ICLR 2024"""
    del stage, chunks
    return min(stages, micro_batches)


def _twice_1f1b(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Qi et al., ICLR 2024: (2p - 1) micro-batches."""
    del stage, chunks
    return min(2 * stages - 1, micro_batches)


def _half_chunks(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Qi et al., NeurIPS 2024 (V-ZB): p whole stages, which are 2p of their halves."""
    del stage
    return min(2 * stages, chunks * micro_batches)


def _both_ways(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """DeepSeek-V3 2024, Table 2: p + 1, on both directions together."""
    del stage, chunks
    return min(stages + 1, micro_batches)


def _both_ways_folded(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """As DualPipe on twice the stages."""
    del stage
    return min(2 * stages + 1, chunks * micro_batches)


#: Name → schedule. Orders brought by users go by the name `custom` and are not listed.
PIPELINE_SCHEDULES: Mapping[str, PipelineSchedule] = {
    "gpipe": PipelineSchedule(order=gpipe, placement=looped, most_live=_all, chunks=None),
    "1f1b": PipelineSchedule(
        order=one_forward_one_backward, placement=looped, most_live=_stages_left
    ),
    "interleaved": PipelineSchedule(
        order=interleaved, placement=looped, most_live=_interleaved_warm_up, chunks=None
    ),
    "breadth-first": PipelineSchedule(
        order=breadth_first, placement=looped, most_live=_all, chunks=None
    ),
    "zb-h1": PipelineSchedule(
        order=zero_bubble_h1,
        placement=looped,
        most_live=_as_1f1b_at_most,
        splits_backward=True,
    ),
    "zb-h2": PipelineSchedule(
        order=zero_bubble_h2, placement=looped, most_live=_twice_1f1b, splits_backward=True
    ),
    "zb-v": PipelineSchedule(
        order=zero_bubble_v,
        placement=folded,
        most_live=_half_chunks,
        chunks=2,
        splits_backward=True,
    ),
    "dualpipe": PipelineSchedule(
        order=dual_pipe,
        placement=two_way,
        most_live=_both_ways,
        chunks=2,
        splits_backward=True,
        even_stages=True,
    ),
    "dualpipev": PipelineSchedule(
        order=dual_pipe_v,
        placement=folded,
        most_live=_both_ways_folded,
        chunks=2,
        splits_backward=True,
    ),
}
