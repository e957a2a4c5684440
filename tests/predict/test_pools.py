"""What a step costs and needs on pools of different nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wattree.cost import load_calibration
from wattree.errors import HardwareError, JobError
from wattree.hardware import load_device
from wattree.hardware.topologies import network_of
from wattree.job import Job, job_from_mapping
from wattree.predict import predicted, setting_of, simulate
from wattree.strategy import StrategyOptions
from wattree.trace import Result

SMALL = {"layers": 8, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32_000}


def job(*pools: dict[str, Any], **keys: Any) -> Job:
    """Return a small pipeline of two stages over some pools, replayed: no host sets the pace."""
    return job_from_mapping(
        {
            "model": {"transformer": SMALL},
            "data": {"sequence_length": 1024, "global_batch": 32},
            "cluster": {"pools": list(pools), "fabric": "infiniband-ndr-fat-tree"},
            "strategy": {"preset": "megatron", "pp": 2, "tp": 2, "micro_batch": 2},
            "traits": {"cuda_graphs": "full"},
            **keys,
        }
    )


H100, A100 = {"node": "dgx-h100"}, {"node": "dgx-a100"}


def result(*pools: dict[str, Any], **keys: Any) -> Result:
    """Return the figures of such a job."""
    return simulate(job(*pools, **keys)).result


def test_energy_and_money_add_up_over_pools() -> None:
    """To those of the job."""
    found = result(H100, A100)

    assert found.cluster == "1 x dgx-h100 + 1 x dgx-a100"
    assert sum(pool.energy_j for pool in found.pools) == pytest.approx(found.energy_j.total)
    assert sum(pool.cost_usd or 0 for pool in found.pools) == pytest.approx(found.cost_usd)
    assert [pool.ranks for pool in found.pools] == [8, 8]
    assert sum(found.energy_j.by_stage.values()) == pytest.approx(found.energy_j.total)


def test_static_energy_is_that_of_the_nodes_there_are() -> None:
    """By hand: what devices, hosts and switch ports draw, for as long as the step takes."""
    made = job(H100, A100)
    found = simulate(made).result

    watts = sum(
        pool.node.host.behind * (8 * pool.node.device.idle_w + pool.node.host.busy_w)
        + pool.node.nics * share * made.cluster.fabric.switch_w_per_nic
        for pool, share in zip(made.cluster.pools, (1.0, 0.5), strict=True)  # NDR, and HDR in it
    )

    expected = watts * found.step_time_s * made.cluster.site.pue
    assert found.energy_j.static == pytest.approx(expected)


def test_utilisation_is_of_the_peaks_of_all_devices() -> None:
    """By hand: FLOP over time and the sum of peaks."""
    found = result(H100, A100)
    peaks = [load_device(f"{name}-sxm-80gb").peak_flop_per_s for name in ("h100", "a100")]
    available = found.step_time_s * 8 * sum(peak["bf16"] for peak in peaks)  # type: ignore[index]

    assert found.mfu == pytest.approx(found.model_flop_per_step / available)


def test_the_stage_on_the_slower_device_computes_longer() -> None:
    """As many layers on each."""
    fast, slow = result(H100, A100).pools

    assert slow.computing > 1.5 * fast.computing
    assert fast.rank_classes == ("stage 0 on h100-sxm-80gb (8 ranks)",)
    assert slow.rank_classes == ("stage 1 on a100-sxm-80gb (8 ranks)",)


def test_fewer_layers_on_the_slower_device_make_the_step_shorter() -> None:
    """What `stage_layers` is for."""
    cut = {"preset": "megatron", "pp": 2, "tp": 2, "micro_batch": 2, "stage_layers": [6, 2]}

    many = {"sequence_length": 1024, "global_batch": 512}

    equal, uneven = (result(H100, A100, data=many, **keys) for keys in ({}, {"strategy": cut}))

    assert uneven.step_time_s < 0.8 * equal.step_time_s


def test_a_power_limit_slows_its_own_pool_alone() -> None:
    """The other one waits, and computes no longer than before."""
    plain, capped = result(H100, A100), result(H100, A100 | {"power_limit": "200 W"})

    def computing_s(found: Result, pool: int) -> float:
        return found.pools[pool].computing * found.step_time_s

    assert computing_s(capped, 0) == pytest.approx(computing_s(plain, 0), rel=0.02)
    assert computing_s(capped, 1) > 1.2 * computing_s(plain, 1)


def test_memory_is_judged_by_the_device_of_each_rank() -> None:
    """The same need fits on one device and not on the other, and the message says which."""
    tight = {"node": "dgx-1"}  # V100 of 16 GB
    wide = {"preset": "ddp", "pp": 2, "micro_batch": 2, "stage_layers": [14, 14]}
    model = {"transformer": SMALL | {"hidden": 2048, "ffn": 8192, "heads": 16, "layers": 28}}
    found = result(
        H100, tight, strategy=wide, model=model, data={"sequence_length": 2048, "global_batch": 64}
    )

    roomy, full = found.pools
    assert roomy.memory_fits
    assert not full.memory_fits
    assert not found.memory.fits
    assert full.fullest == "stage 1 on v100-sxm2-16gb (8 ranks)"
    assert found.memory.capacity_bytes == full.memory_capacity_bytes
    assert found.memory.peak_bytes == full.peak_memory_bytes


def test_a_precision_that_one_pool_lacks_is_refused() -> None:
    """With the pool."""
    with pytest.raises(JobError) as caught:
        result(H100, A100, precision="fp8")

    assert "precision: pool 2 (1 x dgx-a100): a100-sxm-80gb has no fp8" in str(caught.value)


def test_a_pool_that_the_mesh_leaves_idle_is_told() -> None:
    """It draws nothing, costs nothing and stands in the result all the same."""
    made = job(H100, A100)
    lone = StrategyOptions(dp=4, tp=2, micro_batch=2)

    found = predicted(setting_of(made, load_calibration()), lone).result

    assert found.cluster == "1 x dgx-h100"
    assert (found.pools[1].ranks, found.pools[1].energy_j) == (0, 0.0)
    note = "1 of 1 x dgx-a100 idle: its energy, rent and carbon are not counted"
    assert note in found.assumed


def test_idle_devices_of_a_node_are_named() -> None:
    """Its rent and power count whole, where the job has a part of it."""
    made = job(H100)
    note = "cost and energy include idle devices of used nodes: 8 devices for 2 ranks"
    part = replace(made, strategy=StrategyOptions(dp=2, micro_batch=2), devices=(0, 1))

    assert note in simulate(part).result.assumed
    assert not any("idle devices" in each for each in simulate(made).result.assumed)


def test_one_kind_of_nodes_has_no_pools_in_its_result() -> None:
    """The key stays."""
    assert result(H100, H100).as_json()["pools"] == []


def test_what_cannot_tell_pools_apart_refuses_them() -> None:
    """Rather than take the first for all."""
    with pytest.raises(HardwareError, match="mixes pools \\(1 x dgx-h100 \\+ 1 x dgx-a100\\)"):
        network_of(job(H100, A100).cluster)
