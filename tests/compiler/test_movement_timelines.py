"""Timelines of two to four blocks, worked out by hand: prefetch, buckets, updates, offload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, small_cluster
from tests.compiler.test_movement import with_tiers
from tests.compiler.test_pipeline import free_links, layers_only
from wattree.compiler.tasks.offload import saved_bytes
from wattree.cost.rates import Rates
from wattree.errors import StrategyError
from wattree.graph import Phase, TaskKind
from wattree.hardware import Cluster
from wattree.sim import execute
from wattree.strategy import Offload, Prefetch, StrategyOptions, Traffic
from wattree.trace import Trace

LAYERS = 4
NODE = with_tiers(small_cluster(1)).node


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A trace of one rank class and its tasks by name."""

    trace: Trace

    def spans(self, name: str) -> list[tuple[float, float]]:
        """Return start and end of the tasks called `name`."""
        graph = self.trace.graph
        chosen = np.flatnonzero(graph.name_ids == graph.names.index(name))
        return [(float(self.trace.start_s[t]), float(self.trace.end_s[t])) for t in chosen]

    def computing(self, phase: Phase) -> list[tuple[float, float]]:
        """Return start and end of computation of a phase."""
        graph = self.trace.graph
        chosen = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (graph.phase == phase))
        return [(float(self.trace.start_s[t]), float(self.trace.end_s[t])) for t in chosen]


def play_layers(
    traffic: Traffic,
    *,
    layers: int = LAYERS,
    cluster: Cluster | None = None,
    rates: Rates | None = None,
    accumulated: int = 1,
    **options: object,
) -> Played:
    """Play equal layers, computation of a layer and phase as one task."""
    chosen = StrategyOptions(traffic=traffic, **options)  # type: ignore[arg-type]
    job = Job.of(
        layers_only(layers),
        chosen,
        cluster=cluster or with_tiers(small_cluster(chosen.ranks)),
        rates=rates or free_links(),
        global_batch=chosen.replicas * accumulated,
    )
    trace = execute(job.compiled(detail=False).graph)
    return Played(trace=trace)


def pass_s() -> tuple[float, float]:
    """Return forward and backward of one layer."""
    executed = play_layers(Traffic(), layers=1)
    return tuple(  # type: ignore[return-value]
        sum(end - start for start, end in executed.computing(phase))
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    )


def behind(seconds_per_layer: float) -> Cluster:
    """Return a cluster of one device whose copies of a layer's activations take so long."""
    costs = Job.of(layers_only(1), StrategyOptions(), global_batch=1).compiled().costs
    layer = next(c for c in costs if saved_bytes(c) > 0)
    cluster = with_tiers(small_cluster(1))
    device = replace(
        cluster.node.device, host_link_bytes_per_s=saved_bytes(layer) / seconds_per_layer
    )
    return replace(cluster, node=replace(cluster.node, device=device))


def offloaded(layers: int, prefetch: int = 1) -> Traffic:
    """Return the choice to keep the activations of the first layers in host memory."""
    return Traffic(offload=Offload(activations="host", layers=layers, prefetch=prefetch))


# ---------------------------------------------------------------- activations


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_copies_that_dominate_follow_each_other_out_and_in(layers: int) -> None:
    """Forward of the first layer, all copies out, all copies in, backward of the first layer.

    The copy out of layer i is ready to start while that of layer i - 1 runs, and each layer comes
    back while the one behind it runs backward; so nothing stands between the copies.
    """
    forward_s, backward_s = pass_s()
    copy_s = 3 * backward_s
    cluster = behind(copy_s)  # the input comes over the same link
    rest_s = play_layers(Traffic(), layers=layers, cluster=cluster).trace.makespan_s
    rest_s -= layers * (forward_s + backward_s)

    found = play_layers(offloaded(layers), layers=layers, cluster=cluster)

    expected_s = forward_s + 2 * layers * copy_s + backward_s + rest_s
    assert found.trace.makespan_s == pytest.approx(expected_s, rel=1e-9)


def test_copies_that_are_shorter_than_a_layer_cost_nothing() -> None:
    """All but the first layers come back in time behind computation."""
    forward_s, _ = pass_s()
    cluster = behind(0.5 * forward_s)
    plain = play_layers(Traffic(), cluster=cluster)

    found = play_layers(offloaded(2), cluster=cluster)

    assert found.trace.makespan_s == pytest.approx(plain.trace.makespan_s, rel=1e-9)
    assert found.trace.peak_bytes[0] < plain.trace.peak_bytes[0]


def test_without_prefetch_every_copy_is_waited_for() -> None:
    """Layer by layer: forward and copy out; copy in and backward."""
    forward_s, backward_s = pass_s()
    copy_s = 0.5 * forward_s
    cluster = behind(copy_s)
    plain_s = play_layers(Traffic(), cluster=cluster).trace.makespan_s

    found = play_layers(offloaded(LAYERS, prefetch=0), cluster=cluster)

    # The last copy out is waited for by its own copy in.
    assert found.trace.makespan_s == pytest.approx(plain_s + 2 * LAYERS * copy_s, rel=1e-9)
    assert backward_s > copy_s


@pytest.mark.parametrize(("together", "factor"), [(1, 1.0), (2, 2.0), (4, 4.0)])
def test_devices_behind_one_switch_share_its_link(together: int, factor: float) -> None:
    """Copies of all of them at once take as many times as long."""
    _, backward_s = pass_s()
    alone = behind(3 * backward_s)
    scale_up = replace(alone.node.scale_up, domain_devices=4, devices_per_switch=together)
    node = replace(alone.node, devices=4, nics=4, scale_up=scale_up)
    cluster = replace(alone, node=node)

    found = play_layers(offloaded(LAYERS), cluster=cluster, dp=4, overlap_gradients=False)

    for start_s, end_s in found.spans("activations.copy out"):
        assert end_s - start_s == pytest.approx(3 * backward_s * factor, rel=1e-9)


def test_a_faster_tier_is_never_slower_and_ends_at_what_local_memory_takes() -> None:
    """COMET's break-even: below some bandwidth of the expansion it does not pay."""
    plain_s = play_layers(Traffic()).trace.makespan_s
    times = []
    for bandwidth in (1e6, 1e7, 1e8, 1e9, 1e10):
        cluster = with_tiers(small_cluster(1), bandwidth_bytes_per_s=bandwidth, latency_s=0.0)
        traffic = Traffic(offload=Offload(activations="cxl", layers=2))
        times.append(play_layers(traffic, cluster=cluster).trace.makespan_s)

    assert all(slow >= fast * (1 - 1e-12) for slow, fast in pairwise(times))
    assert times[0] > 2 * plain_s
    assert times[-1] == pytest.approx(plain_s, rel=1e-9)


# ---------------------------------------------------------------- the optimizer


def test_an_update_on_the_host_takes_two_copies_and_its_memory() -> None:
    """One rank, one bucket: gradients out, a pass over host memory, parameters in."""
    cluster = with_tiers(small_cluster(1))
    node = cluster.node
    assert node.host.memory_bytes_per_s is not None
    elements = layers_only(LAYERS).parameters
    plain = play_layers(Traffic())
    (update,) = plain.spans("optimizer")
    traffic_bytes = elements * (2 * (8 + 4) + 10.0)  # Adam's moments and the master, 4 B each
    link = node.device.host_link_bytes_per_s

    found = play_layers(Traffic(offload=Offload(optimizer="host")))

    more_s = 2 * elements / link + traffic_bytes / node.host.memory_bytes_per_s
    more_s += 2 * elements / link - (update[1] - update[0])
    assert found.trace.makespan_s - plain.trace.makespan_s == pytest.approx(more_s, rel=1e-6)
    assert found.trace.graph.static_by_category[0][3] == 0.0


def test_updates_of_buckets_take_the_time_of_one_and_drop_gradients_early() -> None:
    """On one rank there is nothing to wait for, so only memory changes."""
    plain = play_layers(Traffic())

    found = play_layers(Traffic(overlap_optimizer=True, gradient_bucket_bytes=1.0))

    assert len(found.spans("optimizer")) == LAYERS
    assert found.trace.makespan_s == pytest.approx(plain.trace.makespan_s, rel=1e-9)
    assert found.trace.peak_bytes[0] < plain.trace.peak_bytes[0]


def test_an_early_update_runs_behind_the_next_bucket() -> None:
    """Reduction of block 4, backward of block 3 alongside it, update of block 4."""
    found = play_layers(
        Traffic(overlap_optimizer=True, gradient_bucket_bytes=1.0), dp=2, sharding="zero1"
    )
    updates, backward = found.spans("optimizer"), found.computing(Phase.BACKWARD)
    reduced = found.spans("gradients.reduce")

    assert len(updates) == len(backward) == len(reduced) == LAYERS
    for index in range(LAYERS - 1):
        assert updates[index][0] >= max(reduced[index][1], backward[index + 1][1])
        assert index + 2 >= LAYERS or updates[index][1] <= backward[index + 2][0]


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
@pytest.mark.parametrize(("bucket_bytes", "gathers"), [(None, 4), (1.0, 4), (1e12, 1)])
def test_updated_parameters_come_in_buckets(
    bucket_bytes: float | None, gathers: int, *, overlap: bool
) -> None:
    """Before the first block that they are for, or at the end of the step."""
    found = play_layers(
        Traffic(parameter_bucket_bytes=bucket_bytes),
        dp=2,
        sharding="zero1",
        overlap_parameters=overlap,
    )

    # Without buckets each kind of parameters of a block is gathered by itself.
    assert len(found.spans("parameters.update")) >= gathers
    assert bucket_bytes is None or len(found.spans("parameters.update")) == gathers


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


# ---------------------------------------------------------------- what does not fit


def refused(offload: Offload, cluster: Cluster, **options: object) -> dict[str, str]:
    """Return why a strategy is refused."""
    chosen = StrategyOptions(traffic=Traffic(offload=offload), **options)  # type: ignore[arg-type]
    with pytest.raises(StrategyError) as caught:
        Job.of(dense(4), chosen, cluster=cluster).compiled()
    return caught.value.misfits


def test_a_tier_that_is_too_small_is_refused_by_name() -> None:
    """What all ranks of a host put there must fit."""
    cluster = with_tiers(small_cluster(2), memory_bytes=1e3)

    assert refused(Offload(activations="cxl", layers=2), cluster, dp=2) == {
        "strategy.offload": "256.00 KiB of CXL memory needed on a dgx-h100, which has 1000 B; keep "
        "more on the devices, or use more of them"
    }


def test_a_node_without_the_tier_is_refused() -> None:
    """No bandwidth is made up."""
    plain = small_cluster(1)
    plain = replace(
        plain,
        node=replace(plain.node, host=replace(plain.node.host, memory_bytes_per_s=None)),
    )

    assert refused(Offload(activations="cxl", layers=1), plain) == {
        "strategy.offload": "found 'cxl', but a dgx-h100 has no memory over CXL; describe one "
        "under `cxl` in the node's file, or use 'host'"
    }
    assert refused(Offload(optimizer="host"), plain) == {
        "strategy.offload.optimizer": "the update on the host takes its memory bandwidth, which "
        "dgx-h100 does not give; add `memory_bandwidth` under `host` in the node's file"
    }


def test_more_layers_than_there_are_and_mirrored_stages_are_refused() -> None:
    """Both would do something else than was meant."""
    cluster = with_tiers(small_cluster(2))

    assert refused(Offload(activations="host", layers=5), with_tiers(small_cluster(1))) == {
        "strategy.offload.activations.layers": "found 5, but small has 4 layers"
    }
    assert refused(Offload(optimizer="host"), cluster, pp=2, schedule="dualpipe") == {
        "strategy.offload.optimizer": "the stages of 'dualpipe' exchange gradients at the end of "
        "the step, before any update; use a schedule with one direction"
    }
