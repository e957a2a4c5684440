"""Experts that are not equally popular: who computes, sends and waits how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.jobs import Job, mixture, small_cluster
from tests.cost.groups import uneven_exchange
from tests.sim.reference import reference_events
from wattree.cost.algorithms import Routes, link_loads
from wattree.errors import StrategyError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.hardware.topologies import device_name
from wattree.hardware.topologies.switch import switch_fabric
from wattree.lowering.owners import port_factors
from wattree.sim import execute
from wattree.strategy import ExpertLoad, StrategyOptions

EP = 4


def job(load: ExpertLoad | None, **changes: object) -> Job:
    """Return a small mixture over four expert-parallel ranks, with work for their devices."""
    options = StrategyOptions(ep=EP, expert_load=load, **changes)  # type: ignore[arg-type]
    return Job.of(mixture(2), options, global_batch=8, sequence=1 << 14)


def of_class(graph: ExecutionGraph, rank_class: int, name: str) -> np.ndarray:
    """Return the tasks with a name that ranks of a class play."""
    first = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
    return np.flatnonzero((first == rank_class) & (graph.name_ids == graph.names.index(name)))


def expert_flop(graph: ExecutionGraph, rank_class: int) -> float:
    """Return the FLOP of a class in the first product of its experts."""
    return float(graph.flop[of_class(graph, rank_class, "moe.experts.up")].sum())


@pytest.mark.parametrize("imbalance", [1.6, EP])
def test_the_busiest_rank_is_a_class_with_that_much_more_to_do(imbalance: float) -> None:
    """Products grow with tokens; the others share what is left alike, which may be nothing."""
    graph = job(ExpertLoad(imbalance=imbalance)).compiled().graph
    even = job(None).compiled().graph

    assert graph.class_ranks.tolist() == [1, EP - 1]
    assert expert_flop(graph, 0) / expert_flop(even, 0) == pytest.approx(imbalance)
    assert expert_flop(graph, 1) / expert_flop(even, 0) == pytest.approx(
        (EP - imbalance) / (EP - 1)
    )


def test_no_flop_appear_or_vanish() -> None:
    """Tokens are only spread otherwise."""
    graphs = [job(load).compiled().graph for load in (None, ExpertLoad(spread=0.5, seed=1))]
    totals = []
    for graph in graphs:
        first = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
        totals.append((graph.flop * graph.class_ranks[first]).sum())

    assert totals[0] == pytest.approx(totals[1], rel=1e-12)


def test_the_others_wait_for_the_busiest_rank() -> None:
    """They reach the exchange back early, and it starts when the busiest has come."""
    graph = job(ExpertLoad(imbalance=2.0)).compiled().graph
    trace = execute(graph)
    done = [trace.end_s[of_class(graph, c, "moe.experts.down")][0] for c in (0, 1)]
    back = np.flatnonzero(
        (graph.name_ids == graph.names.index("moe.experts.down"))
        & (graph.kind == TaskKind.COLLECTIVE)
    )[0]

    assert done[1] < done[0]
    assert trace.start_s[back] == pytest.approx(done[0])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_balance_is_what_is_assumed_without_a_load(ranks: int) -> None:
    """To the last bit."""
    graphs = [
        Job.of(mixture(2), StrategyOptions(ep=ranks, expert_load=load)).compiled().graph
        for load in (None, ExpertLoad())
    ]

    for name in ("work_s", "latency_s", "alloc_bytes", "flow_bytes_per_s", "flop"):
        np.testing.assert_array_equal(*(getattr(graph, name) for graph in graphs))


@given(tokens=st.lists(st.floats(0.1, 3.0), min_size=2, max_size=9))
def test_port_loads_of_an_exchange_are_those_of_its_messages(tokens: list[float]) -> None:
    """Against the uneven all-to-all that is written out message by message."""
    share = np.array(tokens) / np.mean(tokens)
    ranks, size = len(share), 1e6
    names = [device_name(device) for device in range(ranks)]
    routes = Routes(switch_fabric(names, bandwidth_bytes_per_s=1e9, latency_s=1e-6))
    matrix = np.tile(size * share / ranks, (ranks, 1))  # rank i sends rank j its share

    loads = link_loads(uneven_exchange(matrix), routes)

    ports = np.array(
        [
            max(
                load
                for link, load in zip(routes.network.links, loads, strict=True)
                if name in (link.source, link.target)
            )
            for name in names
        ]
    )
    np.testing.assert_allclose(port_factors(share) * size * (ranks - 1) / ranks, ports)


def test_the_exchange_takes_as_much_longer_as_the_busiest_port_is_fuller() -> None:
    """And sends over each rank's links what its port factor says."""
    even, uneven = (job(load).compiled().graph for load in (None, ExpertLoad(imbalance=1.6)))

    def exchanges(graph: ExecutionGraph) -> np.ndarray:
        return np.flatnonzero(
            (graph.kind == TaskKind.COLLECTIVE) & (graph.name_ids == graph.names.index("routed"))
        )

    one, other = exchanges(even)[0], exchanges(uneven)[0]
    assert uneven.work_s[other] == pytest.approx(1.6 * even.work_s[one])
    rates = uneven.flow_bytes_per_s[uneven.flow_offsets[other] : uneven.flow_offsets[other + 1]]
    moved = np.sort(rates) * uneven.work_s[other]
    balanced = even.flow_bytes_per_s[even.flow_offsets[one]] * even.work_s[one]
    cold = max((EP - 1.6) / (EP - 1), (EP - (EP - 1.6) / (EP - 1)) / (EP - 1))
    np.testing.assert_allclose(moved / balanced, [cold, 1.6])


def test_activations_of_the_busiest_rank_need_more_memory() -> None:
    """Without a capacity nothing bounds them but the tokens that there are."""
    trace = execute(job(ExpertLoad(imbalance=3.0), micro_batch=2).compiled().graph)

    assert trace.peak_bytes[0] > trace.peak_bytes[1]


def test_a_capacity_bounds_the_busiest_rank_where_software_drops_tokens() -> None:
    """What is above it is not computed; dropless software takes no notice."""
    load = ExpertLoad(imbalance=2.0, capacity=1.25)
    dropping = replace(job(load), traits={"moe_dropless": False}).compiled().graph
    even = replace(job(None), traits={"moe_dropless": False}).compiled().graph
    dropless = job(load).compiled().graph

    assert expert_flop(dropping, 0) / expert_flop(even, 0) == pytest.approx(1.25)
    assert expert_flop(dropless, 0) / expert_flop(even, 0) == pytest.approx(2.0)
    assert load.taken(experts=8, ranks=4, dropless=False).mean() == pytest.approx(
        1 - (2.0 - 1.25) / 4
    )


@given(
    load=st.one_of(
        st.builds(ExpertLoad, imbalance=st.floats(1.0, 4.0)),
        st.builds(ExpertLoad, spread=st.floats(0.01, 1.0), seed=st.integers(0, 99)),
    ),
    ranks=st.sampled_from([1, 2, 4, 8]),
)
def test_shares_add_up_to_all_tokens(load: ExpertLoad, ranks: int) -> None:
    """However they are spread."""
    tokens = load.taken(experts=8, ranks=ranks, dropless=True)

    assert tokens.mean() == pytest.approx(1.0)
    assert (tokens == load.taken(experts=8, ranks=ranks, dropless=True)).all()


@pytest.mark.parametrize("experts", ["whole", "split"])
def test_engine_and_reference_play_uneven_experts_alike(experts: str) -> None:
    """Classes with unlike figures in tasks they share."""
    options = StrategyOptions(
        ep=2,
        tp=2,
        expert_over_tensor=experts == "whole",
        expert_load=ExpertLoad(spread=0.4, seed=2),
    )
    graph = Job.of(mixture(1), options, global_batch=2).compiled().graph
    fast, slow = execute(graph), reference_events(graph)[0]

    np.testing.assert_allclose(fast.end_s, slow.end_s, rtol=1e-12)


def test_all_memory_of_uneven_experts_is_given_back() -> None:
    """On each level by itself."""
    graph = job(ExpertLoad(imbalance=2.5), recompute="full").compiled().graph
    first = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]

    for rank_class in range(2):
        mine = first == rank_class
        left = graph.alloc_bytes[mine].sum() - graph.free_bytes[mine].sum()
        assert left == pytest.approx(0.0, abs=1e-9 * graph.alloc_bytes.sum())


def test_the_number_of_classes_does_not_grow_with_replicas() -> None:
    """Hot ranks of all replicas are one class."""
    load = ExpertLoad(imbalance=1.5)
    options = StrategyOptions(dp=16, ep=EP, expert_load=load)
    many = Job.of(mixture(2), options, cluster=small_cluster(64), global_batch=64)

    assert many.compiled().graph.class_ranks.tolist() == [16, 48]


def test_no_rank_gets_more_tokens_than_there_are() -> None:
    """The largest imbalance is the number of ranks."""
    with pytest.raises(StrategyError, match="found 5, but experts are spread over 4 ranks"):
        job(ExpertLoad(imbalance=5.0)).compiled()


@pytest.mark.parametrize("imbalance", [0.5, float("nan"), float("inf")])
def test_an_imbalance_below_one_is_refused(imbalance: float) -> None:
    """The busiest has at least the mean."""
    with pytest.raises(StrategyError, match="expected 1"):
        ExpertLoad(imbalance=imbalance)
