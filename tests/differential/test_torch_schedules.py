"""Schedules of pipelines against those of `torch.distributed.pipelining`."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.pipelining import schedules as torch_schedules

from tests.each import each
from tests.strategy.abstract_execution import execute, play_orders
from wattree.job.offers import offer_of
from wattree.strategy.schedules import PIPELINE_SCHEDULES, Order, Slot, SlotWork

_WORK = {
    "FORWARD": SlotWork.FORWARD,
    "FULL_BACKWARD": SlotWork.BACKWARD,
    "BACKWARD_INPUT": SlotWork.INPUT_GRADIENT,
    "BACKWARD_WEIGHT": SlotWork.WEIGHT_GRADIENT,
}
_TIMES = {
    SlotWork.FORWARD: 1.0,
    SlotWork.BACKWARD: 2.0,
    SlotWork.INPUT_GRADIENT: 1.0,
    SlotWork.WEIGHT_GRADIENT: 1.0,
}


def torch_orders(schedule: Any, stages: int, chunks: int, micro_batches: int) -> list[Order]:
    """Return PyTorch's order of every stage, without the processes that it is made for."""
    own = object.__new__(schedule)
    rounds = max(1, micro_batches // stages)
    own.pp_group_size, own.n_local_stages = stages, chunks
    own.num_stages = own._num_stages = stages * chunks
    own._n_microbatches, own.microbatches_per_round = micro_batches, micro_batches // rounds
    own._stages = [None] * chunks
    return [
        tuple(
            Slot(
                each.stage_index // stages, each.microbatch_index, _WORK[each.computation_type.name]
            )
            for action in own._calculate_single_rank_operations(rank)
            if action is not None
            for each in action.sub_actions or (action,)
        )
        for rank in range(stages)
    ]


@pytest.mark.parametrize(
    ("name", "theirs", "least", "slower"),
    [
        ("interleaved", "ScheduleInterleaved1F1B", 0, 1.0),
        ("breadth-first", "ScheduleLoopedBFS", 0, 1.0),
        ("dualpipev", "ScheduleDualPipeV", 2, 1.0),
        # With hardly more micro-batches than stages PyTorch defers fewer weight gradients.
        ("zb-v", "ScheduleZBVZeroBubble", 0, 1.08),
    ],
)
def test_a_schedule_takes_and_keeps_what_that_of_pytorch_does(
    name: str, theirs: str, least: int, slower: float
) -> None:
    """The same time, and as many micro-batches in flight on every stage."""
    known = PIPELINE_SCHEDULES[name]
    for stages in range(2, 6):
        for chunks in (2,) if known.chunks else (2, 3):
            for micro_batches in range(max(least * stages, 1), 4 * stages + 1):
                if micro_batches % max(1, micro_batches // stages):
                    continue  # PyTorch has no such rounds
                case = (stages, chunks, micro_batches)
                orders = torch_orders(getattr(torch_schedules, theirs), *case)
                expected = execute(orders, known.placement(stages, chunks), _TIMES)
                found = play_orders(name, *case, forward=1.0, backward=2.0)

                assert not expected.stuck, case
                assert found.in_flight == expected.in_flight, case
                assert expected.makespan <= found.makespan <= slower * expected.makespan, case


_CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "breadth-first": "ScheduleLoopedBFS",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


def _builds(name: str, stages: int, chunks: int, micro_batches: int, part: Any) -> bool:
    """Return whether PyTorch's own constructor takes a pipeline.

    Args:
        part: Module of a stage.
    """
    parts = stages * chunks
    folded = PIPELINE_SCHEDULES[name].chunks == 2
    ranks = {i: min(i, parts - 1 - i) if folded else i % stages for i in range(parts)}
    known = {"group_size": stages, "group_rank": 0, "num_stages": parts, "has_backward": True}
    known |= {"submod": part, "device": "cpu", "group": None, "stage_index_to_group_rank": ranks}
    own = [
        SimpleNamespace(stage_index=i, is_first=i == 0, is_last=i == parts - 1, **known)
        for i in ranks
        if ranks[i] == 0
    ]
    build = getattr(torch_schedules, _CLASSES[name])
    if issubclass(build, torch_schedules.PipelineScheduleSingle):
        if chunks > 1:
            return False  # it takes one stage
        [own] = own
    try:
        build(own, micro_batches, loss_fn=lambda *_: None)
    except (ValueError, RuntimeError):
        return False
    return True


@each("name", _CLASSES)
def test_offers_admit_the_pipelines_that_pytorch_builds(name: str) -> None:
    """What its constructors refuse was ranked first and exported."""
    offer, part = offer_of("pytorch"), torch.nn.Linear(1, 1)
    assert offer is not None
    compiled = offer.narrowed(architecture="", absent=(), conditions={"compiled"})
    own = PIPELINE_SCHEDULES[name].chunks
    chunks = (2,) if own == 2 else (1,) if own == 1 else (1, 2, 3)
    sizes = itertools.product((2, 3, 4, 6), chunks, range(1, 28))

    wrong = [
        size
        for size in sizes
        if offer.runs_pipelines(name, *size) != _builds(name, *size, part=part)
    ]
    compiles = _builds(name, 2, chunks[0], 8, part=torch.compile(part, backend="eager"))

    assert wrong == []
    assert compiled.has("schedule", name) == compiles
