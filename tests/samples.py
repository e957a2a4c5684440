"""A result, a plan and a trace with round numbers, for tests of what shows or writes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from wattree.graph import ExecutionGraph, Phase, StageLabel, StreamKind, TaskKind
from wattree.search.plan_result import Plan, RankedStrategy
from wattree.strategy import StrategyOptions
from wattree.trace import (
    EnergyUse,
    Evidence,
    MemoryFix,
    MemoryUse,
    Result,
    SimulationSize,
    TimeParts,
    Trace,
)

GIB = 2.0**30
POOLED = Evidence(
    evidence="pooled", share={"pooled": 0.75, "datasheet": 0.25}, note="no calibration"
)


def sample_result(**changes: Any) -> Result:
    """Return a result whose parts add up; not a prediction of anything."""
    result = Result(
        model="llama-3.1-8b",
        cluster="1 × dgx-h100",
        strategy={
            "mesh": {"dp": 4, "tp": 2},
            "schedule": {"name": "1f1b", "micro_batches": 32, "virtual_stages": 1},
            "tree": {"": {"compute": {"batch": ["dp"]}}},
            "preset": ["zero1", "megatron"],
        },
        ranks=8,
        step_time_s=16.0,
        samples_per_s=8.0,
        tokens_per_s=65_536.0,
        tokens_per_s_per_device=8_192.0,
        mfu=0.45,
        hfu=0.5,
        mfu_precision="bf16",
        model_flop_per_step=5.7e16,
        parameters=8_030_261_248,
        memory=MemoryUse(
            peak_bytes=60 * GIB,
            capacity_bytes=80 * GIB,
            fits=True,
            by_category={
                "parameters": 8 * GIB,
                "optimizer_state": 12 * GIB,
                "activations": 40 * GIB,
            },
        ),
        time_s=TimeParts(
            compute=12.0,
            recomputation=1.0,
            exposed_communication=2.0,
            exposed_materials=0.0,
            bubble=0.0,
            optimizer=0.5,
            other=0.5,
        ),
        energy_j=EnergyUse(
            total=90_000.0,
            by_stage={"materials": 1_000.0, "computing": 80_000.0, "communicating": 9_000.0},
            static=30_000.0,
            dynamic=60_000.0,
        ),
        average_power_w=5_000.0,
        pue=1.125,
        peak_power_w=6_500.0,
        cost_usd=0.25,
        carbon_gco2e=12.0,
        provenance={"step_time_s": POOLED},
        simulation=SimulationSize(
            tasks=12_345, events=24_690, rank_classes=1, compile_s=0.2, run_s=0.01
        ),
        assumed=("The site is world-average.",),
    )
    return replace(result, **changes)


def too_large() -> MemoryUse:
    """Return memory that does not fit, with two fixes."""
    return MemoryUse(
        peak_bytes=96 * GIB,
        capacity_bytes=80 * GIB,
        fits=False,
        by_category={"parameters": 16 * GIB, "activations": 80 * GIB},
        fixes=(
            MemoryFix(change="recompute: full", peak_bytes=40 * GIB, step_time_s=19.5),
            MemoryFix(change="micro_batch: 1", peak_bytes=70 * GIB, step_time_s=21.0),
        ),
    )


def sample_plan(**changes: Any) -> Plan:
    """Return a plan of three strategies."""
    ranked = tuple(
        RankedStrategy(
            options=StrategyOptions(dp=8 // tp, tp=tp, sharding="zero1"),
            label=label,
            result=sample_result(
                step_time_s=step_time_s,
                tokens_per_s=1_048_576 / step_time_s,
                mfu=7.2 / step_time_s,
                cost_usd=step_time_s / 64,
            ),
        )
        for tp, step_time_s, label in (
            (2, 16.0, "dp 4 × tp 2, zero1, sequence parallel, micro-batch 1"),
            (1, 16.8, "dp 8, zero3, micro-batch 1, full recomputation"),
            (4, 20.25, "dp 2 × tp 4, zero1, micro-batch 2"),
        )
    )
    plan = Plan(
        candidates=12_480,
        simulated=40,
        feasible=812,
        wall_s=1.75,
        objective="time",
        best=ranked[0],
        ranked=ranked,
        explanation=(
            "It is 5.0 % faster than the runner-up: full recomputation would add 2.1 s of compute.",
            "Against plain data parallelism (does not fit): parameters alone take 112 GiB.",
        ),
        rejected={"does not fit in memory": 11_500, "heads do not divide": 168},
    )
    return replace(plan, **changes)


def sample_trace() -> Trace:
    """Return two rank classes that compute, then share an all-reduce; memory rises and falls."""
    zeros, computing = np.zeros(4), StageLabel.COMPUTING
    graph = ExecutionGraph(
        kind=np.array(
            [TaskKind.COMPUTE, TaskKind.COMPUTE, TaskKind.COLLECTIVE, TaskKind.COMPUTE], np.int8
        ),
        latency_s=zeros,
        work_s=np.array([1.0, 2.0, 0.5, 0.25]),
        stream_offsets=np.array([0, 1, 2, 4, 5]),
        stream_ids=np.array([0, 2, 1, 3, 0]),
        successor_offsets=np.array([0, 1, 2, 3, 3]),
        successors=np.array([2, 2, 3]),
        flow_offsets=np.array([0, 0, 0, 1, 1]),
        flow_links=np.array([0]),
        flow_bytes_per_s=np.array([1e9]),
        overlaps=np.array([False, False, True, False]),
        alloc_bytes=np.array([100.0, 200.0, 0.0, 0.0]),
        free_bytes=np.array([0.0, 200.0, 0.0, 100.0]),
        stream_class=np.array([0, 0, 1, 1]),
        stream_kind=np.array([StreamKind.COMPUTE, StreamKind.COMMUNICATION] * 2, np.int8),
        class_ranks=np.array([7, 1]),
        class_names=("stage 0", "stage 0, slow"),
        static_bytes=np.array([1000.0, 1000.0]),
        link_bandwidth_bytes_per_s=np.array([1e9]),
        link_names=("nvlink",),
        compute_rate_while_communicating=1.0,
        communication_rate_while_computing=1.0,
        name_ids=np.array([0, 0, 1, 2]),
        names=("layers.0.mlp.up", 'all-reduce "dp"', "adamw"),
        phase=np.array(
            [Phase.FORWARD, Phase.FORWARD, Phase.SYNCHRONIZATION, Phase.OPTIMIZER], np.int8
        ),
        stage=np.array([computing, computing, StageLabel.COMMUNICATING, computing], np.int8),
        micro_batch=np.array([0, 0, -1, -1]),
        flop=np.array([1e12, 1e12, 0.0, 0.0]),
        memory_traffic_bytes=np.array([1e9, 1e9, 0.0, 5e8]),
        link_traffic_bytes=np.array([0.0, 0.0, 5e8, 0.0]),
        memory_category=np.array([1, 1, 0, 1], np.int8),
        category_names=("parameters", "activations"),
        static_by_category=np.array([[1000.0, 0.0], [1000.0, 0.0]]),
    )
    return Trace(
        graph=graph,
        start_s=np.array([0.0, 0.0, 2.0, 2.5]),
        end_s=np.array([1.0, 2.0, 2.5, 2.75]),
        peak_bytes=np.array([1100.0, 1200.0]),
        peak_task=np.array([0, 1]),
        events=8,
    )
