"""Results of studies that no one ran: laws simple enough to know every answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from wattree.design import Axis, Outcome, Results, Study, Workload, WorkloadOutcome
from wattree.design.points import Value, point_of
from wattree.design.study import Target

__all__ = ["NASTY", "axis", "expansion_results", "large_results", "outcome", "study"]

#: What a file may hold to do harm in a page.
NASTY = "<script>window.harmed = 1</script>\"'&</script><!--"


def axis(name: str, values: Sequence[Value], unit: str | None = None, factor: float = 1.0) -> Axis:
    """Return an axis whose label is its name in words."""
    label = name.replace("_", " ")
    return Axis(name=name, path=name, values=tuple(values), unit=unit, label=label, factor=factor)


def study(axes: Sequence[Axis], workloads: Sequence[str] = ("llm",), **more: object) -> Study:
    """Return a study of these axes, wanting time, energy and cost."""
    found = tuple(
        Workload(name=name, weight=1.0, job={}, target=Target(steps=1000.0)) for name in workloads
    )
    return Study(
        name="synthetic",
        workloads=found,
        cluster={},
        axes=tuple(axes),
        objectives=("time", "energy", "cost"),
        **more,  # type: ignore[arg-type]
    )


def outcome(
    values: Mapping[str, Value],
    *,
    step_s: float,
    power_w: float,
    capital_usd: float,
    workloads: Sequence[str] = ("llm",),
    reason: str | None = None,
    strategy: str = "dp 8",
) -> Outcome:
    """Return what became of a point whose workloads all take a step of `step_s`."""
    if reason is not None:
        none = tuple(
            WorkloadOutcome(workload=name, feasible=False, reason=reason) for name in workloads
        )
        return Outcome(point=point_of(values), feasible=False, reason=reason, workloads=none)
    time_s, energy_j = 1000 * step_s, 1000 * step_s * power_w
    found = tuple(
        WorkloadOutcome(
            workload=name,
            feasible=True,
            strategy=strategy,
            strategy_json={"mesh": {"dp": 8}},
            devices=8,
            step_time_s=step_s,
            time_s=time_s,
            energy_j=energy_j,
            cost_usd=time_s * capital_usd / 1e8,
            carbon_gco2e=energy_j / 3.6e6 * 400,
            average_power_w=power_w,
            peak_power_w=1.2 * power_w,
            memory_bytes=6e10,
            time_parts_s={"compute": 0.7 * step_s, "exposed communication": 0.3 * step_s},
            energy_by_stage_j={"compute": 0.8 * step_s * power_w, "idle": 0.2 * step_s * power_w},
            simulated=place == 0,
        )
        for place, name in enumerate(workloads)
    )
    n = len(workloads)
    totals = {
        "time_s": n * time_s,
        "energy_j": n * energy_j,
        "cost_usd": n * time_s * capital_usd / 1e8,
        "carbon_gco2e": n * energy_j / 3.6e6 * 400,
        "power_w": 1.2 * power_w,
        "capital_usd": capital_usd,
    }
    return Outcome(point=point_of(values), feasible=True, workloads=found, totals=totals)


def expansion_results() -> Results:
    """Return devices × expanded capacity × its bandwidth, with a break-even at 250 GB/s.

    Without expansion a step takes 8 s on eight nodes; with it 5 s, and 3 s more for moving at
    250 GB/s. One node is too small without it.
    """
    gb = 1e9
    axes = (
        axis("nodes", (1, 8, 16)),
        axis("expanded_capacity", (0.0, 480 * gb), "GB", gb),
        axis("expanded_bandwidth", (100 * gb, 200 * gb, 400 * gb, 1000 * gb), "GB/s", gb),
    )
    outcomes = []
    for nodes, capacity, bandwidth in itertools.product(*(one.values for one in axes)):
        values = {"nodes": nodes, "expanded_capacity": capacity, "expanded_bandwidth": bandwidth}
        expanded = bool(capacity)
        step_s = (5 + 3 * 250 * gb / float(bandwidth) if expanded else 8) * 8 / float(nodes)
        outcomes.append(
            outcome(
                values,
                step_s=step_s,
                power_w=10e3 * float(nodes),
                capital_usd=float(nodes) * (3e5 + (2e4 if expanded else 0)),
                reason=None if expanded or nodes > 1 else "lacks 412 GB of device memory",
                strategy="tp 8, zero_3" if expanded else "tp 8 × pp 4, 1f1b",
            )
        )
    return Results(study=study(axes), outcomes=tuple(outcomes), points=len(outcomes))


def large_results(points: int, seed: int = 0) -> Results:
    """Return a grid of six axes with two workloads, a tenth of it infeasible."""
    rng = np.random.default_rng(seed)
    axes = (
        axis("topology", ("fat tree", "torus", "dragonfly", "rail")),
        axis("nodes", (16, 32, 64, 128, 256)),
        axis("memory", tuple(g * 1e9 for g in (40.0, 80.0, 120.0, 160.0, 200.0)), "GB", 1e9),
        axis("link_bandwidth", tuple(g * 1e9 for g in (25.0, 50.0, 100.0, 200.0)), "GB/s", 1e9),
        axis("power_limit", (400.0, 500.0, 600.0, 700.0, 800.0), "W"),
        axis(
            "energy_price",
            tuple(c / 3.6e6 for c in (0.05, 0.1, 0.2, 0.3, 0.4)),
            "USD/kWh",
            1 / 3.6e6,
        ),
    )
    names = ("language model", "recommender")
    degrees = rng.choice([1, 2, 4, 8], (points, 2))
    grid = itertools.islice(itertools.product(*(one.values for one in axes)), points)
    outcomes = []
    for (tp, pp), values in zip(degrees.tolist(), grid, strict=False):
        by_name = dict(zip((one.name for one in axes), values, strict=True))
        nodes, link, limit = (float(by_name[k]) for k in ("nodes", "link_bandwidth", "power_limit"))
        noise = float(np.exp(rng.normal(0, 0.05)))
        step_s = noise * (2000 / nodes * (700 / limit) ** 0.4 + 4e11 / link)
        outcomes.append(
            outcome(
                by_name,
                step_s=step_s,
                power_w=nodes * limit * 8,
                capital_usd=nodes * (2.5e5 + link / 1e6),
                workloads=names,
                reason="lacks 31 GB of device memory" if rng.random() < 0.1 else None,
                strategy=f"tp {tp} × pp {pp}, 1f1b",
            )
        )
    return Results(study=study(axes, names), outcomes=tuple(outcomes), points=points)
