"""Pipeline schedules by name."""

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

#: Name → schedule. Orders brought by users go by the name `custom` and are not listed.
PIPELINE_SCHEDULES: Mapping[str, PipelineSchedule] = {
    "gpipe": PipelineSchedule(order=gpipe, placement=looped, chunks=None),
    "1f1b": PipelineSchedule(
        order=one_forward_one_backward,
        placement=looped,
        turns=lambda stages, _: (1, stages) if stages > 1 else (1,),
    ),
    "interleaved": PipelineSchedule(
        order=interleaved,
        placement=looped,
        chunks=None,
        turns=lambda stages, micro_batches: () if micro_batches % stages else (stages,),
    ),
    "breadth-first": PipelineSchedule(order=breadth_first, placement=looped, chunks=None),
    "zb-h1": PipelineSchedule(
        order=zero_bubble_h1,
        placement=looped,
        splits_backward=True,
    ),
    "zb-h2": PipelineSchedule(order=zero_bubble_h2, placement=looped, splits_backward=True),
    "zb-v": PipelineSchedule(
        order=zero_bubble_v,
        placement=folded,
        chunks=2,
        splits_backward=True,
    ),
    "dualpipe": PipelineSchedule(
        order=dual_pipe,
        placement=two_way,
        chunks=2,
        splits_backward=True,
        even_stages=True,
    ),
    "dualpipev": PipelineSchedule(
        order=dual_pipe_v,
        placement=folded,
        chunks=2,
        splits_backward=True,
    ),
}
