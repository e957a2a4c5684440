"""The account of a step's energy: all parts add up, and each stands where it belongs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.jobs import FEWEST
from wattree.accounts.bill import run_bill, schedule_shift
from wattree.cost import load_calibration
from wattree.energy.hourly import HOUR_S, HourlySeries, windows
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.predict import Prediction, Setting, predicted, setting_of, simulate
from wattree.search import plan
from wattree.trace import COMPONENTS, EnergyUse, Result

SMALL = {"layers": 8, "hidden": 4096, "heads": 32, "ffn": 16_384, "vocab": 32_000}
MIXED = {
    "pools": [{"node": "dgx-h100"}, {"node": "dgx-a100"}],
    "fabric": "infiniband-ndr-fat-tree",
}
LOADER = {"workers": 2, "decode": "40 ms", "sample_bytes": "100 kB", "tensor_bytes": "1 MB"}
PIPELINE = {"preset": "megatron", "pp": 2, "tp": 2, "micro_batch": 2}
JOBS: dict[str, dict[str, Any]] = {
    "pipeline": {},
    "data parallel": {"strategy": {"preset": "ddp"}, "cluster": {"node": "dgx-h100", "nodes": 2}},
    "sharded": {"strategy": {"preset": "fsdp"}},
    "capped": {"cluster": {"node": "dgx-h100", "nodes": 2, "power_limit": "300 W"}},
    "straggler": {
        "cluster": {"node": "dgx-h100", "nodes": 2, "slowdown": {"3": 1.3}},
        "strategy": {"preset": "ddp"},
    },
    "pools": {"cluster": MIXED},
    "idle devices": {
        "strategy": {"preset": "megatron", "tp": 2, "dp": 2},
        "place": {"devices": "0-3"},
    },
    "loader": {"data": {"sequence_length": 1024, "global_batch": 32, "loader": LOADER}},
    "offload": {
        "strategy": {**PIPELINE, "offload": {"optimizer": "host"}},
        "cluster": {"node": "dgx-h100", "nodes": 2},
    },
}


def job(**changes: Any) -> Job:
    """Return a small job."""
    return job_from_mapping(
        {
            "model": {"transformer": SMALL},
            "data": {"sequence_length": 1024, "global_batch": 32},
            "cluster": {"node": "dgx-h100", "nodes": 2},
            "strategy": PIPELINE,
            **changes,
        }
    )


@cache
def found(name: str, *, fold: bool = True) -> Prediction:
    """Return the prediction of one of `JOBS`."""
    return simulate(job(**JOBS[name]), fold=fold)


def sums(energy: EnergyUse) -> dict[str, float]:
    """Return the total by every way of adding up."""
    return {
        "stages": sum(energy.by_stage.values()),
        "classes": sum(energy.by_class.values()),
        "components": sum(energy.by_component.values()),
        "devices": sum(each.energy_j for each in energy.by_device),
        "ledger": math.fsum(entry.energy_j for entry in energy.ledger),
        "kinds": energy.static + energy.dynamic,
    }


@pytest.mark.parametrize("name", JOBS)
def test_every_way_of_adding_up_gives_the_total(name: str) -> None:
    """Stages, classes, components, devices, pools and the power curve, to 1e-9."""
    result = found(name).result
    energy = result.energy_j
    parts = sums(energy)
    if result.pools:
        parts["pools"] = sum(pool.energy_j for pool in result.pools)
    assert result.power is not None
    held_j = sum(result.power.total_w) * result.power.width_s
    parts["power"] = held_j * job(**JOBS[name]).cluster.site.pue

    assert parts == pytest.approx(dict.fromkeys(parts, energy.total), rel=1e-9)
    assert all(entry.energy_j >= 0 for entry in energy.ledger)
    assert set(energy.by_component) <= set(COMPONENTS)


@pytest.mark.parametrize("name", ["pipeline", "straggler", "pools", "capped", "sharded"])
def test_folding_changes_no_entry_of_the_ledger(name: str) -> None:
    """Ranks that do the same draw the same, for the same."""
    folded, whole = found(name).result.energy_j, found(name, fold=False).result.energy_j

    def entries(energy: EnergyUse) -> dict[tuple[str, str, str], float]:
        return {(e.stage, e.operator_class, e.component): e.energy_j for e in energy.ledger}

    assert entries(folded) == pytest.approx(entries(whole), rel=1e-9)
    for wait, use in folded.waiting.items():
        assert use.energy_j == pytest.approx(whole.waiting[wait].energy_j, rel=1e-9, abs=1e-9)
        assert use.time_s == pytest.approx(whole.waiting[wait].time_s, rel=1e-9, abs=1e-12)


def test_classes_are_those_of_the_work() -> None:
    """Products draw most; what a strategy sends has a class of its own."""
    classes = found("pipeline").result.energy_j.by_class
    sharded = found("sharded").result.energy_j.by_class

    assert max(classes, key=lambda name: classes[name]) in {"matrix_products", "waiting"}
    assert {"attention", "elementwise", "embedding", "optimizer", "host"} <= set(classes)
    assert {"tensor_parallel", "pipeline_transfer", "gradient_sync"} <= set(classes)
    assert {"parameter_gather", "gradient_sync"} <= set(sharded)
    assert not {"tensor_parallel", "pipeline_transfer"} & set(sharded)
    assert "offload" in found("offload").result.energy_j.by_class
    assert {"reading", "preparing", "copying"} & set(found("loader").result.energy_j.by_class)


def test_merged_runs_draw_what_their_operators_draw() -> None:
    """A search plays runs of operators as one task, which belong to no single class."""
    given_job = job()
    setting: Setting = setting_of(given_job, load_calibration())
    assert not isinstance(given_job.strategy, str)
    merged = predicted(setting, given_job.strategy, detail=False).result
    detailed = found("pipeline").result

    assert merged.power is None
    assert "operators" in merged.energy_j.by_class
    assert merged.energy_j.total == pytest.approx(detailed.energy_j.total, rel=1e-3)
    assert sums(merged.energy_j) == pytest.approx(
        dict.fromkeys(sums(merged.energy_j), merged.energy_j.total), rel=1e-9
    )


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        ("pipeline", "bubble"),
        ("data parallel", "communication"),
        ("loader", "input_starvation"),
    ],
)
def test_what_ranks_wait_for_is_told(name: str, wait: str) -> None:
    """A pipeline has bubbles, reductions are not all hidden, slow loaders starve all."""
    waiting = found(name).result.energy_j.waiting
    use = waiting[wait]

    assert use.energy_j == max(other.energy_j for other in waiting.values())
    assert use.time_s > 0
    assert use.cost_usd is not None
    assert use.cost_usd > 0
    assert use.carbon_gco2e is not None
    assert use.carbon_gco2e > 0


def test_a_slow_device_keeps_the_others_waiting() -> None:
    """In the collectives of its group; without it no one waits there."""
    slow = found("straggler").result.energy_j.waiting["straggler"]
    even = found("data parallel").result.energy_j.waiting["straggler"]

    assert slow.time_s > 0.001
    assert even.time_s == pytest.approx(0.0, abs=1e-9)


def test_ranks_that_wait_for_a_slow_one_spin_and_say_in_which_collective() -> None:
    """By hand: all time of waiting at the spin power of the device, above what stands."""
    own = job(**JOBS["straggler"])
    prediction = found("straggler")
    result = prediction.result
    wait = result.energy_j.waiting["straggler"]
    (power,) = setting_of(own, load_calibration()).powers
    ranks = int(prediction.trace.graph.class_ranks.sum())
    standing_w = result.energy_j.static / result.step_time_s
    behind = own.cluster.node.host.behind
    spun_j = power.spin_w * wait.time_s * ranks * own.cluster.site.pue * behind
    communication_j = sum(
        entry.energy_j
        for entry in result.energy_j.ledger
        if entry.stage == "communicating" and entry.component == "device_dynamic"
    )

    assert wait.energy_j == pytest.approx(standing_w * wait.time_s + spun_j, rel=1e-9)
    assert communication_j > power.spin_w * wait.time_s * ranks


def test_starvation_costs_the_power_at_rest_for_as_long_as_it_lasts() -> None:
    """By hand: what stands draws on; copies at that time add next to nothing."""
    result = found("loader").result
    use = result.energy_j.waiting["input_starvation"]
    standing_w = result.energy_j.static / result.step_time_s

    assert use.time_s == pytest.approx(result.time_s.exposed_materials, rel=1e-6)
    assert use.energy_j == pytest.approx(standing_w * use.time_s, rel=0.01)


@pytest.mark.parametrize("name", ["pipeline", "capped", "pools", "sharded"])
def test_no_device_draws_more_than_its_limit(name: str) -> None:
    """At no part of the step."""
    prediction = found(name)
    cluster = job(**JOBS[name]).cluster
    most_w = max(
        min(cluster.limit_w(p) or p.node.device.tdp_w, p.node.device.tdp_w) for p in cluster.pools
    )
    classes = prediction.trace.graph.class_names
    for rank_class in classes:
        assert max(w for _, w in prediction.curves[rank_class]) <= most_w * (1 + 1e-6)
    assert set(prediction.curves) == {*classes, "hosts and switches", "cluster"}


def test_idle_devices_have_a_line_of_their_own() -> None:
    """Nodes are paid whole: 4 ranks on one of 8 devices."""
    devices = found("idle devices").result.energy_j.by_device

    assert devices[-1].name == "without a rank"
    assert devices[-1].devices == 4


def test_the_json_has_the_whole_account() -> None:
    """Plain values only, and the figures of the text."""
    fields = found("pipeline").result.as_json()

    assert {"samples_per_j", "tokens_per_j", "energy_delay_product_js", "power"} <= set(fields)
    assert {"ledger", "by_class", "by_component", "by_device", "waiting"} <= set(fields["energy_j"])
    assert fields["run"] is None
    assert fields["tokens_per_j"] == pytest.approx(
        fields["tokens_per_s"] * fields["step_time_s"] / fields["energy_j"]["total"]
    )


# ---------------------------------------------------------------- money and carbon


def priced(**energy: Any) -> Result:
    """Return the result of the job under terms of its own."""
    return simulate(job(energy=energy)).result


def test_who_pays_for_energy_pays_no_catalogue_rent() -> None:
    """By hand, for each of rent, energy and both."""
    plain = found("pipeline").result
    by_energy = priced(price="0.36 USD/kWh")
    by_device = priced(device_price="2 USD/h")
    both = priced(price="0.36 USD/kWh", device_price="2 USD/h")
    energy_usd = plain.energy_j.total * 0.36 / 3.6e6
    rent_usd = 16 * 2 / 3600 * plain.step_time_s

    assert by_energy.cost_usd == pytest.approx(energy_usd)
    assert by_device.cost_usd == pytest.approx(rent_usd)
    assert both.cost_usd == pytest.approx(energy_usd + rent_usd)
    assert by_energy.energy_j.total == plain.energy_j.total
    assert [each.provenance["cost_usd"].note for each in (plain, by_energy, by_device, both)] == [
        "list price of the node",
        "the job's price of energy; nothing for the hardware",
        "the job's price of a device",
        "the job's price of a device and the job's price of energy",
    ]


def test_energy_prices_rank_strategies_by_energy() -> None:
    """The cheapest of a plan is then the one that draws least."""
    given_job = job(energy={"price": "0.1 USD/kWh"}, model="gpt2", cluster={"node": "4x-a6000"})
    auto = replace(given_job, strategy="auto")
    ranked = plan(auto, objective="cost", top=3, limits=FEWEST).ranked
    energies = [entry.result.energy_j.total for entry in ranked]
    fastest = plan(auto, top=1, limits=FEWEST).best.result

    assert energies == sorted(energies)
    assert energies[0] < fastest.energy_j.total
    assert [entry.result.cost_usd for entry in ranked] == pytest.approx(
        [energy_j * 0.1 / 3.6e6 for energy_j in energies]
    )


def test_intensity_and_embodied_carbon_are_the_jobs() -> None:
    """By hand: grams for a joule; a part of the making by time."""
    found_ = priced(
        carbon="36 gCO2e/kWh",
        embodied={"device": "150 kgCO2e", "node": "1000 kgCO2e", "lifetime": "1000 d"},
    )
    made_g = 2 * (1000e3 + 8 * 150e3)

    embodied_g = made_g * found_.step_time_s / (1000 * 86_400)
    assert found_.embodied_gco2e == pytest.approx(embodied_g)
    assert found_.carbon_gco2e == pytest.approx(found_.energy_j.total * 36 / 3.6e6 + embodied_g)
    for use in found_.energy_j.waiting.values():
        embodied_g = made_g * use.time_s / (1000 * 86_400)
        assert use.carbon_gco2e == pytest.approx(use.energy_j * 36 / 3.6e6 + embodied_g)


def test_a_run_is_as_many_whole_steps() -> None:
    """Never less than the target."""
    step = found("pipeline").result
    run = run_bill(step, math.ceil(1e6 / (32 * 1024)))

    assert run.tokens == run.steps * 32 * 1024
    assert run.energy_j == run.steps * step.in_run.energy_j
    assert run.energy_delay_product_js == pytest.approx(run.energy_j * run.time_s)
    assert run.samples == run.steps * 32


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(0, 1e-3), min_size=1, max_size=40),
    st.floats(1.0, 40 * HOUR_S),
)
def test_windows_are_the_sums_of_their_hours(hourly: list[float], run_s: float) -> None:
    """Against an hour by hour sum, with the last hour in part."""
    expected = []
    for first in range(len(hourly)):
        left, total, hour = run_s, 0.0, first
        while left > 1e-6 and hour < len(hourly):
            lasts = min(left, HOUR_S)
            total, left, hour = total + lasts * hourly[hour] * 100.0, left - lasts, hour + 1
        if left <= 1e-5:
            expected.append(total)
    found_ = windows(tuple(hourly), run_s, 100.0)

    assert found_.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def day(run_s: float, *, prices: bool = True) -> Any:
    """Return what a day of hours with one clean one, and one cheap one, makes of a run."""
    carbon, price = np.full(24, 1e-4), np.full(24, 5e-8)
    carbon[13], price[3] = 1e-5, 1e-8
    series = HourlySeries(
        name="day.csv",
        hours=tuple(map(str, range(24))),
        carbon_gco2e_per_j=tuple(carbon),
        price_usd_per_j=tuple(price) if prices else None,
    )
    made = job()
    made = replace(made, terms=replace(made.terms, series=series, embodied=None))
    return schedule_shift(made, found("pipeline").result, run_s)


def test_a_run_best_starts_when_it_meets_the_clean_hours() -> None:
    """The first of equals; the price has its own best hour."""
    shift = day(2 * HOUR_S)

    assert (shift.now.start_hour, shift.least_carbon.hour, shift.least_cost.hour) == (0, "12", "2")
    assert shift.least_carbon.carbon_gco2e == pytest.approx(shift.now.carbon_gco2e * 0.55)
    assert shift.most_carbon == shift.now
    assert day(HOUR_S, prices=False).least_cost is None


def test_a_run_longer_than_the_series_is_refused() -> None:
    """It would have to be made up."""
    with pytest.raises(JobError, match=r"day.csv has 24 hours, which a run of 25.00 h \(25 h\)"):
        day(25 * HOUR_S)
    with pytest.raises(JobError, match=r"energy\.series: is missing"):
        schedule_shift(job(), found("pipeline").result, HOUR_S)


def test_a_shifted_run_emits_what_the_run_does() -> None:
    """Hardware is part of both; a series of prices alone has no carbon to compare."""
    step = replace(found("pipeline").result, embodied_gco2e=2.0)
    series = HourlySeries(name="flat.csv", hours=tuple("012"), carbon_gco2e_per_j=(1e-4,) * 3)
    made = job()
    made = replace(made, terms=replace(made.terms, series=series))
    shift = schedule_shift(made, step, HOUR_S)

    assert shift.embodied_gco2e == pytest.approx(2.0 * HOUR_S / step.step_time_s)
    assert shift.now.carbon_gco2e == pytest.approx(shift.energy_j * 1e-4 + shift.embodied_gco2e)
    prices = replace(series, carbon_gco2e_per_j=None, price_usd_per_j=(1e-8,) * 3)
    cheap = schedule_shift(replace(made, terms=replace(made.terms, series=prices)), step, HOUR_S)
    assert cheap.now.carbon_gco2e is cheap.least_carbon is None
    assert cheap.least_cost is not None
