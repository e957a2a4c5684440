"""When gathers, reductions and updates run behind computation, and what they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.layer_timelines import LAYERS, Played, play_layers
from tests.compiler.test_pipeline import free_links
from wattree.graph import Phase, TaskKind
from wattree.strategy import Prefetch, Traffic

# ---------------------------------------------------------------- gathers


def fsdp(prefetch: Prefetch | None, *, slow: float = 1e7, **more: object) -> Played:
    """Play four blocks sharded over two ranks with gathers longer than computation."""
    rates = free_links()
    links = replace(rates.links, scale_up_bytes_per_s=slow, scale_up_reduce_bytes_per_s=slow)
    rates = replace(rates, links=links, overlap_compute_rate=1.0)
    traffic = Traffic(prefetch=prefetch, **more)  # type: ignore[arg-type]
    return play_layers(traffic, rates=rates, fsdp=2, sharding="zero3")


def gather_and_forward_s() -> tuple[float, float]:
    """Return the time of one gather and of the forward that it is for."""
    executed = fsdp(None)
    start_s, end_s = executed.spans("parameters.gather")[0]
    forward = executed.computing(Phase.FORWARD)[0]
    return end_s - start_s, forward[1] - forward[0]


@pytest.mark.parametrize(
    ("prefetch", "exposed_forwards"),
    [
        (None, 1),
        (Prefetch(forward=0), LAYERS),
        (Prefetch(forward=1), 1),
        (Prefetch(forward=3), 1),
        (Prefetch(forward=3, gathers_in_flight=1), LAYERS),
        (Prefetch(forward=3, gathers_in_flight=2), 1),
    ],
    ids=str,
)
def test_gathers_hide_the_forwards_that_run_beside_them(
    prefetch: Prefetch | None, exposed_forwards: int
) -> None:
    """With long gathers: four of them, and the forwards that none of them covers."""
    gather_s, forward_s = gather_and_forward_s()
    assert gather_s > 2 * forward_s

    found = fsdp(prefetch)

    end_s = found.computing(Phase.FORWARD)[-1][1]
    assert end_s == pytest.approx(LAYERS * gather_s + exposed_forwards * forward_s, rel=1e-9)


def most_gathered(executed: Played) -> float:
    """Return the most gathered copies at once."""
    graph, trace = executed.trace.graph, executed.trace
    mine = graph.memory_category == graph.category_names.index("gathered")
    times = np.concatenate([trace.start_s[mine], trace.end_s[mine]])
    change = np.concatenate([graph.alloc_bytes[mine], -graph.free_bytes[mine]])
    order = np.lexsort((change, times))  # what is dropped at an instant goes first
    one = graph.alloc_bytes[mine].max()
    return float(np.cumsum(change[order]).max() / one)


@pytest.mark.parametrize(("depth", "copies"), [(0, 1), (1, 2), (2, 3)])
def test_as_many_copies_are_held_as_are_in_flight(depth: int, copies: int) -> None:
    """Short gathers arrive early, and wait in memory for their turn."""
    found = fsdp(Prefetch(forward=depth, backward=depth), slow=1e12)

    assert most_gathered(found) == pytest.approx(copies, rel=1e-9)


def test_backward_without_prefetch_waits_for_reductions() -> None:
    """PyTorch's `none`: the gather comes behind the reduction of the block before."""
    found = fsdp(Prefetch(backward=0, after_reductions=True), gradient_bucket_bytes=1.0)
    gathers = found.spans("parameters.gather")[LAYERS:]
    reduced = found.spans("gradients.reduce")

    assert all(gather[0] >= before[1] for gather, before in zip(gathers[1:], reduced, strict=False))


def test_kept_parameters_are_gathered_once_and_stay() -> None:
    """ZeRO-2 in all but storage: half of the gathers, all copies at once."""
    plain, found = fsdp(None), fsdp(None, reshard_after_forward=False)

    assert len(found.spans("parameters.gather")) == LAYERS
    assert len(plain.spans("parameters.gather")) == 2 * LAYERS
    assert most_gathered(found) == pytest.approx(LAYERS, rel=1e-9)
    assert found.trace.makespan_s < plain.trace.makespan_s


@settings(max_examples=15)
@given(
    depth=st.integers(0, 3),
    more=st.integers(1, 3),
    slow=st.sampled_from((1e6, 1e7, 1e8, 1e9, 1e10)),
)
def test_a_deeper_prefetch_is_never_slower(depth: int, more: int, slow: float) -> None:
    """As long as memory is not asked."""
    shallow, deep = (
        fsdp(Prefetch(forward=blocks, backward=blocks), slow=slow).trace.makespan_s
        for blocks in (depth, depth + more)
    )

    assert deep <= shallow * (1 + 1e-9)


# ---------------------------------------------------------------- buckets and lines


@pytest.mark.parametrize(("bucket_bytes", "reductions"), [(1.0, 4), (1e12, 1)])
def test_buckets_fill_across_layers(bucket_bytes: float, reductions: int) -> None:
    """A reduction for each block, or one for all."""
    found = play_layers(Traffic(gradient_bucket_bytes=bucket_bytes), dp=2)

    assert len(found.spans("gradients.reduce")) == reductions


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("family", "bucket_bytes", "gathers"),
    [
        ("llm-foundry", None, 4),
        ("megatron-core", None, 1),
        ("megatron-core", 1.0, 4),
        ("megatron-core", 1e12, 1),
    ],
)
def test_updated_parameters_come_in_buckets(
    family: str, bucket_bytes: float | None, gathers: int, *, overlap: bool
) -> None:
    """Before the first block that they are for, or at the end of the step."""
    found = play_layers(
        Traffic(parameter_bucket_bytes=bucket_bytes),
        dp=2,
        sharding="zero1",
        overlap_parameters=overlap,
        family=family,
    )

    # Without buckets each kind of parameters of a block is gathered by itself.
    several = family != "megatron-core"
    count = len(found.spans("parameters.update"))
    assert count >= gathers if several else count == gathers


def test_updated_parameters_come_a_chunk_ahead() -> None:
    """Megatron-Core starts the gather of a chunk with the first micro-batch of the one before."""
    chunks = {"pp": 2, "schedule": "interleaved", "virtual_stages": 4}
    found = play_layers(
        Traffic(), layers=2 * LAYERS, accumulated=4, dp=2, sharding="zero1", **chunks
    )

    gathers = sorted(found.spans("parameters.update"))
    forwards = sorted(found.computing(Phase.FORWARD))
    long_s = gathers[0][1] - gathers[0][0]
    first = [start for start, _ in gathers[:4]]  # two chunks of two stages
    assert first == pytest.approx([0.0, 0.0, long_s, long_s])
    # The third chunk of the first stage begins with the eighth forward of both.
    lasts_s = forwards[0][1] - forwards[0][0]
    assert gathers[4][0] < forwards[7][0] - 1.9 * lasts_s


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gradients", {"dp": 2}),
        ("parameters", {"dp": 2, "sharding": "zero1"}),
        ("parameters", {"fsdp": 2, "sharding": "zero3"}),
        ("tensor", {"tp": 2, "sequence_parallel": True}),
        ("context", {"cp": 2}),
    ],
)
def test_nothing_computes_beside_what_is_in_line(kind: str, options: dict[str, object]) -> None:
    """One queue for both: each waits for the other."""
    replicas = {"gradients", "parameters", "tensor", "context"} - {kind}
    trace = play_layers(Traffic(in_line=(kind,)), **options).trace
    graph = trace.graph
    names = np.array(graph.names)[graph.name_ids]
    others = [n for n in graph.names if n.split(".")[0] in replicas]
    moved = np.flatnonzero((graph.kind == TaskKind.COLLECTIVE) & ~np.isin(names, others))
    computed = np.flatnonzero(graph.kind == TaskKind.COMPUTE)

    assert len(moved)
    for task in moved:
        beside = np.minimum(trace.end_s[task], trace.end_s[computed]) - np.maximum(
            trace.start_s[task], trace.start_s[computed]
        )
        assert beside.max() <= 1e-15


def test_transfers_in_line_are_the_switch_of_pipelines() -> None:
    """Two ways to say that computation waits for sends between stages."""
    in_line, off = (
        play_layers(traffic, pp=2, accumulated=4, rates=None).trace
        for traffic in (Traffic(in_line=("pipeline",)), Traffic(overlap_pipeline=False))
    )

    assert in_line.graph.equal(off.graph)
