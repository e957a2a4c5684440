"""Compiled pipelines against closed forms: time, memory, work, and awkward cuts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, small_cluster
from wattree.cost import LinkRates, load_calibration, software_family
from wattree.cost.rates import Rates, rates_of
from wattree.graph import ModelGraph, TaskKind
from wattree.hardware import Precision
from wattree.sim import execute
from wattree.strategy import StrategyOptions, chunk_layers

FAMILY = "megatron-core"


def free_links() -> Rates:
    """Return the rates of a cluster whose links cost nothing and whose host is never awaited."""
    rates = rates_of(
        small_cluster(8, free_links=True),
        software_family(FAMILY),
        Precision.BF16,
        load_calibration(),
    )
    links = LinkRates(
        scale_up_bytes_per_s=1e30,
        scale_up_reduce_bytes_per_s=1e30,
        adapter_bytes_per_s=1e30,
        alpha_s=0.0,
        alpha_network_s=0.0,
    )
    return replace(rates, links=links)


def layers_only(layers: int) -> ModelGraph:
    """Return a stack of equal layers: no embedding, no head, so that stages can be equal."""
    model = dense(layers)
    return replace(model, instances=tuple(i for i in model.instances if i.is_layer))


def step_s(options: StrategyOptions, layers: int, micro_batches: int) -> float:
    """Return the step time of equal layers, links free, one replica, always on the same node."""
    job = Job.of(
        layers_only(layers),
        options,
        cluster=small_cluster(24, per_node=24),
        global_batch=micro_batches,
        rates=free_links(),
    )
    return execute(job.compiled().graph).makespan_s


def pass_and_rest_s(layers: int) -> tuple[float, float]:
    """Return forward plus backward of one micro-batch through a stage, and what is left."""
    one, two = (step_s(StrategyOptions(), layers, m) for m in (1, 2))
    return two - one, 2 * one - two


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 4), (4, 7), (8, 16)])
def test_a_step_takes_m_plus_p_minus_1_passes(
    schedule: str, stages: int, micro_batches: int
) -> None:
    """With equal stages and free transfers: bubble (p - 1) / m of the ideal time."""
    one_pass_s, rest_s = pass_and_rest_s(1)
    expected = (micro_batches + stages - 1) * one_pass_s + rest_s

    found = step_s(StrategyOptions(pp=stages, schedule=schedule), stages, micro_batches)

    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 2), (4, 3)])
def test_interleaving_shrinks_the_bubble_by_its_chunks(stages: int, chunks: int) -> None:
    """A chunk is a v-th of the stage: m passes through the stage and p - 1 through a chunk."""
    micro_batches = 2 * stages
    chunk_pass_s, _ = pass_and_rest_s(1)
    stage_pass_s, rest_s = pass_and_rest_s(chunks)
    expected = micro_batches * stage_pass_s + (stages - 1) * chunk_pass_s + rest_s

    options = StrategyOptions(pp=stages, virtual_stages=chunks)

    assert step_s(options, stages * chunks, micro_batches) == pytest.approx(expected, rel=1e-9)


@settings(max_examples=25)
@given(stages=st.integers(2, 4), chunks=st.integers(1, 3), micro_batches=st.integers(1, 9))
def test_any_number_of_micro_batches_is_played_to_its_end(
    stages: int, chunks: int, micro_batches: int
) -> None:
    """No deadlock, and never more than 1F1B takes with a stage as one chunk."""
    stage_pass_s, rest_s = pass_and_rest_s(chunks)
    options = StrategyOptions(pp=stages, virtual_stages=chunks)

    found = step_s(options, stages * chunks, micro_batches)

    assert found >= (micro_batches * stage_pass_s + rest_s) * (1 - 1e-9)
    assert found <= ((micro_batches + stages - 1) * stage_pass_s + rest_s) * (1 + 1e-9)


def peaks_above_residents(schedule: str, micro_batches: int) -> np.ndarray:
    """Return the activations' peak of each of four stages."""
    options = StrategyOptions(pp=4, schedule=schedule)
    graph = Job.of(layers_only(4), options, global_batch=micro_batches).compiled().graph
    return execute(graph).peak_bytes - graph.static_bytes


def test_1f1b_keeps_no_more_activations_for_more_micro_batches() -> None:
    """At most p - s micro-batches are in flight on stage s."""
    few, many = peaks_above_residents("1f1b", 4), peaks_above_residents("1f1b", 16)

    assert many == pytest.approx(few, rel=1e-12)
    assert np.all(np.diff(many) < 0)  # the first stage keeps most


def test_gpipe_keeps_the_activations_of_every_micro_batch() -> None:
    """The peak grows by the same amount with each; 1F1B's last stage holds that amount once."""
    peaks = [peaks_above_residents("gpipe", m) for m in (4, 5, 6)]

    assert peaks[2] - peaks[1] == pytest.approx(peaks[1] - peaks[0], rel=1e-9)
    assert np.all(peaks[1] > peaks[0])


def total_flop(options: StrategyOptions, **job: object) -> float:
    """Return the matrix FLOP of all ranks."""
    graph = Job.of(dense(4), options, **job).compiled().graph  # type: ignore[arg-type]
    owner = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
    return float((graph.flop * graph.class_ranks[owner]).sum())


@pytest.mark.parametrize(
    "options",
    [
        StrategyOptions(pp=4),
        StrategyOptions(pp=4, schedule="gpipe"),
        StrategyOptions(pp=2, virtual_stages=2),
        StrategyOptions(pp=4, stage_layers=(0, 2, 2, 0)),
        StrategyOptions(pp=2, virtual_stages=2, stage_layers=(0, 3, 1, 0)),
        StrategyOptions(pp=2, dp=2, tp=2),
    ],
    ids=str,
)
def test_a_pipeline_does_the_work_of_one_device(options: StrategyOptions) -> None:
    """Cuts move work between ranks; they neither add nor lose any."""
    assert total_flop(options) == pytest.approx(total_flop(StrategyOptions()), rel=1e-12)


def test_chunks_without_layers_hold_the_embedding_and_the_loss_alone() -> None:
    """Llama 3 405B was cut so: the ends of the pipeline have fewer layers."""
    job = Job.of(dense(4), StrategyOptions(pp=4, stage_layers=(0, 2, 2, 0)))
    graph = job.compiled().graph
    owner = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
    compute = graph.kind == TaskKind.COMPUTE

    names = [{graph.names[n] for n in graph.name_ids[compute & (owner == s)]} for s in (0, 3)]

    assert names == [
        {"embedding.tokens", "optimizer"},
        {"final_norm", "logits", "loss", "optimizer"},
    ]
    assert execute(graph).makespan_s > 0


def test_every_stage_but_the_last_hands_each_micro_batch_on() -> None:
    """There are p - 1 transfers forward and as many back, each of b * s * h."""
    graph = Job.of(dense(4), StrategyOptions(pp=4), global_batch=6).compiled().graph
    transfers = graph.kind == TaskKind.TRANSFER

    assert int(transfers.sum()) == 2 * 3 * 6
    assert set(graph.link_traffic_bytes[transfers]) == {1 * 64 * 32 * 2.0}


@given(layers=st.integers(1, 200), chunks=st.integers(1, 64))
def test_layers_are_dealt_out_evenly_and_the_ends_get_less(layers: int, chunks: int) -> None:
    """All are dealt, counts differ by one at most, and no inner chunk has less than an end."""
    counts = chunk_layers(layers, chunks)

    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1
    assert min(counts[0], counts[-1]) == min(counts)


def test_llama_405b_is_cut_as_its_paper_says() -> None:
    """Llama 3 (2024), §3.3.2: 126 layers, one fewer on the first and on the last chunk."""
    counts = chunk_layers(126, 128)

    assert (counts[0], counts[-1], set(counts[1:-1])) == (0, 0, {1})


def test_gradients_of_a_small_stage_leave_in_one_bucket() -> None:
    """Buckets are of 25 MiB (PyTorch DDP), far more than two small layers and a head."""
    graph = Job.of(dense(4), StrategyOptions(pp=2, dp=2), global_batch=2).compiled().graph
    owner = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]

    reductions = graph.name_ids == graph.names.index("gradients.reduce")

    assert [int((reductions & (owner == stage)).sum()) for stage in (0, 1)] == [1, 1]
