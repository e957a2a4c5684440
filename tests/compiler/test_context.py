"""Context parallelism: bytes and times of its ways, played and in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.jobs import HEADS, HIDDEN, SEQUENCE, WIDTH, Job, dense
from tests.sim.reference import reference_events
from wattree.errors import StrategyError
from wattree.graph import OperatorKind
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import (
    CollectiveInstruction,
    CollectiveKind,
    ComputeInstruction,
    Instruction,
    InstructionPhase,
    LocalSize,
)
from wattree.lowering.ring import Ring, rings_of
from wattree.lowering.ring_rows import Row, ring_rows, ring_span_s
from wattree.lowering.streams import Stream
from wattree.sim import execute
from wattree.strategy import (
    ContextExchange,
    Mesh,
    Schedule,
    Strategy,
    StrategyOptions,
    StrategyTree,
    TreeNode,
)

WAYS = ("overlapped", "gather", "ring", "ulysses")
SAMPLES = 4  # of a micro-batch


def job(context: str, *, cp: int = 4, kv_heads: int = HEADS, **changes: object) -> Job:
    """Return a small job under context parallelism, one micro-batch."""
    options = StrategyOptions(cp=cp, context=context, micro_batch=SAMPLES, **changes)  # type: ignore[arg-type]
    return Job.of(dense(1, kv_heads=kv_heads), options, global_batch=SAMPLES)


def exchanged(of: Job, phase: str) -> list[tuple[str, float]]:
    """Return kind and bytes of the collectives over `cp` of one layer's phase."""
    return [
        (c.kind, c.size_bytes)
        for c in of.collectives("layer")
        if c.phase == phase and c.axes == ("cp",)
    ]


def sent_bytes(of: Job) -> float:
    """Return what a rank sends over `cp` in a step, gradients of parameters left out."""
    graph = of.compiled().graph
    about = [
        i for i, name in enumerate(graph.names) if name.startswith(("q_", "kv_", "attention.core"))
    ]
    return float(graph.link_traffic_bytes[np.isin(graph.name_ids, about)].sum())


@pytest.mark.parametrize(("cp", "kv_heads"), [(2, 8), (4, 8), (8, 8), (2, 4), (4, 4), (2, 2)])
def test_ulysses_moves_the_bytes_of_its_paper(cp: int, kv_heads: int) -> None:
    """Queries, keys, values and output, each `s h / p` a rank, of which it keeps one part in `p`.

    Jacobs et al. 2023, section 3.2: `4 s h / p` for each link with as many key/value heads as
    query heads, so `(2 + 2 k/q) s h / p` with fewer; they leave out what stays at home.
    """
    of = job("ulysses", cp=cp, kv_heads=kv_heads)
    tokens = SAMPLES * SEQUENCE * HIDDEN * WIDTH / cp
    forward = (2 + 2 * kv_heads / HEADS) * tokens

    assert sum(size for _, size in exchanged(of, "forward")) == pytest.approx(forward)
    assert {kind for kind, _ in exchanged(of, "forward")} == {"all_to_all"}
    assert sum(size for _, size in exchanged(of, "backward")) == pytest.approx(forward)
    assert sent_bytes(of) == pytest.approx(2 * forward * (cp - 1) / cp)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_moves_the_bytes_of_gathers(cp: int) -> None:
    """Keys and values go round once in forward; in backward their gradients do too.

    Liu et al. 2023: each of `p - 1` turns sends a block of `2 s h / p` values.
    """
    ring, gather = job("ring", cp=cp), job("gather", cp=cp)
    block = 2 * SAMPLES * SEQUENCE * HIDDEN * WIDTH / cp

    assert sent_bytes(ring) == pytest.approx(3 * (cp - 1) * block)
    assert sent_bytes(gather) == pytest.approx(sent_bytes(ring))


def test_a_ring_is_played_turn_by_turn() -> None:
    """As many blocks as ranks, and a transfer less; with gradients as many again."""
    graph = job("ring", cp=8).compiled().graph
    names = [graph.names[i] for i in graph.name_ids]

    assert names.count("attention.core") == 2 * 8
    assert names.count("kv_rotated") == 7
    assert names.count("kv_rotated.again") == 7
    assert names.count("kv_rotated.gradient") == 7


@pytest.mark.parametrize("context", WAYS)
@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_the_ways_do_the_same_work(context: str, order: str) -> None:
    """They differ in what is sent and who waits, not in the model's FLOP."""
    found = job(context, context_order=order).compiled().graph.flop.sum()

    assert found == pytest.approx(job("overlapped").compiled().graph.flop.sum(), rel=1e-12)


#: Enough tokens, and no launches, so that the device sets the pace.
LONG: dict[str, Any] = {"sequence": 1 << 16, "traits": {"cuda_graphs": "full"}}


@pytest.mark.parametrize("context", ["overlapped", "gather", "ring"])
def test_contiguous_positions_wait_for_the_last_rank(context: str) -> None:
    """It sees `p - 1/2` blocks of keys against `p / 2` on average; not without a causal mask."""
    for causal, factor in ((True, 2 - 1 / 4), (False, 1.0)):
        times = []
        for order in ("zigzag", "contiguous"):
            options = StrategyOptions(cp=4, context=context, context_order=order)
            graph = Job.of(dense(1, causal=causal), options, **LONG).compiled().graph
            core = graph.name_ids == graph.names.index("attention.core")
            times.append(graph.work_s[core].sum())

        assert times[1] / times[0] == pytest.approx(factor, rel=2e-2)  # launches stretch both


@pytest.mark.parametrize("context", WAYS)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_all_memory_of_attention_is_given_back(context: str, recompute: str) -> None:
    """Buffers of a ring go with its last block, exchanged copies with their backward."""
    graph = job(context, recompute=recompute).compiled().graph

    left = graph.alloc_bytes.sum() - graph.free_bytes.sum()
    assert left == pytest.approx(0.0, abs=1e-9 * graph.alloc_bytes.sum())


def test_a_ring_holds_two_visiting_blocks_and_a_gather_all() -> None:
    """The point of a ring: memory that does not grow with the number of ranks."""
    peaks = {}
    for context in ("ring", "gather"):
        graph = job(context, cp=8).compiled().graph
        core = graph.name_ids == graph.names.index("attention.core")
        gathers = np.isin(
            graph.name_ids, [i for i, n in enumerate(graph.names) if n == "kv_rotated"]
        )
        forward = graph.phase == 0
        peaks[context] = graph.alloc_bytes[(core | gathers) & forward].sum()
    block = 2 * SAMPLES * SEQUENCE * HIDDEN * WIDTH / 8

    assert peaks["gather"] - peaks["ring"] == pytest.approx((8 - 2) * block)


@pytest.mark.parametrize("context", WAYS)
def test_engine_and_reference_play_context_parallelism_alike(context: str) -> None:
    """One step of a layer, task by task."""
    graph = job(context, cp=2).compiled().graph
    fast, slow = execute(graph), reference_events(graph)[0]

    np.testing.assert_allclose(fast.end_s, slow.end_s, rtol=1e-12)


# ---------------------------------------------------------------- turns in closed form


def steps_of_a_ring(*, backward: bool, gradient: bool, skewed: bool) -> tuple[Instruction, ...]:
    """Return attention in blocks with what it sends."""
    phase = InstructionPhase.INPUT_GRADIENT if backward else InstructionPhase.FORWARD

    def sends(kind: CollectiveKind, depends: tuple[int, ...]) -> CollectiveInstruction:
        return CollectiveInstruction(
            path="kv", kind=kind, axes=("cp",), size=LocalSize(),
            phase=phase, depends=depends,
        )  # fmt: skip

    attention = ComputeInstruction(
        path="core", kind=OperatorKind.ATTENTION, function="attention", phase=phase, traffic=(),
        depends=(0,), skewed_axes=("cp",) if skewed else (),
    )  # fmt: skip
    last = (sends(CollectiveKind.RING_REDUCE, (1,)),) if gradient else ()
    return (sends(CollectiveKind.RING_GATHER, ()), attention, *last)


def plainly_played_s(rows: list[Row], costs: PhaseCosts) -> float:
    """Return when all rows are done, each after those it waits for and those of its stream."""
    ends: list[float] = []
    free: dict[int, float] = {}
    for row in rows:
        start = max([free.get(row.stream, 0.0), *(ends[before] for before in row.depends)])
        latency = row.latency_share * costs.latency_s[row.instruction, 0]
        free[row.stream] = start + latency + row.share * costs.work_s[row.instruction, 0]
        ends.append(free[row.stream])
    return max(ends)


@given(
    ranks=st.integers(1, 9),
    times=st.tuples(*[st.floats(0.0, 10.0)] * 5),
    way=st.sampled_from([(False, False), (True, False), (True, True)]),
    order=st.sampled_from(["zigzag", "contiguous"]),
    stream=st.sampled_from([Stream.CONTEXT, Stream.COMPUTE]),
)
def test_the_closed_form_of_a_ring_is_its_play(
    ranks: int, times: tuple[float, ...], way: tuple[bool, bool], order: str, stream: int
) -> None:
    """Turn by turn the longer of computing and sending, or one after the other in line."""
    steps = steps_of_a_ring(backward=way[0], gradient=way[1], skewed=order == "contiguous")
    count = len(steps)
    latency_s = np.array([[times[0]], [0.0], [times[1]]])[:count] * (ranks > 1)
    work_s = np.array([[times[2]], [times[3]], [times[4]]])[:count]
    work_s[[0, 2][: count - 1]] *= ranks > 1
    nothing = np.zeros((count, 1))
    costs = PhaseCosts(
        instructions=steps, latency_s=latency_s, work_s=work_s, waits_s=nothing, host_s=nothing,
        traffic_bytes=nothing, wire_bytes=nothing, scale_up_bytes=nothing,
        adapter_bytes=nothing, uplink_bytes=nothing,
        transient_bytes=nothing, in_turn=nothing, ring_ranks=np.full((count, 1), float(ranks)),
        processor_s=nothing, flop=nothing,
    )  # fmt: skip
    ring: Ring = rings_of(steps)[1]
    rows: list[Row] = []
    at: Mapping[int, int] = {}

    ring_rows(ring, steps, rows, at, ranks, stream=stream)

    assert sum(r.share for r in rows if r.instruction == 1) == pytest.approx(1.0)
    span_s = ring_span_s(ring, costs, in_line=stream == Stream.COMPUTE)[0]
    assert span_s == pytest.approx(plainly_played_s(rows, costs), rel=1e-9)


# ---------------------------------------------------------------- refusals


def test_ulysses_needs_as_many_key_value_heads() -> None:
    """Whole heads go to a rank; neither heads nor their keys are copied."""
    with pytest.raises(StrategyError, match="4 key/value heads do not divide over axes tp, cp"):
        job("ulysses", cp=8, kv_heads=4).compiled()


def test_a_ring_needs_a_fused_kernel() -> None:
    """Unfused attention keeps whole rows of scores."""
    with pytest.raises(StrategyError, match="block by block, but 'megatron-lm-2021' keeps"):
        replace(job("ring"), family="megatron-lm-2021").compiled()


def test_a_node_about_context_needs_attention_below_it() -> None:
    """A slip of the pattern must not pass for a choice."""
    nodes = {
        "": TreeNode(compute={"batch": ("dp",), "seq": ("cp",)}),
        "layers.*.mlp": TreeNode(context=ContextExchange.RING),
    }
    strategy = Strategy(
        mesh=Mesh.of({"cp": 4}), schedule=Schedule(), tree=StrategyTree(nodes=nodes)
    )

    with pytest.raises(StrategyError, match=r"layers\.\*\.mlp.*'ring' is about attention"):
        replace(job("ring"), strategy=strategy).compiled()
