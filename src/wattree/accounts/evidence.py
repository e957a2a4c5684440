"""Evidence for each figure of a result."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.accounts.bill import energy_usd_per_j
from wattree.accounts.class_sums import ClassSums
from wattree.accounts.executed import ExecutedStep
from wattree.accounts.memory_use import PeakMemory
from wattree.cost import device_names, matrix_precision
from wattree.cost.device_power import math_constant
from wattree.cost.precisions import product_item
from wattree.job import Job
from wattree.trace import EnergyUse, Evidence

_ORDER = ("measured", "counted", "fitted", "chosen", "pooled", "datasheet")
#: Ends the note on a cost that is energy alone because no rent is known.
NO_RENT = "no rent of the node is known"
#: Constants of the power that work draws; that of products has its precision in its name.
_POWER = ("power_active", "power_memory", "power_held")


def provenance_of(
    step: ExecutedStep, sums: ClassSums, energy: EnergyUse, peak: PeakMemory
) -> Mapping[str, Evidence]:
    """Return quantity → evidence, weighted by the time, bytes or energy that rests on it."""
    job, class_pools = step.job, step.compilation.class_pools
    calibration, software = step.setting.calibration, step.setting.software
    precision = matrix_precision(job.precision)
    factors = calibration.math_constants(software, job.cluster.pools[0].node.device)
    family = factors[0].evidence if factors else calibration.evidence("pooled.math")
    shares: dict[str, float] = {}
    notes: dict[str, None] = {}
    total = max(float((sums.computing_s + sums.moving_s).sum()), 1e-30)
    for number, pool in enumerate(job.cluster.pools):
        device, mine = pool.node.device, class_pools == number
        products = calibration.found_for_device(device, product_item(device, precision))
        matmul = "datasheet" if products is None else products.evidence
        link = calibration.evidence(*device_names(device, "bus_efficiency"))
        for kind, seconds in ((matmul, sums.computing_s), (link, sums.moving_s)):
            shares[kind] = shares.get(kind, 0.0) + float(seconds[mine].sum()) / total
        notes[f"matrix rates of {device.name}: {matmul}; links: {link}"] = None
    if job.data.loader is not None:
        notes["loading: figures of the job or its preset, and the node's datasheet"] = None
    time = Evidence(
        evidence=_weakest(shares),
        share=shares,
        note=f"{'; '.join(notes)}; defaults of {software.name}: {family}",
    )
    return {
        "step_time_s": time,
        "memory.peak_bytes": _of_memory(step, peak),
        "energy_j": _of_energy(step, energy),
        "energy_j.by_component": _of_the_hosts(job),
    } | _of_the_site(job)


def _of_memory(step: ExecutedStep, peak: PeakMemory) -> Evidence:
    """Tensors are counted; the rest is as sure as the constants that were found for the device."""
    calibration = step.setting.calibration
    device = step.cluster.pools[step.compilation.class_pools[peak.rank_class]].node.device
    found = calibration.found_for_device(device, "memory_context_bytes")
    overhead = "datasheet" if found is None else found.evidence
    share = peak.tensors / peak.process if peak.process > 0 else 1.0
    shares = {"counted": share, overhead: 1.0 - share}
    level = "none" if found is None else found.level
    return Evidence(
        evidence=_weakest(shares),
        share=shares,
        note=f"tensors counted; overhead of the process: {overhead} ({level} of {device.name})",
    )


def _of_energy(step: ExecutedStep, energy: EnergyUse) -> Evidence:
    """Power at rest is the datasheet's; what work draws above it, by constants of the devices."""
    calibration = step.setting.calibration
    static = energy.static / energy.total if energy.total > 0 else 1.0
    shares = {"datasheet": static}
    notes: dict[str, None] = {}
    devices = [pool.node.device for pool in step.cluster.pools]
    for device in devices:
        found = [
            calibration.evidence(*device_names(device, item))
            for item in (*_POWER, math_constant(device, step.setting.peak_precision))
        ]
        weakest = max(found, key=_ORDER.index)
        shares[weakest] = shares.get(weakest, 0.0) + (1.0 - static) / len(devices)
        notes[f"power above rest of {device.name}: {weakest}"] = None
    return Evidence(
        evidence=max((k for k in shares if k != "datasheet"), key=_ORDER.index),
        share=shares,
        note=f"power at rest by datasheet; {'; '.join(notes)}",
    )


def _of_the_hosts(job: Job) -> Evidence:
    """Return what the overhead of the nodes rests on, part by part where a node tells them."""
    notes: dict[str, None] = {}
    for pool in job.cluster.pools:
        node = pool.node
        estimated = [
            name
            for name in node.host.parts
            if node.sources.get(f"host.parts.{name}", "").startswith("estimate:")
        ]
        rated = [name for name in node.host.parts if name not in estimated]
        parts = [f"{', '.join(rated)} as rated"] if rated else []
        parts += [f"{', '.join(estimated)} estimated"] if estimated else []
        parts += (
            ["the rest is what remains of its training power"] if parts else ["not distinguished"]
        )
        notes[f"host of {node.name}: {'; '.join(parts)}"] = None
    return Evidence(evidence="datasheet", share={"datasheet": 1.0}, note="; ".join(notes))


def _of_the_site(job: Job) -> dict[str, Evidence]:
    """Money and carbon rest on what is known of node and site, if anything is."""
    whole = {"datasheet": 1.0}
    found = {}
    prices = [pool.node.price_usd_per_s for pool in job.cluster.pools]
    if None not in prices:
        note = "list price of the node" if len(prices) == 1 else "list prices of the nodes"
        if job.terms.device_usd_per_s is not None:
            note = "the job's price of a device"
        if energy_usd_per_j(job.cluster) is not None:
            note = f"{note} and {_energy_price(job)}"
        found["cost_usd"] = Evidence(evidence="datasheet", share=whole, note=note)
    elif energy_usd_per_j(job.cluster) is not None:
        owned = job.cluster.site.bills_energy
        note = f"{_energy_price(job)}; {'nothing for the hardware' if owned else NO_RENT}"
        missing = () if owned else ("rent",)
        found["cost_usd"] = Evidence(evidence="datasheet", share=whole, note=note, missing=missing)
    if job.cluster.site.carbon_gco2e_per_j is not None:
        found["carbon_gco2e"] = Evidence(
            evidence="datasheet",
            share=whole,
            note=f"{_intensity(job)} PUE of {job.cluster.site.name}"
            + ("; embodied emissions of the job" if job.terms.embodied else ""),
        )
    return found


def _energy_price(job: Job) -> str:
    """Return where the price of energy is from, in words."""
    series = job.terms.series
    if series is not None and series.price_usd_per_j is not None:
        return f"average price of energy of {series.name}"
    if job.terms.price_usd_per_j is not None:
        return "the job's price of energy"
    return f"price of energy at {job.cluster.site.name}"


def _intensity(job: Job) -> str:
    """Return where the grid intensity is from, in words."""
    series = job.terms.series
    if series is not None and series.carbon_gco2e_per_j is not None:
        return f"average grid intensity of {series.name},"
    given = job.terms.carbon_gco2e_per_j is not None
    return "the job's grid intensity," if given else "grid intensity and"


def _weakest(shares: Mapping[str, float]) -> str:
    present = [kind for kind, share in shares.items() if share > 0.01]
    return max(present, key=_ORDER.index) if present else "datasheet"
