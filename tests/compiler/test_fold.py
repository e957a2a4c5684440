"""Folding changes nothing that anyone can see: the unfolded run is the reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, cut_node, dense, mixed_cluster, mixture, small_cluster
from wattree.accounts.energy_use import step_energy
from wattree.compiler.folding.fold import distinct_rows, folded_classes
from wattree.cost import load_calibration
from wattree.cost.device_power import pool_powers
from wattree.errors import StrategyError
from wattree.graph import ExecutionGraph
from wattree.hardware import Cluster, Precision
from wattree.sim import execute
from wattree.strategy import ExpertLoad, Mesh, StrategyOptions

RELATIVE = 1e-9
#: Rules besides the usual ones; flows are counted under the first.
OTHER_RULES: tuple[dict[str, Any], ...] = (
    {"sharing": "proteus"},
    {"sharing": "none"},
    {"mutual_slowdown": False},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run shows."""

    step_s: float
    other_rules_s: tuple[float, ...]
    peaks_bytes: tuple[float, ...]
    energy_j: tuple[float, ...]
    sent_bytes: float
    classes: int


def seen(job: Job, *, fold: bool) -> Seen:
    """Play the job."""
    compiled = job.compiled(fold=fold)
    graph = compiled.graph
    trace = execute(graph)
    energy = step_energy(
        trace,
        job.cluster,
        pool_powers(job.cluster, Precision.BF16, load_calibration()),
        job.strategy.mesh.ranks,
        class_pools=compiled.class_pools,
    ).use
    return Seen(
        step_s=trace.makespan_s,
        other_rules_s=tuple(execute(graph, **rules).makespan_s for rules in OTHER_RULES),
        peaks_bytes=tuple(np.sort(np.repeat(trace.peak_bytes, graph.class_ranks)).tolist()),
        energy_j=(energy.total, energy.static, energy.dynamic, *energy.by_stage.values()),
        sent_bytes=sent_bytes(graph),
        classes=len(graph.class_ranks),
    )


def sent_bytes(graph: ExecutionGraph) -> float:
    """Return the bytes that all ranks send."""
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))
    ranks = graph.class_ranks[graph.stream_class[graph.stream_ids]]
    return float((graph.link_traffic_bytes[task] * ranks).sum())


def check_equal(job: Job) -> Seen:
    """Compare both runs; return the folded one."""
    folded, whole = seen(job, fold=True), seen(job, fold=False)
    assert folded.step_s == pytest.approx(whole.step_s, rel=RELATIVE)
    assert folded.other_rules_s == pytest.approx(whole.other_rules_s, rel=RELATIVE)
    assert folded.peaks_bytes == pytest.approx(whole.peaks_bytes, rel=RELATIVE)
    assert folded.energy_j == pytest.approx(whole.energy_j, rel=RELATIVE)
    assert folded.sent_bytes == pytest.approx(whole.sent_bytes, rel=RELATIVE)
    assert whole.classes == job.strategy.mesh.ranks
    return folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A small job in few words, for failures that can be read."""

    options: StrategyOptions
    layers: int
    experts: bool
    accumulated: int
    per_node: int
    slowdown: dict[int, float]
    axes: tuple[tuple[str, int], ...]
    family: str
    other_nodes: int  # at the end of the cluster, of other devices with fewer adapters

    def cluster(self) -> Cluster:
        """Return the cluster: nodes of one kind, or of two."""
        plain = small_cluster(self.options.ranks, per_node=self.per_node, slowdown=self.slowdown)
        if not 0 < self.other_nodes < plain.nodes:
            return plain
        nics = max(self.per_node // 2, 1)
        first = cut_node("dgx-h100", self.per_node)
        other = cut_node("dgx-a100", self.per_node, nics=nics)
        return mixed_cluster(
            (first, plain.nodes - self.other_nodes),
            (other, self.other_nodes),
            oversubscription=2.0,
            leaf_nodes=2,
            slowdown=self.slowdown,
        )

    def job(self) -> Job:
        """Return the job."""
        job = Job.of(
            mixture(self.layers) if self.experts else dense(self.layers),
            self.options,
            cluster=self.cluster(),
            global_batch=self.options.replicas * self.accumulated,
            family=self.family,
        )
        return replace(job, strategy=replace(job.strategy, mesh=Mesh(axes=self.axes)))


def loads(options: StrategyOptions) -> st.SearchStrategy[ExpertLoad | None]:
    """Return what experts may get that are spread over the ranks of `options`."""
    most = float(options.ep * (options.tp if options.parallelism.expert_over_tensor else 1))
    return st.one_of(
        st.none(),
        st.just(ExpertLoad(imbalance=min(1.5, most))),
        st.builds(ExpertLoad, spread=st.just(0.4), seed=st.integers(0, 3)),
    )


def phantoms(options: StrategyOptions) -> st.SearchStrategy[StrategyOptions]:
    """Return the options as they are, or with phantom layers."""
    plain = replace(options, sequence_parallel=False)
    changed = [
        replace(plain, phantom=True, ghosts=2),
        replace(plain, phantom=True, ghosts=2, regather=True),
        replace(plain, phantom=True, ghosts=2, variant="shared"),
    ]
    return st.sampled_from((options, options, *changed))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return any mix of axes, schedules, stragglers, nodes and places of the stages."""
    experts = draw(st.booleans())
    layers = draw(st.integers(2, 5))
    degrees = {axis: draw(st.sampled_from((1, 1, 2))) for axis in ("dp", "fsdp", "cp")}
    degrees |= {axis: draw(st.sampled_from((1, 2, 4))) for axis in ("tp", "pp")}
    degrees["ep"] = draw(st.sampled_from((1, 2))) if experts else 1  # eight experts, up to tp 4
    while math.prod(degrees.values()) > 16:
        degrees[max(degrees, key=lambda axis: degrees[axis])] //= 2
    chunks = 2 if degrees["pp"] > 1 and 2 * degrees["pp"] <= layers + 2 else 1
    shardings = ("none", "zero1", "zero2", "zero3", *(("hybrid",) if degrees["fsdp"] > 1 else ()))
    options = StrategyOptions(
        **degrees,
        sharding=draw(st.sampled_from(shardings)),
        sequence_parallel=draw(st.booleans()),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        expert_over_tensor=draw(st.booleans()),
        schedule=draw(st.sampled_from(("gpipe", "1f1b"))),
        virtual_stages=draw(st.integers(1, chunks)),
        overlap_gradients=draw(st.sampled_from((None, True, False))),
    )
    mesh = [(axis, degree) for axis, degree in degrees.items() if degree > 1]
    ranks = options.ranks
    family = draw(st.sampled_from(("megatron-core", "megatron-lm-2021", "torchtitan")))
    fused = family != "megatron-lm-2021"  # a ring needs a fused kernel
    options = replace(
        options,
        context=draw(st.sampled_from(("overlapped", "gather", "ulysses", *(["ring"] * fused)))),
        expert_load=draw(loads(options)) if experts else None,
        reduce_every_micro_batch=draw(st.sampled_from((None, True, False))),
    )
    if not experts and options.tp > 1:
        options = draw(phantoms(options))
    case = Case(
        options=options,
        layers=layers,
        experts=experts,
        accumulated=draw(st.integers(1, 4)),
        per_node=draw(st.sampled_from([n for n in (2, 4, 8, 16) if ranks % n == 0] or [1])),
        slowdown=draw(st.dictionaries(st.integers(0, ranks - 1), st.just(1.5), max_size=2)),
        axes=tuple(draw(st.permutations(mesh))),
        family=family,
        other_nodes=draw(st.integers(0, 3)),
    )
    if options.expert_load is not None:  # refused together with nodes of another kind
        case = replace(case, other_nodes=0)
    return case


@settings(max_examples=40)
@given(case=cases())
def test_folding_changes_neither_time_nor_memory_nor_energy(case: Case) -> None:
    """A class stands for ranks that do the same in the same place."""
    check_equal(case.job())


@pytest.mark.parametrize("ranks", [4, 16])
def test_equal_ranks_are_one_class(ranks: int) -> None:
    """Without stages or stragglers everybody does the same."""
    job = Job.of(dense(), StrategyOptions(dp=ranks // 2, tp=2, sharding="zero1"))

    assert seen(job, fold=True).classes == 1


def test_each_stage_is_one_class_where_its_transfers_go_alike() -> None:
    """Four stages of four ranks on two nodes: replicas do not differ."""
    job = Job.of(dense(4), StrategyOptions(dp=2, tp=2, pp=4), cluster=small_cluster(16))

    assert check_equal(job).classes == 4


def test_a_straggler_is_a_class_of_its_own_and_slows_those_it_works_with() -> None:
    """Its tensor group waits for it in every layer, its replicas only in the reduction."""
    slow = small_cluster(8, slowdown={5: 2.0})
    even = Job.of(dense(), StrategyOptions(dp=4, tp=2))
    uneven = replace(even, cluster=slow)

    folded = check_equal(uneven)

    assert folded.classes == 4  # the straggler, its tensor peer, the replicas of either
    assert folded.step_s > seen(even, fold=True).step_s


def test_replicas_whose_stages_lie_apart_are_told_apart() -> None:
    """Pipelines of six stages on nodes of eight: some send to a neighbour, some across nodes."""
    options = StrategyOptions(dp=2, pp=6, tp=2)
    job = Job.of(dense(6), options, cluster=small_cluster(24, per_node=8))
    inside = Mesh(axes=(("dp", 2), ("pp", 6), ("tp", 2)))
    job = replace(job, strategy=replace(job.strategy, mesh=inside))

    assert check_equal(job).classes > 6


def test_the_number_of_classes_does_not_grow_with_replicas() -> None:
    """This is what makes large jobs affordable."""
    few, many = (
        Job.of(
            dense(4),
            StrategyOptions(dp=dp, tp=2, pp=2, sharding="zero1"),
            cluster=small_cluster(4 * dp),
            global_batch=2 * dp,
        )
        for dp in (2, 64)
    )

    assert seen(few, fold=True).classes == seen(many, fold=True).classes == 2


def test_more_tasks_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the system kills explains nothing."""
    monkeypatch.setattr("wattree.compiler.folding.task_instances._MOST_INSTANCES", 100)

    with pytest.raises(StrategyError, match="8 classes of ranks that differ make"):
        Job.of(dense(), StrategyOptions(dp=8), cluster=small_cluster(8)).compiled(fold=False)


def test_refinement_splits_a_chain_from_its_ends() -> None:
    """Ranks that look alike differ once what they are joined to differs."""
    pairs = np.array([[0, 1], [2, 3], [4, 5]])
    chain = np.array([0, 2, 1, 4, 3, 5])  # 1 and 2 talk, 3 and 4 talk

    classes = folded_classes(np.zeros(6, np.int64), [pairs], [chain])

    assert classes.tolist() == [0, 1, 2, 2, 1, 0]


@given(st.integers(0, 5), st.lists(st.integers(0, 2**40), min_size=1, max_size=30))
def test_distinct_rows_are_those_of_numpy(width: int, values: list[int]) -> None:
    """In the same order, on which numbers of groups rest."""
    rows = np.resize(np.array(values), (len(values), width))

    first, number = distinct_rows(rows)
    _, places, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)

    assert first.tolist() == places.tolist()
    assert number.tolist() == numbers.ravel().tolist()


def test_a_group_of_millions_is_one_row() -> None:
    """Not as many fields, which took minutes for the million nodes that a job may have."""
    assert [each.tolist() for each in distinct_rows(np.zeros((1, 8_000_000), dtype=int))] == [
        [0],
        [0],
    ]
