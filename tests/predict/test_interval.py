"""Intervals of figures: around the figure, wider where less is known, and consistent."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattree.accounts.constant_classes import PRODUCTS, constants_of
from wattree.accounts.interval import (
    DEVIATIONS,
    LEFT_OPEN,
    SLOWER,
    deviation,
    power_spread,
    spread_of,
)
from wattree.accounts.known import measured_of
from wattree.cost import load_calibration
from wattree.cost.observations import RESIDUAL
from wattree.job import Job, job_from_mapping
from wattree.predict import estimate, setting_of, simulate
from wattree.search.probability import probability_below
from wattree.trace import IntervalPart, Result


def job(node: str = "dgx-h100", **changes: Any) -> Job:
    """Return a small job."""
    return job_from_mapping(
        {
            "model": "llama-3.2-1b",
            "data": {"sequence_length": 1024, "global_batch": 16},
            "cluster": {"node": node, "nodes": 1},
            "strategy": {"preset": "ddp", "sharding": "zero1"},
            "software": "megatron-core",
            **changes,
        }
    )


@cache
def result(node: str = "dgx-h100", software: str = "megatron-core", **strategy: Any) -> Result:
    """Return the result of a small job."""
    more = {"strategy": strategy} if strategy else {}
    return simulate(job(node, software=software, **more)).result


#: Parts of an interval that no constant has.
OF_ALL = (RESIDUAL, LEFT_OPEN, SLOWER)
#: Figures that are less where steps are slower.
RATES = ("samples_per_s", "tokens_per_s", "average_power_w")


def figures_of(found: Result) -> dict[str, float]:
    """Return the figures that have an interval."""
    figures = {
        "step_time_s": found.step_time_s,
        "samples_per_s": found.samples_per_s,
        "tokens_per_s": found.tokens_per_s,
        "memory.peak_bytes": found.memory.peak_bytes,
        "average_power_w": found.average_power_w,
        "energy_j": found.energy_j.total,
        "cost_usd": found.cost_usd,
        "carbon_gco2e": found.carbon_gco2e,
    }
    return {name: value for name, value in figures.items() if value is not None}


def widths(found: Result, quantity: str) -> tuple[float, float]:
    """Return the standard deviations of a figure's logarithm, for faster and slower steps."""
    low, high = (
        abs(math.log(end / figures_of(found)[quantity])) for end in found.interval[quantity]
    )
    faster, slower = (high, low) if quantity in RATES else (low, high)
    return faster / DEVIATIONS, slower / DEVIATIONS


def width(found: Result, quantity: str = "step_time_s") -> float:
    """Return the standard deviation of a figure's logarithm, for faster steps."""
    return widths(found, quantity)[0]


@settings(max_examples=6, deadline=None)
@given(
    node=st.sampled_from(["dgx-h100", "dgx-a100", "hgx-h200", "dgx-b300"]),
    software=st.sampled_from(["megatron-core", "torchtitan"]),
)
def test_every_figure_lies_in_its_interval(node: str, software: str) -> None:
    """Strictly: nothing is known exactly."""
    found = result(node, software)
    assert set(found.interval) == set(figures_of(found))
    for name, value in figures_of(found).items():
        low, high = found.interval[name]
        assert 0 < low < value < high
        faster, slower = widths(found, name)
        # Steps are slower than predicted more often than faster.
        assert slower == pytest.approx(faster) if "memory" in name else slower >= 0.999 * faster


def test_a_device_without_constants_is_less_sure() -> None:
    """The look-up finds what other devices have, and those differ."""
    assert width(result("dgx-b300")) > width(result("dgx-h100"))


def test_time_rests_on_all_of_its_parts() -> None:
    """Shares of constants add up to the step; the interval is the root of the sum of squares."""
    found = result()
    shares = [part.share for name, part in found.interval_parts.items() if name not in OF_ALL]

    assert sum(shares) == pytest.approx(1.0)
    assert width(found) == pytest.approx(deviation(found.interval_parts))
    assert found.evidence_class.startswith("language, device")


def test_energy_is_no_surer_than_its_power() -> None:
    """Energy is power times time, and what is drawn at rest follows time."""
    found = result()
    static = found.energy_j.static / found.energy_j.total
    time, power = width(found), width(found, "average_power_w")

    assert width(found, "energy_j") <= time + power
    assert width(found, "energy_j") >= static * time
    assert width(found, "carbon_gco2e") == pytest.approx(width(found, "energy_j"))


def test_power_is_surer_only_where_constants_of_the_device_were_fitted() -> None:
    """A single figure that was read off a stress test is no fit of training."""
    found = {
        node: power_spread(setting_of(given, load_calibration()), given.cluster.pool.node.device)
        for node in ("dgx-h100", "workstation-rtx-4090")
        for given in (job(node, precision="fp32"),)
    }
    assert found["dgx-h100"] < found["workstation-rtx-4090"]


def test_rent_is_as_sure_as_time() -> None:
    """A node with a list price costs what its time costs."""
    assert width(result(), "cost_usd") == pytest.approx(width(result()))


@pytest.mark.parametrize("figures", [lambda job: simulate(job).result, estimate])
def test_embodied_carbon_is_as_sure_as_time(figures: Any) -> None:
    """What is hardly anything but embodied, and what is energy alone."""
    made = {"device": "150 kgCO2e", "node": "1000 kgCO2e", "lifetime": "1000 d"}
    embodied, grid = (
        figures(job(energy=energy))
        for energy in (
            {"carbon": "1e-6 gCO2e/kWh", "embodied": made},
            {"carbon": "36 gCO2e/kWh"},
        )
    )
    assert width(embodied, "carbon_gco2e") == pytest.approx(width(embodied), rel=1e-4)
    assert width(grid, "carbon_gco2e") == pytest.approx(width(grid, "energy_j"))


def test_json_has_intervals_in_pairs() -> None:
    """Low, then high; evidence is of the constants that were used."""
    found = json.loads(json.dumps(result().as_json()))

    assert found["interval"]["step_time_s"] == list(result().interval["step_time_s"])
    assert set(found["interval_parts"]["residual"]) == {"share", "spread"}
    shares = found["provenance"]["memory.peak_bytes"]["share"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert 0 < shares["counted"] < 1
    assert found["provenance"]["energy_j"]["share"]["datasheet"] < 1


def test_strategies_of_one_job_share_what_is_unsure() -> None:
    """The order of two is far surer than either of them."""
    first = result()
    wide = {"products": IntervalPart(share=1.0, spread=0.5)}
    unsure = replace(first, interval_parts=wide)
    likely = probability_below(unsure, unsure, 1.0, 1.1, pair_spread=0.02)

    assert likely > 0.99
    assert probability_below(first, first, 1.0, 1.0, pair_spread=0.02) == 0.5
    others = replace(first, interval_parts={"network": IntervalPart(share=1.0, spread=0.5)})
    assert 0.5 < probability_below(unsure, others, 1.0, 1.1, pair_spread=0.02) < 0.6
    swapped = probability_below(others, unsure, 1.1, 1.0, pair_spread=0.02)
    assert swapped == pytest.approx(
        1.0 - probability_below(unsure, others, 1.0, 1.1, pair_spread=0.02)
    )


@pytest.mark.parametrize(
    ("software", "precision", "traits", "rate"),
    [
        ("torchtitan", "fp8", {"row_scales": True}, "row_scaling_rate"),
        ("megatron-core", "mxfp8", {}, "block_scaling_rate"),
    ],
)
def test_matmuls_are_as_unsure_as_the_rate_of_their_scales(
    software: str, precision: str, traits: dict[str, bool], rate: str
) -> None:
    """The constant sets their time, so its spread is one of theirs."""
    node = "dgx-b200" if precision == "mxfp8" else "dgx-h100"
    scaled = job(node, software=software, precision=precision, traits=traits)
    known = load_calibration()
    name = f"general.{rate}"
    unsure = replace(known.constants[name], spread=0.5)
    wide = replace(known, constants={**known.constants, name: unsure})

    own, other = (
        constants_of(setting_of(scaled, each), scaled.cluster.node.device)[PRODUCTS]
        for each in (known, wide)
    )

    assert name in {each.name for each in own if each is not None}
    rows = measured_of(known.residuals, "language")
    device = scaled.cluster.node.device.name
    spreads = [
        math.hypot(*(spread_of(each, device, rows, {}) for each in found)) for found in (own, other)
    ]
    assert spreads[1] > 0.5 > spreads[0]


def test_waiting_for_routing_is_a_part_of_its_own() -> None:
    """Both add up to the host's time, and each has the spread of its constant."""
    experts = job(
        model="qwen3-30b-a3b",
        strategy={"preset": "ddp", "sharding": "zero1", "ep": 8},
        traits={"cuda_graphs": "none", "moe_dropless": True},
    )
    parts = simulate(experts).result.interval_parts

    assert parts["routing"].share > 0.02
    constants = load_calibration().constants
    assert parts["routing"].spread == constants["general.moe_host_s"].spread
    assert parts["host"].spread >= constants["pooled.module_launch_s"].spread
    assert sum(part.share for name, part in parts.items() if name not in OF_ALL) == pytest.approx(
        1.0
    )
    assert "routing" not in result().interval_parts


def test_updates_on_the_host_are_as_unsure_as_their_rate() -> None:
    """Threads and cores of a rank decide them; with the step's overhead they had no spread."""
    plain = {"preset": "ddp", "sharding": "zero1"}
    found = simulate(
        job(software="deepspeed", strategy={**plain, "offload": {"optimizer": "host"}})
    ).result

    rate = load_calibration().found("general.host_update_rate")
    assert rate is not None
    assert found.interval_parts["host_updates"].spread >= (rate.constant.spread or 0.0) > 0.5
    assert width(found) > width(result(software="deepspeed", **plain))


def test_memory_is_as_sure_as_published_peaks_of_the_software_are() -> None:
    """Named software without any has the spread of all; software that is not named, a wider one."""
    spreads = load_calibration().residuals.spreads
    widths = {
        software: width(result(software=software), "memory.peak_bytes")
        for software in ("megatron-lm", "mxnet", "auto")
    }

    assert "memory.peak_bytes.software.mxnet" not in spreads
    assert spreads["memory.peak_bytes.software.generic"] < widths["mxnet"] < widths["auto"]
    assert widths["megatron-lm"] < widths["mxnet"]
