"""Gradients that come with backward and go with the update, played against a plain timeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import HIDDEN, Job, dense, mixture
from tests.search.jobs import setting
from wattree.closed_form.block_memory import block_memory
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost.families import SOFTWARE
from wattree.lowering.optimizer_state import update_kinds
from wattree.lowering.storage import Storage, block_storage
from wattree.lowering.streams import CATEGORIES
from wattree.predict import predicted
from wattree.sim import execute
from wattree.strategy import StrategyOptions

GRADIENTS, GATHERED = (CATEGORIES.index(name) for name in ("gradients", "gathered"))
EAGER = "torchtitan"


def storages(job: Job) -> dict[str, Storage]:
    """Return block → what its parameters take on a rank."""
    program, software = job.program(), job.software
    state = update_kinds(job.optimizer, software)
    scale = job.scale(program)
    return {p.block: block_storage(p, scale, software, state) for p in program.programs}


def timeline(job: Job, micro_batches: int) -> float:
    """Return the peak of a step on one device, block by block. [B]

    Micro-batches go forward and backward one after another. What a block has of gradients is taken
    when it has run backward for the first time.
    """
    stored = storages(job)
    needs = {c.program.block: block_memory(c) for c in job.compiled().costs}
    program = job.program()
    order = [program.programs[number].block for number in program.instances]
    level = 0.0
    for block in order:
        own = stored[block]
        level += float(own.parameters[0] + own.optimizer[0] + own.lasting_gradients[0])
    peak = level
    for micro_batch in range(micro_batches):
        for block in order:
            saved, forward, *_ = (float(each[0]) for each in needs[block])
            level += saved
            peak = max(peak, level + forward)
        for block in reversed(order):
            saved, _, backward, _ = (float(each[0]) for each in needs[block])
            peak = max(peak, level + backward)
            level -= saved
            if micro_batch == 0:
                level += float(stored[block].gradients[0] - stored[block].lasting_gradients[0])
            peak = max(peak, level)
    return peak


@settings(max_examples=25)
@given(
    layers=st.integers(1, 5),
    micro_batches=st.integers(1, 3),
    samples=st.sampled_from([1, 4, 32]),
    experts=st.booleans(),
    recompute=st.sampled_from(["none", "full", "selective"]),
    changes=st.fixed_dictionaries(
        {"tied_embedding": st.booleans(), "vocab": st.sampled_from([16, 256, 4096])}
    ),
    keeps=st.booleans(),
)
def test_a_step_peaks_where_a_plain_timeline_does(
    *,
    layers: int,
    micro_batches: int,
    samples: int,
    experts: bool,
    recompute: str,
    changes: dict[str, Any],
    keeps: bool,
) -> None:
    """At the logits, at the end of backward, or between, with and without accumulation."""
    model = (mixture if experts else dense)(layers, **changes)
    job = Job.of(
        model,
        StrategyOptions(micro_batch=samples, recompute=recompute),
        global_batch=samples * micro_batches,
        family=EAGER,
        traits={"keeps_gradients": keeps},
    )

    (peak_bytes,) = execute(job.compiled().graph).peak_bytes

    assert peak_bytes == pytest.approx(timeline(job, micro_batches), rel=1e-9)


def held(options: StrategyOptions, **traits: object) -> tuple[float, float]:
    """Return the gradients that a rank holds all the time, and those that come and go. [B]"""
    job = Job.of(dense(), options, global_batch=16, family=EAGER, traits=traits)
    graph = job.compiled(fold=False).graph
    mine = graph.stream_class[graph.stream_ids] == 0
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))[mine]
    taken = graph.alloc_bytes[task][graph.memory_category[task] == GRADIENTS].sum()
    return float(graph.static_by_category[0, GRADIENTS]), float(taken)


def test_replicas_keep_the_memory_of_gradients_that_they_reduce() -> None:
    """DDP makes its buckets once; memory of the stream that reduces shards serves nothing else."""
    alone, replicas = held(StrategyOptions()), held(StrategyOptions(dp=2))
    sharded = held(StrategyOptions(dp=2, sharding="zero3", reduce_every_micro_batch=False))
    kept = held(StrategyOptions(), keeps_gradients=True)

    assert alone[0] == replicas[1] == sharded[1] == kept[1] == 0.0
    assert alone[1] == sharded[0] == replicas[0] == kept[0] > 0.0


@pytest.mark.parametrize("resharded", [True, False])
def test_a_compiler_gathers_one_weight_after_the_other(*, resharded: bool) -> None:
    """As XLA does: of a layer, a third is gathered at once, unless all stays until backward."""
    options = StrategyOptions(dp=2, sharding="zero3", reshard_after_forward=resharded)
    taken, peaks = [], []
    for by_tensor in (False, True):
        traits = {"gathers_tensors": by_tensor}
        job = Job.of(dense(), options, global_batch=16, family="maxtext", traits=traits)
        graph = job.compiled(fold=False).graph
        sizes = graph.alloc_bytes[graph.memory_category == GATHERED]
        taken.append(sizes[sizes > 0])
        model = setting(model="llama-2-7b", node="dgx-h100", batch=16, sequence=64)
        model = replace(model, software=replace(SOFTWARE["maxtext"], **traits))
        executed = predicted(model, options, detail=False).peak.tensors
        estimated = estimate(model, options, Degrees.of([options], 16)).tensor_bytes[0]
        peaks.append((executed, estimated))

    shares = taken[1] / taken[0]
    assert shares.min() == pytest.approx(1 / 3 if resharded else 1.0, rel=0.02)
    assert shares.max() == 1.0  # the table of words is one
    for executed, estimated in peaks:
        assert estimated == pytest.approx(executed, rel=0.01)
    assert (peaks[1][0] < peaks[0][0]) == resharded


def test_gates_of_experts_are_weights_of_their_own() -> None:
    """One product computes a gate and what it gates, in two weights: a third each."""
    program = Job.of(mixture(experts=4, top_k=2), StrategyOptions(dp=2, sharding="zero3")).program()
    (block,) = (each for each in program.programs if each.block == "moe_layer")
    group = max(block.parameters, key=lambda each: float(each.elements.coefficient))
    experts = 3 * 4 * HIDDEN * 4 * HIDDEN

    assert float(group.elements.coefficient) >= experts
    assert group.largest_share * float(group.elements.coefficient) == pytest.approx(experts / 3)


def test_a_tied_table_has_a_gradient_from_each_of_its_uses() -> None:
    """Autograd adds up those of the logits and of the lookup when both are there."""
    tied, own = (
        storages(Job.of(dense(tied_embedding=tied), StrategyOptions(), family=EAGER))
        for tied in (True, False)
    )

    assert tied["head"].parameters[0] < own["head"].parameters[0]
    assert tied["head"].gradients[0] == own["head"].gradients[0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1"])
@pytest.mark.parametrize("micro_batches", [2, 4, 16])
def test_both_forms_agree_where_few_micro_batches_leave_no_time_to_accumulate(
    schedule: str, micro_batches: int
) -> None:
    """All forwards may come first; then no gradient is there at the fullest moment."""
    job = setting(model="llama-3.2-1b", node="dgx-h100", batch=2 * micro_batches, sequence=1024)
    job = replace(job, software=SOFTWARE[EAGER])
    virtual = 2 if schedule == "interleaved" else 1
    options = StrategyOptions(pp=4, tp=2, micro_batch=2, schedule=schedule, virtual_stages=virtual)

    estimated = estimate(job, options, Degrees.of([options], 2 * micro_batches))
    executed = predicted(job, options, detail=False)

    tolerance = {"gpipe": 1e-3, "1f1b": 1e-3}.get(schedule, 0.05)
    assert estimated.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=tolerance)
