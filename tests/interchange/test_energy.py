"""Energy of replayed traces: that of the direct simulation, bounds where work is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.interchange.traces import collective, compute, job, written
from wattree.accounts.energy_use import standing_w
from wattree.cost import load_calibration
from wattree.cost.device_power import device_power
from wattree.hardware import Cluster, Precision, load_fabric, load_node, load_site
from wattree.interchange import Platform, export_chakra, replay
from wattree.predict import simulate


def platform(nodes: int = 1) -> Platform:
    """Return DGX H100 nodes."""
    cluster = Cluster(
        node=load_node("dgx-h100"),
        nodes=nodes,
        fabric=load_fabric("rail-optimised-ndr"),
        site=load_site("world-average"),
    )
    return Platform(cluster=cluster)


@pytest.mark.parametrize("strategy", [{"dp": 8}, {"dp": 2, "pp": 2, "tp": 2}])
def test_a_round_trip_draws_what_the_direct_simulation_draws(
    tmp_path: Path, strategy: dict[str, int]
) -> None:
    """Operations, bytes and times go through the files; so do joules, as near as times do."""
    # So wide that the host is never late: a trace does not tell when a device waits for its host.
    known = replace(job(strategy, hidden=8192), software="megatron-core")
    direct = simulate(known).result
    export_chakra(known, tmp_path / "t", own_attributes=False)

    found = replay(tmp_path / "t", platform=platform())

    assert found.energy is not None
    assert found.energy.unknown_busy_s == 0.0
    assert found.energy.use.total == pytest.approx(direct.energy_j.total, rel=0.03)
    assert found.energy.use.dynamic == pytest.approx(direct.energy_j.dynamic, rel=0.03)
    parts = found.energy.use
    assert parts.static + parts.dynamic == pytest.approx(parts.total, rel=1e-9)
    assert sum(parts.by_stage.values()) == pytest.approx(parts.total, rel=1e-9)


def test_computations_that_tell_nothing_draw_the_most_that_a_board_holds(tmp_path: Path) -> None:
    """By hand: one rank computes for 1 s just below 700 W, the node alongside it is at rest."""
    place = written(tmp_path, [compute(1, us=1_000_000)])
    found = replay(place, platform=platform()).energy
    device = platform().cluster.node.device
    pue = platform().cluster.site.pue

    assert found is not None
    assert found.unknown_busy_s == pytest.approx(1.0)
    assert found.use.static == pytest.approx(sum(standing_w(platform().cluster, [1])) * pue)
    most_w = device_power(device, Precision.BF16, load_calibration()).most_dynamic_w
    assert 0.97 * (device.tdp_w - device.idle_w) < most_w < device.tdp_w - device.idle_w
    behind = platform().cluster.node.host.behind
    assert found.use.dynamic == pytest.approx(most_w * behind * pue)
    assert found.evidence.evidence == "datasheet"
    assert "an upper bound" in found.evidence.note


def test_known_work_draws_less_than_rated_power(tmp_path: Path) -> None:
    """A computation that says how little it does draws what running kernels do, little more."""
    known = written(tmp_path, [compute(1, us=1_000_000, num_ops=10**12)])
    found = replay(known, platform=platform()).energy

    assert found is not None
    assert found.unknown_busy_s == 0.0
    device, pue = platform().cluster.node.device, platform().cluster.site.pue
    power = device_power(device, Precision.BF16, load_calibration())
    behind = platform().cluster.node.host.behind
    running_j = power.active_share * power.range_w * 1.0 * behind * pue
    assert running_j < found.use.dynamic < 1.01 * running_j
    assert set(found.evidence.share) == {"pooled", "datasheet"}
    assert sum(found.evidence.share.values()) == pytest.approx(1.0)


def test_what_is_not_counted_is_named(tmp_path: Path) -> None:
    """Bytes over links, storage and idle nodes cost energy that no figure holds: it says so."""
    reduction = [[collective(1, 2**30)] for _ in range(2)]
    found = replay(written(tmp_path, *reduction), platform=platform(nodes=2)).energy

    assert found is not None
    assert found.nodes == 1
    words = "; ".join(found.not_counted)
    assert "storage" in words
    assert "2.00 GiB sent over links" in words
    assert "1 nodes of the cluster" in words


def test_without_a_device_there_is_no_energy(tmp_path: Path) -> None:
    """Times alone draw nothing that could be known: null, not 0."""
    place = written(tmp_path, [compute(1, us=1000)])

    assert replay(place).as_json()["energy"] is None
