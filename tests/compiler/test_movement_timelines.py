"""Timelines of two to four blocks, worked out by hand: prefetch, buckets, updates, offload."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.compiler.jobs import Job, dense, small_cluster
from tests.compiler.layer_timelines import LAYERS, play_layers
from tests.compiler.test_movement import with_tiers
from tests.compiler.test_pipeline import layers_only
from wattree.compiler.tasks.offload import saved_bytes
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.graph import Phase
from wattree.hardware import Cluster
from wattree.strategy import Offload, StrategyOptions, Traffic


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

    rate = load_calibration().general("host_update_rate") * node.host.memory_bytes_per_s
    more_s = 2 * elements / link + traffic_bytes / rate
    more_s += 2 * elements / link - (update[1] - update[0])
    assert found.trace.makespan_s - plain.trace.makespan_s == pytest.approx(more_s, rel=1e-6)
    assert found.trace.graph.static_by_category[0][3] == 0.0


@pytest.mark.parametrize(
    ("family", "ranks", "out", "back"),
    [
        ("deepspeed", 2, 3, 2),
        ("deepspeed", 1, 3, 2),  # ZeRO-2 of one rank
        ("torchtitan", 2, 3, 0),
        ("megatron-core", 2, 1, 0),
        ("megatron-core", 1, 1, 0),
    ],
)
def test_shards_of_gradients_add_up_on_the_host(
    family: str, ranks: int, out: int, back: int
) -> None:
    """FSDP sends those of each micro-batch; DeepSpeed has the sum come back and go again."""
    found = play_layers(
        Traffic(offload=Offload(optimizer="host"), gradient_bucket_bytes=1e12),
        accumulated=3,
        family=family,
        dp=ranks,
        sharding="none" if ranks == 1 else "zero2",
    )
    counts = [
        len(found.spans(f"gradients.{each}"))
        if f"gradients.{each}" in found.trace.graph.names
        else 0
        for each in ("copy out", "copy in", "take")
    ]

    assert counts == [out, back, out * LAYERS]


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
