"""What `--sharing proteus` and the switches of an ablation do, in plays followed by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.reference import execute_reference
from tests.strategies import TaskSpec, flow, graph_of
from wattree.graph import TaskKind
from wattree.sim import execute
from wattree.trace import Trace

COLLECTIVE, COMPUTE, HOST = TaskKind.COLLECTIVE, TaskKind.COMPUTE, TaskKind.HOST

Player = Callable[..., Trace]
both = pytest.mark.parametrize("player", [execute, execute_reference])


@both
def test_proteus_divides_by_the_number_on_the_most_loaded_link(player: Player) -> None:
    """A meets two others on link 0 and one on link 1: it runs at a third; no one asks for much.

    B (1 s) and C (2 s), both on link 0 alone, run at a third until B ends at 3 s, then C and A at
    a half: C has 1 s left and ends at 5 s, when A (3 s) has 1 s left. D (2 s) shares link 1 with A
    from the start: at a half it ends at 4 s. A then runs alone from 5 s to 6 s.
    """
    graph = graph_of(
        [
            flow(0, 3.0, (0, 1.0), (1, 1.0)),
            flow(1, 1.0, (0, 1.0)),
            flow(2, 2.0, (0, 1.0)),
            flow(3, 2.0, (1, 1.0)),
        ],
        stream_class=(0, 0, 0, 0),
        link_bandwidth_bytes_per_s=(100.0, 100.0),
    )

    assert player(graph, sharing="proteus").end_s.tolist() == pytest.approx([6.0, 3.0, 5.0, 4.0])
    assert player(graph).end_s.tolist() == [3.0, 1.0, 2.0, 2.0]  # no link is crowded


@both
def test_proteus_counts_the_flows_that_a_folded_task_stands_for(player: Player) -> None:
    """Three equal flows and one other are four flows; a count of 0 is not a flow."""
    graph = graph_of(
        [
            flow(0, 1.0, (0, 3.0), counts=(3,)),
            flow(1, 1.0, (0, 1.0)),
            flow(2, 1.0, (0, 1.0), counts=(0,)),
        ],
        stream_class=(0, 0, 0),
        link_bandwidth_bytes_per_s=(10.0,),
    )

    assert player(graph, sharing="proteus").end_s.tolist() == [4.0, 4.0, 1.0]


@both
def test_proteus_slows_whole_tasks_that_meet_and_no_others(player: Player) -> None:
    """Compute at 0.8, communication at 0.5: 2 s become 2.5 s, 1 s becomes 2 s, however short it is.

    Task 0 (2 s) meets task 2 from 1.9 s on and ends at 2.5 s as a whole; task 1, behind it, meets
    it from 2.5 s on: 5 s. Task 3 starts when task 2 has ended, at 3.9 s, and meets task 1 too.
    Task 4 starts at 5 s, when task 1 has ended, and meets no one; nor does the host.
    """
    graph = graph_of(
        [
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=2.0),
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=2.0),
            TaskSpec(kind=COLLECTIVE, streams=(1,), latency_s=1.9, work_s=1.0),
            TaskSpec(kind=COLLECTIVE, streams=(1,), work_s=1.0),
            TaskSpec(kind=COLLECTIVE, streams=(2,), work_s=1.0, after=(1,)),
            TaskSpec(kind=HOST, streams=(3,), work_s=9.0),
        ],
        stream_class=(0, 0, 0, 0),
        compute_rate=0.8,
        communication_rate=0.5,
    )

    trace = player(graph, sharing="proteus")

    assert trace.end_s.tolist() == pytest.approx([2.5, 5.0, 3.9, 5.9, 6.0, 9.0])


@both
def test_proteus_lengthens_what_shares_a_link_at_its_share(player: Player) -> None:
    """Both rules together: 1 s, lengthened to 2 s, at half speed alongside another flow of 3 s.

    From 0 s to 4 s the first does its 2 s; the second, on a rank that computes nothing, has done
    2 s by then and takes 1 s more.
    """
    graph = graph_of(
        [
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=0.125),
            flow(1, 1.0, (0, 1.0)),
            flow(2, 3.0, (0, 1.0)),
        ],
        stream_class=(0, 0, 1),
        link_bandwidth_bytes_per_s=(1.0,),
        communication_rate=0.5,
    )

    assert player(graph, sharing="proteus").end_s.tolist() == pytest.approx([0.125, 4.0, 5.0])


@both
@pytest.mark.parametrize(
    ("switches", "ends_s"),
    [
        ({}, [2.5, 4.0, 4.0]),
        ({"mutual_slowdown": False}, [2.0, 4.0, 4.0]),
        ({"sharing": "none"}, [2.4, 2.0, 2.0]),
        ({"sharing": "none", "mutual_slowdown": False}, [2.0, 2.0, 2.0]),
    ],
)
def test_each_switch_takes_away_its_rule_alone(
    player: Player, switches: dict[str, object], ends_s: list[float]
) -> None:
    """2 s of compute at 0.8 alongside communication; two flows of 2 s on one link."""
    graph = graph_of(
        [
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=2.0),
            flow(1, 2.0, (0, 1.0)),
            flow(2, 2.0, (0, 1.0)),
        ],
        stream_class=(0, 0, 1),
        link_bandwidth_bytes_per_s=(1.0,),
        compute_rate=0.8,
    )

    assert player(graph, **switches).end_s.tolist() == pytest.approx(ends_s)
