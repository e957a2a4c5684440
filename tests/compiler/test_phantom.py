"""Phantom layers: what they hold, compute, send and keep, counted against the closed formulas.

The formulas are derived in docs/design/0022-phantom-in-the-tree.md: for layers of width n over p
ranks with m = n / p, k ghosts, a batch of B, per rank and layer,

| | pair | shared |
| weights | m^2 + n k | m^2 + 2 m k |
| forward FLOP | 2 B (m^2 + n k) | 2 B (m^2 + 2 m k) |
| elements sent, both directions | 2 (p - 1) k B | 4 (p - 1) k B / p |
| kept | own inputs m B, ghosts p k B | own inputs m B, ghosts k B |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, check_plays, dense
from tests.compiler.phantom_stacks import WIDTH, changed_job, phantom, stack
from wattree.graph import Phase, TaskKind
from wattree.lowering.passes.phantom import with_phantoms
from wattree.sim import execute
from wattree.strategy import StrategyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A stack of phantom layers."""

    ranks: int
    own: int  # neurons of a rank
    ghosts: int
    batch: int
    depth: int
    variant: str

    @property
    def job(self) -> Job:
        """The job, eager and at bf16."""
        options = phantom(self.ranks, self.ghosts, variant=self.variant, micro_batch=self.batch)
        return Job.of(
            stack(self.ranks * self.own, self.depth),
            options,
            global_batch=self.batch,
            family="pytorch",
            traits={"autocast": False},
        )

    @property
    def weights(self) -> int:
        """Of one layer, on one rank."""
        sources = self.ranks - 1 if self.variant == "pair" else 1
        return self.own * (self.own + self.ghosts + sources * self.ghosts)

    @property
    def sent(self) -> float:
        """Elements that a rank sends of one layer, in both directions."""
        others = self.ranks - 1
        if self.variant == "pair":
            return 2.0 * others * self.ghosts * self.batch
        return 4.0 * others * self.ghosts * self.batch / self.ranks

    @property
    def ghosts_kept(self) -> int:
        """Elements of ghosts that a rank keeps of one layer."""
        count = self.ranks if self.variant == "pair" else 1
        return count * self.ghosts * self.batch


shapes = st.builds(
    Shape,
    ranks=st.sampled_from((2, 3, 4, 8)),
    own=st.sampled_from((8, 24, 64)),
    ghosts=st.integers(1, 8),
    batch=st.sampled_from((1, 5, 16)),
    depth=st.integers(1, 4),
    variant=st.sampled_from(("pair", "shared")),
)


@settings(max_examples=25)
@given(shape=shapes)
def test_counts_are_those_of_the_formulas(shape: Shape) -> None:
    """Weights, FLOP, traffic and what is kept, exactly."""
    job, layers, batch = shape.job, shape.depth, shape.batch
    compiled = job.compiled()
    graph, program = compiled.graph, compiled.program
    costs = [compiled.costs[number] for number in program.instances]

    assert program.model.parameters == shape.ranks * layers * shape.weights
    compute = graph.kind == TaskKind.COMPUTE
    forward = compute & (graph.phase == Phase.FORWARD)
    assert graph.flop[forward].sum() == 2 * batch * layers * shape.weights
    # The samples have no gradient: neither the local product nor the compressor of the first layer
    # passes one on.
    first = 2 * batch * shape.own * (shape.own + shape.ghosts)
    backward = compute & (graph.phase == Phase.BACKWARD)
    assert graph.flop[backward].sum() == 4 * batch * layers * shape.weights - first
    collectives = graph.kind == TaskKind.COLLECTIVE
    sent = float(graph.link_traffic_bytes[collectives].sum())
    assert sent == pytest.approx(layers * shape.sent * WIDTH, rel=1e-12)
    kept = sum(float(cost.saved_bytes.sum()) for cost in costs) / WIDTH
    outputs = shape.own * batch  # which the loss keeps
    own = layers * shape.own * batch
    assert kept == outputs + own + layers * shape.ghosts_kept


@settings(max_examples=10)
@given(shape=shapes)
def test_gradients_stay_on_their_ranks(shape: Shape) -> None:
    """No parameter is shared inside the group, so nothing is reduced but over replicas."""
    program = shape.job.compiled().program
    groups = [group for each in program.programs for group in each.parameters]

    assert {group.partial_axes for group in groups} == {()}
    assert {group.elements.divisors for group in groups} == {("tp",)}


@pytest.mark.parametrize("variant", ["pair", "shared"])
def test_replicas_reduce_what_they_share(variant: str) -> None:
    """A product with data parallelism around: a p-th of the changed model's gradients."""
    options = phantom(2, 4, variant=variant, dp=4, micro_batch=4)
    job = Job.of(stack(64), options)
    synced = [
        sync
        for block in ("first", "layer", "last")
        for sync in changed_job(job).synchronised(block)
    ]

    assert {sync.reduce_axes for sync in synced} == {("dp",)}
    elements = sum(float(sync.reduce_bytes[0]) for sync in synced) / job.software.reduce_bytes
    assert elements * 2 == changed_job(job).model.parameters


def test_without_ghosts_only_the_diagonal_is_left() -> None:
    """Block-diagonal layers send nothing."""
    compiled = Job.of(stack(64), phantom(4, 0)).compiled()

    assert not (compiled.graph.kind == TaskKind.COLLECTIVE).any()
    assert compiled.program.model.parameters == 3 * 64 * 64 / 4


@settings(max_examples=15)
@given(shape=shapes)
def test_exchanged_activations_are_counted_as_the_formulas_have_them(shape: Shape) -> None:
    """The same function and local work; (p-1) m (B + k) elements sent each way, n (B + k) kept."""
    others, own, batch = shape.ranks - 1, shape.own, shape.batch
    k, layers = shape.ghosts, shape.depth
    options = phantom(
        shape.ranks, k, variant=shape.variant, micro_batch=batch, exchange="activations"
    )
    job = replace(
        shape.job,
        strategy=Job.of(shape.job.model, options, global_batch=batch).strategy,
    )
    compiled = job.compiled()
    graph = compiled.graph

    assert compiled.program.model.parameters == shape.ranks * layers * shape.weights
    forward = (graph.kind == TaskKind.COMPUTE) & (graph.phase == Phase.FORWARD)
    sources = others if shape.variant == "pair" else 1
    products = own * own + own * k * others + own * k * sources
    assert graph.flop[forward].sum() == 2 * batch * layers * products
    collectives = graph.kind == TaskKind.COLLECTIVE
    sent = float(graph.link_traffic_bytes[collectives].sum())
    unwanted = others * own * batch  # no one wants the gradient of the samples
    each = 2 * others * own * (batch + k)
    assert sent == pytest.approx((layers * each - unwanted) * WIDTH, rel=1e-12)
    counted, _ = with_phantoms(job.model, job.strategy.tree, {"tp": shape.ranks}, counted=True)
    assert counted.parameters == compiled.program.model.parameters
    assert {
        o.path for b in counted.blocks.values() for o in b.operators if "hand" in o.path
    } == set()


def test_all_ghosts_are_as_many_as_tensor_parallelism_sends() -> None:
    """With as many ghosts as neurons the traffic is that of gathered rows."""
    rows = StrategyOptions(tp=4, micro_batch=16)
    sent = [
        Job.of(stack(64), options, global_batch=16).compiled().graph.link_traffic_bytes.sum()
        for options in (phantom(4, 16, micro_batch=16), rows)
    ]
    # The first layer's rows have no gradient to scatter; its ghosts have.
    assert sent[0] / sent[1] == pytest.approx(6 / 5)


# ---------------------------------------------------------------- what runs alongside what


def _times(options: StrategyOptions, *names: str, **traffic: Any) -> dict[str, tuple[float, float]]:
    """Return when the tasks of the only layer with these names start and end, in forward. [s]"""
    job = Job.of(stack(8192, 1), options, global_batch=4096, family="pytorch")
    if traffic:
        strategy = job.strategy
        job = replace(job, strategy=replace(strategy, traffic=replace(strategy.traffic, **traffic)))
    graph = job.compiled().graph
    trace = execute(graph)
    found = {}
    for name in names:
        (task,) = np.flatnonzero(
            (graph.name_ids == graph.names.index(name)) & (graph.phase == Phase.FORWARD)
        )
        found[name] = (float(trace.start_s[task]), float(trace.end_s[task]))
    return found


@pytest.mark.parametrize(
    ("variant", "exchange"), [("pair", "linear.ghosts"), ("shared", "linear.total")]
)
def test_ghosts_travel_beside_the_local_product(variant: str, exchange: str) -> None:
    """Sent as soon as they are compressed, awaited only by what decompresses them."""
    options = phantom(8, 256, variant=variant, micro_batch=4096)
    names = ("linear.compress", "linear.local", exchange, "linear.decompress")
    if variant == "shared":  # its sum over one rank's ghosts is a task of the same name
        names = ("linear.compress", "linear.local", "linear.others", "linear.decompress")
    times = _times(options, *names)

    compress, local, sent, decompress = (times[name] for name in names)
    assert local[0] == compress[1]
    if variant == "pair":
        assert sent[0] == compress[1]
        assert sent[1] < local[1] == decompress[0]
    else:
        assert sent[0] == local[1]  # the sum has long been there
        assert sent[1] == decompress[0]


def test_in_line_nothing_travels_beside() -> None:
    """Without overlap the gather has the computation's stream for itself."""
    names = ("linear.local", "linear.ghosts", "linear.decompress")
    times = _times(phantom(8, 256, micro_batch=4096), *names, in_line=("tensor",))

    local, sent, decompress = (times[name] for name in names)
    assert local[1] <= sent[0] < sent[1] <= decompress[0]


def test_ghosts_are_gathered_again_instead_of_kept() -> None:
    """Less memory for one more all-gather a layer."""
    kept, again = (
        Job.of(
            stack(1024, 6), phantom(8, 64, micro_batch=512, regather=regather), global_batch=512
        ).compiled()
        for regather in (False, True)
    )
    gathers = [
        float(c.graph.link_traffic_bytes[c.graph.kind == TaskKind.COLLECTIVE].sum())
        for c in (kept, again)
    ]
    saved = [
        sum(float(c.costs[n].saved_bytes.sum()) for n in c.program.instances) for c in (kept, again)
    ]

    assert gathers[1] == pytest.approx(1.5 * gathers[0])
    assert saved[0] - saved[1] == 6 * 7 * 64 * 512 * WIDTH  # the ghosts of the seven others


# ---------------------------------------------------------------- the same in every play


ALIKE = {
    "pair": phantom(4, 4, dp=2, micro_batch=4),
    "shared": phantom(4, 4, variant="shared", dp=2, micro_batch=4, sharding="zero1"),
    "regathered": phantom(2, 4, dp=4, regather=True, recompute="full"),
    "stages": phantom(2, 4, pp=2, dp=2, micro_batch=2),
    "two pieces": phantom(2, 4, pp=2, dp=2, schedule="zb-h1", micro_batch=2),
    "positions": phantom(2, 4, cp=2, dp=2),
    "sharded": phantom(4, 4, fsdp=2, sharding="zero3", micro_batch=2),
}
MODELS = {"stack": stack(64, 4, activation="gelu"), "transformer": dense(4)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ALIKE)
def test_plays_agree_and_memory_balances(name: str, model: str) -> None:
    """Folded and whole, merged and task by task, compiled and in plain Python."""
    check_plays(Job.of(MODELS[model], ALIKE[name]))
