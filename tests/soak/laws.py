"""Part 2: laws that hold between predictions of jobs that differ in one thing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.property.drawn import CLUSTERS, MODELS, DrawnStep, drawn_step
from tests.property.test_closed_form import errors_of
from wattree.cost import load_calibration
from wattree.design.answers import ALIKE
from wattree.hardware import Cluster, Device, Node
from wattree.job import job_from_mapping
from wattree.predict import predicted, setting_of, simulate
from wattree.trace import Result

__all__ = ["LAWS", "broken_laws"]

#: Rounding of sums over a step's tasks.
_ROUNDING = 1e-6

Law = Callable[[DrawnStep, random.Random], str]


def _on(step: DrawnStep, cluster: Cluster) -> Result:
    """Return the same step on another cluster."""
    setting = step.setting
    job = replace(setting.job, cluster=cluster)
    other = setting_of(job, load_calibration(None), model=setting.model)
    return predicted(other, step.options, detail=False).result


def _result(step: DrawnStep) -> Result:
    return predicted(step.setting, step.options, detail=False).result


def _with_node(cluster: Cluster, change: Callable[[Node], Node]) -> Cluster:
    return replace(cluster, node=change(cluster.node), nodes=cluster.nodes)


def _with_device(cluster: Cluster, change: Callable[[Device], Device]) -> Cluster:
    return _with_node(cluster, lambda node: replace(node, device=change(node.device)))


def _not_slower(step: DrawnStep, cluster: Cluster, what: str) -> str:
    before, after = _result(step).step_time_s, _on(step, cluster).step_time_s
    slower = after / before - 1
    return f"{what}: {slower:+.3%} slower, at most {ALIKE:.1%}" if slower > ALIKE else ""


def more_memory(step: DrawnStep, chance: random.Random) -> str:
    """More memory takes no longer, holds as much, and never makes a job that fits not fit."""
    factor = chance.uniform(1.0, 4.0)
    cluster = _with_device(
        step.setting.job.cluster,
        lambda device: replace(device, memory_bytes=device.memory_bytes * factor),
    )
    before, after = _result(step), _on(step, cluster)
    if before.memory.fits and not after.memory.fits:
        return f"fits, but not with {factor:.2f} x the memory"
    if after.step_time_s != before.step_time_s:
        took = f"{after.step_time_s} s, not {before.step_time_s} s"
        return f"takes {took}, with {factor:.2f} x the memory"
    return ""


def faster_links(step: DrawnStep, chance: random.Random) -> str:
    """Links of twice the bandwidth are never slower."""
    inside, outside = chance.choice(((2, 2), (2, 1), (1, 2)))

    def change(node: Node) -> Node:
        rate = node.scale_up.bandwidth_bytes_per_s * inside
        return replace(
            node,
            scale_up=replace(node.scale_up, bandwidth_bytes_per_s=rate),
            nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s * outside,
        )

    return _not_slower(
        step,
        _with_node(step.setting.job.cluster, change),
        f"links x {inside}, adapters x {outside}",
    )


def faster_device(step: DrawnStep, chance: random.Random) -> str:
    """A device of twice the matrix, vector or memory rate is never slower."""
    what = chance.choice(("matrix", "vector", "memory"))

    def change(device: Device) -> Device:
        if what == "matrix":
            peaks = {name: 2 * peak for name, peak in device.peak_flop_per_s.items()}
            return replace(device, peak_flop_per_s=peaks)
        if what == "vector":
            return replace(device, vector_flop_per_s=2 * device.vector_flop_per_s)
        return replace(device, memory_bandwidth_bytes_per_s=2 * device.memory_bandwidth_bytes_per_s)

    return _not_slower(step, _with_device(step.setting.job.cluster, change), f"{what} rate x 2")


def closed_form(step: DrawnStep, chance: random.Random) -> str:
    """The closed form is as near to the simulation as it says."""
    del chance
    return errors_of(step).broken


def sums(step: DrawnStep, chance: random.Random) -> str:
    """Energy and time are the sums of their parts, and no device does more than it can."""
    del chance
    result = _result(step)
    energy, parts = result.energy_j, asdict(result.time_s)
    totals = {
        "energy by stage": (sum(energy.by_stage.values()), energy.total),
        "static and dynamic energy": (energy.static + energy.dynamic, energy.total),
        "energy by class": (sum(energy.by_class.values()), energy.total),
        "energy by component": (sum(energy.by_component.values()), energy.total),
        "energy of the ledger": (sum(entry.energy_j for entry in energy.ledger), energy.total),
        "time by part": (sum(parts.values()), result.step_time_s),
        "memory by category": (
            sum(result.memory.by_category.values()), result.memory.peak_bytes
        ),
    }  # fmt: skip
    for name, (found, whole) in totals.items():
        if not math.isclose(found, whole, rel_tol=_ROUNDING):
            return f"{name}: {found}, not {whole}"
    if min(parts.values()) < -_ROUNDING * result.step_time_s:
        return f"a part of the time below zero: {parts}"
    if not 0 < result.mfu <= result.hfu * (1 + _ROUNDING) <= 1 + 2 * _ROUNDING:
        return f"mfu {result.mfu}, hfu {result.hfu}: expected 0 < mfu <= hfu <= 1"
    static_j = result.step_time_s * result.average_power_w
    if not 0 < static_j <= energy.total * (1 + _ROUNDING):
        return f"average power x time is {static_j} J of {energy.total} J, PUE included"
    return ""


# ------------------------------------------------------------------ how a job is written

#: Key → the same quantity in other units of its dimension.
_QUANTITIES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "cluster.power_limit": (("400 W", "0.4 kW", "400000 mW"), ("350 W", "0.35 kW")),
    "energy.price": (("0.1 USD/kWh", "0.1 $/kWh"),),
    "data.loader.decode": (("2 ms", "2000 us", "0.002 s"), ("1 s", "1000 ms")),
    "data.loader.sample_bytes": (("110 kB", "0.11 MB", "110000 B"), ("1 MiB", "1024 KiB")),
    "energy.embodied.device": (("150 kgCO2e", "150000 gCO2e", "0.15 tCO2e"),),
    "energy.embodied.lifetime": (("1460 d", "35040 h"),),
}


def _mapping(chance: random.Random) -> dict[str, Any]:
    """Return a small job with a quantity at each of `_QUANTITIES`."""
    node, nodes = CLUSTERS[chance.choice(sorted(CLUSTERS))]
    mapping: dict[str, Any] = {
        "model": {"transformer": dict(MODELS[chance.choice(sorted(MODELS))])},
        "data": {
            "sequence_length": chance.choice((512, 2048)),
            "global_batch": 64,
            "loader": {"workers": 4},
        },
        "cluster": {"node": node, "nodes": nodes},
        "strategy": {
            "dp": 4 * nodes,
            "tp": 2,
            "micro_batch": chance.choice((1, 2)),
            "sharding": chance.choice(("none", "zero1", "zero3")),
        },
        "energy": {"embodied": {}},
    }
    for place, choices in _QUANTITIES.items():
        _put(mapping, place, chance.choice(choices)[0])
    return mapping


def _put(mapping: dict[str, Any], place: str, value: str) -> None:
    *sections, key = place.split(".")
    for section in sections:
        mapping = mapping[section]
    mapping[key] = value


def _figures(mapping: Mapping[str, Any]) -> dict[str, Any]:
    result = simulate(job_from_mapping(mapping)).result.as_json()
    del result["simulation"]  # how long that took
    return dict(result)


def _differing(one: Any, other: Any, place: str = "") -> str:
    """Return the first place where two results differ by more than rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping) and set(one) == set(other):
        found = (_differing(one[key], other[key], f"{place}.{key}") for key in one)
        return next(filter(None, found), "")
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) == len(other):
            found = (_differing(a, b, place) for a, b in zip(one, other, strict=True))
            return next(filter(None, found), "")
    elif isinstance(one, float) and isinstance(other, float):
        return "" if math.isclose(one, other, rel_tol=1e-9) else f"{place}: {one}, not {other}"
    return "" if one == other else f"{place}: {one!r}, not {other!r}"


def units(step: DrawnStep, chance: random.Random) -> str:
    """A quantity in another unit of its dimension is the same quantity."""
    del step
    mapping = _mapping(chance)
    before = _figures(mapping)
    for place, choices in _QUANTITIES.items():
        *sections, key = place.split(".")
        holder = mapping
        for section in sections:
            holder = holder[section]
        same = next(group for group in choices if group[0] == holder[key])
        holder[key] = chance.choice(same)
    return _differing(_figures(mapping), before)


def key_order(step: DrawnStep, chance: random.Random) -> str:
    """The order of keys means nothing."""
    del step
    mapping = _mapping(chance)
    return _differing(_figures(_shuffled(mapping, chance)), _figures(mapping))


def _shuffled(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, Mapping):
        return value
    keys = list(value)
    chance.shuffle(keys)
    return {key: _shuffled(value[key], chance) for key in keys}


LAWS: Mapping[str, Law] = {
    law.__name__: law
    for law in (more_memory, faster_links, faster_device, closed_form, sums, units, key_order)
}


def broken_laws(seed: int, number: int) -> list[tuple[str, str]]:
    """Return the laws that job `number` of a seed breaks, each with how."""
    step = drawn_step(random.Random(f"{seed} job {number}"))
    found = []
    for name, law in LAWS.items():
        broken = law(step, random.Random(f"{seed} {name} {number}"))
        if broken:
            found.append((name, f"{broken} [{step.words}]"))
    return found


def rows_validated(path: Path) -> None:
    """Predict measured rows: each is predicted, or skipped with its reason."""
    from wattree.validation import validate
    from wattree.validation.rows import read_rows

    rows = read_rows(path)
    scored = validate([path]).scored
    missing = {row.row_id for row in rows} - {each.row.row_id for each in scored}
    assert not missing, f"rows without a verdict: {sorted(missing)}"
    silent = [each.row.row_id for each in scored if each.predicted is None and not each.skipped]
    assert not silent, f"rows neither predicted nor skipped with a reason: {silent}"
    wrong = [e.row.row_id for e in scored if e.predicted is not None and not e.predicted > 0]
    assert not wrong, f"rows predicted as nothing: {wrong}"
