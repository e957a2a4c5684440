"""Any mix of settings that move data: one result folded and unfolded, by both executors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, mixture, small_cluster
from tests.compiler.test_fold import check_equal
from tests.sim.reference import execute_reference
from wattree.accounts.live import live_tensors
from wattree.graph import ExecutionGraph
from wattree.hardware import Cluster
from wattree.hardware.node import ACCESS, MemoryTier
from wattree.sim import execute
from wattree.strategy import (
    CONTEXTS,
    IN_LINE,
    ExpertLoad,
    Offload,
    Prefetch,
    StrategyOptions,
    Traffic,
)
from wattree.strategy.traffic import TIERS

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "zb-v", "dualpipev", "dualpipe")


def with_tiers(cluster: Cluster, access: str = "copy", **changes: float) -> Cluster:
    """Return the cluster with memory behind its hosts, and two devices to a PCIe switch."""
    figures = {"memory_bytes": 1e12, "bandwidth_bytes_per_s": 5e10, "latency_s": 1e-6, **changes}
    node = cluster.node
    node = replace(
        node,
        cxl=MemoryTier(pooled=False, access=access, **figures),
        host=replace(node.host, memory_bytes_per_s=6e11),
        scale_up=replace(node.scale_up, devices_per_switch=min(2, node.devices)),
    )
    return replace(cluster, node=node)


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Return any mix of settings."""
    tier = st.sampled_from((None, *TIERS))
    optimizer = draw(tier)
    layers = draw(st.integers(0, 3))
    depth = st.integers(0, 3)
    return Traffic(
        in_line=tuple(draw(st.lists(st.sampled_from(IN_LINE), unique=True, max_size=3))),
        overlap_pipeline=draw(st.sampled_from((None, True, False))),
        overlap_optimizer=draw(st.booleans()),
        prefetch=draw(
            st.none()
            | st.builds(
                Prefetch,
                forward=depth,
                backward=depth,
                gathers_in_flight=st.none() | st.integers(1, 3),
                after_reductions=st.booleans(),
            )
        ),
        reshard_after_forward=draw(st.booleans()),
        gradient_bucket_bytes=draw(st.none() | st.sampled_from((1.0, 3e4, 1e9))),
        parameter_bucket_bytes=draw(st.none() | st.sampled_from((1.0, 3e4, 1e9))),
        offload=Offload(
            optimizer=optimizer,
            parameters=draw(tier) if optimizer else None,
            activations=draw(st.sampled_from(TIERS)) if layers else None,
            layers=layers,
            prefetch=draw(depth),
        ),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Return small jobs with any mix of settings."""
    experts = draw(st.booleans())
    degrees = {axis: draw(st.sampled_from((1, 2))) for axis in ("dp", "fsdp", "tp", "pp")}
    degrees["ep"] = draw(st.sampled_from((1, 2))) if experts else 1
    degrees["cp"] = draw(st.sampled_from((1, 2))) if math.prod(degrees.values()) < 8 else 1
    sharding = draw(st.sampled_from(("none", "zero1", "zero2", "zero3")))
    traffic = draw(traffics())
    schedule = draw(st.sampled_from(SCHEDULES))
    if schedule == "dualpipe":
        offload = replace(traffic.offload, optimizer=None, parameters=None)
        traffic = replace(traffic, overlap_optimizer=False, offload=offload)
    family = draw(st.sampled_from(("megatron-core", "megatron-lm-2021", "torchtitan")))
    ways = [way for way in CONTEXTS if way != "ring" or family != "megatron-lm-2021"]
    options = StrategyOptions(
        **degrees,
        sharding=sharding,
        context=draw(st.sampled_from(ways)),
        expert_load=draw(st.sampled_from((None, ExpertLoad(imbalance=1.5)))) if experts else None,
        reduce_every_micro_batch=draw(st.sampled_from((None, True, False))),
        tensor_pieces=draw(st.sampled_from((None, 2))),
        recompute=draw(st.sampled_from(("none", "full"))),
        sequence_parallel=degrees["tp"] > 1 and draw(st.booleans()),
        schedule=schedule if degrees["pp"] > 1 else "1f1b",
        traffic=traffic,
    )
    ranks = options.ranks
    per_node = draw(st.sampled_from([n for n in (2, 4, 8) if ranks % n == 0] or [1]))
    accumulated = draw(st.integers(1, 3)) if options.pp == 1 else 4
    return Job.of(
        mixture(4) if experts else dense(4),
        options,
        cluster=with_tiers(small_cluster(ranks, per_node=per_node), draw(st.sampled_from(ACCESS))),
        global_batch=options.replicas * accumulated,
        family=family,
    )


@settings(max_examples=20)
@given(job=jobs())
def test_folding_changes_nothing_whatever_moves(job: Job) -> None:
    """Ranks that share a host or a switch are distinguished only as far as they differ."""
    check_equal(job)


@settings(max_examples=15)
@given(job=jobs())
def test_both_executors_play_it_alike(job: Job) -> None:
    """Copies and in-line collectives are tasks as any other."""
    graph = job.compiled().graph

    fast, slow = execute(graph), execute_reference(graph)

    assert np.array_equal(fast.end_s, slow.end_s)
    assert np.array_equal(fast.peak_bytes, slow.peak_bytes)


def balance(graph: ExecutionGraph) -> np.ndarray:
    """Return what is taken and not given back, by rank class and category. [B]"""
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))
    owner = graph.stream_class[graph.stream_ids]
    left = np.zeros((len(graph.class_ranks), len(graph.category_names)))
    moved = (graph.alloc_bytes - graph.free_bytes)[task]
    np.add.at(left, (owner, graph.memory_category[task]), moved)
    return left


@settings(max_examples=20)
@given(job=jobs())
def test_what_is_taken_is_given_back(job: Job) -> None:
    """Each category by itself: gradients, gathered parameters, activations wherever they wait."""
    graph = job.compiled().graph

    scale = max(graph.alloc_bytes.sum(), 1.0)

    assert balance(graph) / scale == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=10)
@given(job=jobs())
def test_merged_computation_takes_the_same_time(job: Job) -> None:
    """Runs of computation between communication are one task where no one looks."""
    whole, merged = (execute(job.compiled(detail=detail).graph) for detail in (True, False))

    assert merged.makespan_s == pytest.approx(whole.makespan_s, rel=1e-9)


@settings(max_examples=15)
@given(job=jobs())
def test_what_is_alive_adds_up_to_the_peak_whatever_moves(job: Job) -> None:
    """Of every class, those that hold popular experts and those that do not."""
    compiled = job.compiled()
    trace = execute(compiled.graph)
    for rank_class, peak_bytes in enumerate(trace.peak_bytes):
        alive = live_tensors(trace, compiled.ledger, rank_class)
        assert sum(row.bytes for row in alive) == pytest.approx(peak_bytes, rel=1e-9)
