"""Gradient accumulation without reductions, repeated collectives, and products cut in pieces."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.compiler.jobs import Job, dense, mixture, moved_bytes
from wattree.cost import load_calibration, software_family
from wattree.cost.rates import rates_of
from wattree.graph import ExecutionGraph, ModelGraph, TaskKind
from wattree.hardware import Precision
from wattree.lowering.streams import CATEGORIES
from wattree.sim import execute
from wattree.strategy import StrategyOptions

MICRO_BATCHES = 4


def accumulated(model: ModelGraph | None = None, **options: object) -> ExecutionGraph:
    """Return a step of four micro-batches over four replicas."""
    chosen = StrategyOptions(dp=4, **options)  # type: ignore[arg-type]
    own = {"traits": {"placeholder_gradients": False}, "global_batch": 4 * MICRO_BATCHES}
    return Job.of(model or dense(), chosen, **own).compiled().graph  # type: ignore[arg-type]


def reduced_bytes(graph: ExecutionGraph) -> float:
    """Return what a rank sends to reduce gradients in a step."""
    return moved_bytes(graph, "gradients.reduce")


def gradient_bytes(graph: ExecutionGraph) -> float:
    """Return the gradients that a rank holds."""
    return float(graph.static_by_category[0, CATEGORIES.index("gradients")])


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_sharded_gradients_leave_after_each_micro_batch_unless_told_not_to(sharding: str) -> None:
    """PyTorch's FSDP reduces every time; under `no_sync` once, for gradients kept whole.

    torch.distributed.fsdp, `FullyShardedDataParallel.no_sync`: "this likely results in higher
    memory usage because FSDP will accumulate the full model gradients (instead of gradient
    shards) until the eventual sync".
    """
    usual, once = (
        accumulated(sharding=sharding, reduce_every_micro_batch=often) for often in (None, False)
    )

    assert reduced_bytes(usual) == pytest.approx(MICRO_BATCHES * reduced_bytes(once))
    assert gradient_bytes(once) == pytest.approx(4 * gradient_bytes(usual))
    assert (execute(once).peak_bytes > execute(usual).peak_bytes).all()


@pytest.mark.parametrize("sharding", ["zero2", "zero3", "hybrid"])
@pytest.mark.parametrize("family", ["torchtitan", "pytorch", "megatron-core"])
def test_pipelines_of_fsdp2_reduce_once_after_the_last_backward(family: str, sharding: str) -> None:
    """`torch.distributed.pipelining` turns off what FSDP2 does after each backward.

    Until a stage has run its last, gradients are whole; nothing hides what then reduces them.
    """
    replicas = {"dp": 2, "fsdp": 2} if sharding == "hybrid" else {"dp": 4}
    graphs = [
        Job.of(
            dense(),
            StrategyOptions(**replicas, pp=2, sharding=sharding, reduce_every_micro_batch=often),
            global_batch=4 * MICRO_BATCHES,
            family=family,
            traits={"placeholder_gradients": False},
        )
        .compiled()
        .graph
        for often in (None, True)
    ]
    reduced, held = (list(map(of, graphs)) for of in (reduced_bytes, gradient_bytes))
    times = 1 if family == "megatron-core" else MICRO_BATCHES

    assert reduced[1] == pytest.approx(times * reduced[0])
    assert (held[0] > held[1]) == (family != "megatron-core")


def test_parameters_are_gathered_for_every_micro_batch_all_the_same() -> None:
    """Only gradients wait: parameters of FSDP are let go after each use."""
    gathered = [
        moved_bytes(
            accumulated(sharding="zero3", reduce_every_micro_batch=often), "parameters.gather"
        )
        for often in (None, False)
    ]

    assert gathered[0] == pytest.approx(gathered[1])


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_whole_gradients_leave_once_unless_told_to(sharding: str) -> None:
    """Without `no_sync`, PyTorch's DDP reduces in the backward of every micro-batch."""
    usual, often = (
        accumulated(sharding=sharding, reduce_every_micro_batch=choice) for choice in (None, True)
    )

    assert reduced_bytes(often) == pytest.approx(MICRO_BATCHES * reduced_bytes(usual))
    assert gradient_bytes(often) == gradient_bytes(usual)
    assert execute(often).makespan_s > execute(usual).makespan_s


@pytest.mark.parametrize("often", [None, "true", "false"])
def test_reductions_of_one_micro_batch_do_not_depend_on_the_choice(often: str | None) -> None:
    """The last is the only one."""
    choice = None if often is None else often == "true"
    options = StrategyOptions(dp=4, sharding="zero2", reduce_every_micro_batch=choice)
    graph = Job.of(dense(), options, global_batch=4).compiled().graph
    plain = Job.of(dense(), StrategyOptions(dp=4, sharding="zero2"), global_batch=4).compiled()

    assert reduced_bytes(graph) == pytest.approx(reduced_bytes(plain.graph))


# ---------------------------------------------------------------- recomputation


@pytest.mark.parametrize("context", ["overlapped", "gather", "ring", "ulysses"])
def test_recomputed_attention_is_exchanged_again(context: str) -> None:
    """Selective recomputation repeats what reaches keys and values, and nothing else."""
    options = StrategyOptions(cp=4, context=context, recompute="selective")
    collectives = Job.of(dense(1), options).collectives("layer")
    forward = [c.kind for c in collectives if c.phase == "forward"]
    again = [c.kind for c in collectives if c.phase == "recomputation"]

    # Ulysses also brings the output back in forward, which no saved operator reads again.
    assert again == (forward[:2] if context == "ulysses" else forward)


@pytest.mark.parametrize("model", ["dense", "mixture"])
def test_a_recomputed_layer_repeats_all_collectives_of_forward_but_the_last(model: str) -> None:
    """Its own output is not needed, so what completes it is left out or kept at its operator."""
    built = mixture(1) if model == "mixture" else dense(1)
    options = StrategyOptions(
        ep=2 if model == "mixture" else 1, tp=2, sequence_parallel=True, recompute="full"
    )
    collectives = Job.of(built, options).collectives("moe_layer" if model == "mixture" else "layer")
    forward = [(c.kind, c.size_bytes) for c in collectives if c.phase == "forward"]
    again = [(c.kind, c.size_bytes) for c in collectives if c.phase == "recomputation"]

    assert again == forward[: len(again)]
    assert len(forward) - len(again) <= 1


# ---------------------------------------------------------------- products in pieces


def tensor_job(family: str, **options: object) -> ExecutionGraph:
    """Return a step with sequence and tensor parallelism."""
    chosen = StrategyOptions(tp=4, sequence_parallel=True, **options)  # type: ignore[arg-type]
    return Job.of(dense(1), chosen, global_batch=1, family=family).compiled().graph


@pytest.mark.parametrize("pieces", [1, 2, 4, 8])
def test_all_but_one_piece_of_the_traffic_hides(pieces: int) -> None:
    """The same bytes move; `1 / pieces` of each gather comes before its product."""
    cut = tensor_job("megatron-core", tensor_pieces=pieces)
    whole = tensor_job("megatron-core", overlap_tensor=False)

    assert cut.link_traffic_bytes.sum() == pytest.approx(whole.link_traffic_bytes.sum())
    moved = cut.kind == TaskKind.COLLECTIVE
    in_line = cut.work_s[moved & (cut.latency_s > 0)]  # hidden parts have no latency of their own
    alone = whole.work_s[(whole.kind == TaskKind.COLLECTIVE) & (whole.latency_s > 0)]
    ratios = in_line / alone
    assert ratios.min() == pytest.approx(1 / pieces)
    assert set(np.round(ratios, 9)) <= {round(1 / pieces, 9), 1.0}


def test_four_pieces_are_what_the_calibration_says() -> None:
    """Transformer Engine's user buffers cut products in four; all-reduces only if asked to."""
    left_open, four = tensor_job("megatron-core"), tensor_job("megatron-core", tensor_pieces=4)

    of_one, of_other = (Counter(graph.work_s.tolist()) for graph in (left_open, four))
    whole, cut = (
        np.array(list((a - b).elements())) for a, b in ((of_one, of_other), (of_other, of_one))
    )
    np.testing.assert_allclose(np.sort(cut), np.sort([*0.25 * whole, *0.75 * whole]))


def test_overlap_can_be_asked_of_software_without_the_habit() -> None:
    """As that of PyTorch, which is off by default: more is gathered again, but out of the way."""
    times = {
        choice: execute(tensor_job("generic", overlap_tensor=choice)).makespan_s
        for choice in (None, False, True)
    }

    assert times[True] < times[None] == times[False]


def test_rates_do_not_depend_on_the_habit_to_overlap() -> None:
    """Whether traffic is hidden is the strategy's choice; how far is the device's."""
    job = Job.of(dense(1), StrategyOptions(tp=2))
    shares = {
        rates_of(
            job.cluster, software_family(name), Precision.BF16, load_calibration()
        ).tensor_exposed_share
        for name in ("megatron-core", "torchtitan")
    }

    assert shares == {0.25}
