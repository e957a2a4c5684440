"""How fast and how good studies are: screening, and the screened optimum.

python -m benchmarks.design --only rate|optimum [--json P]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.frame import Figure, Options, Section
from wattree.design import Study, study_from_mapping
from wattree.design.assign import drafted
from wattree.design.evaluate import Evaluator, limits_of, models_of
from wattree.design.samplers import points_of
from wattree.design.schema import SearchSpec
from wattree.predict import Setting, predicted
from wattree.search import Constraints, Known, Limits, best_strategy
from wattree.search.screen import screen
from wattree.search.space import enumerate_space

_RATE = 100_000.0
_OPTIMUM, _SPACES, _PLAYED = 0.02, 20, 180
#: Strategies whose memory is above the room by more in closed form never fit when simulated.
_NEAR = 1.1
_SEED = 2026

_LLAMA = {"model": "llama-3.1-70b", "data": {"sequence_length": 4096, "global_batch": 512}}
_AXES = {
    "pod": {"path": "node.scale_up.bandwidth", "values": ["100 GB/s", "300 GB/s", "900 GB/s"]},
    "network": {"path": "node.nic_bandwidth", "values": ["100 Gbit/s", "400 Gbit/s"]},
    "memory": {"path": "device.memory", "values": ["80 GB", "160 GB"]},
}


def _study(
    job: Mapping[str, Any], search: Mapping[str, Any], *, nodes: int, axes: Mapping[str, Any]
) -> Study:
    workload = {"name": "one", "job": dict(job), "search": dict(search), "target": {"steps": 100}}
    return study_from_mapping(
        {
            "name": "rate",
            "workloads": [workload],
            "cluster": {"node": "dgx-a100", "nodes": nodes, "site": "sweden"},
            "axes": dict(axes),
        }
    )


def rate(_: Options) -> Section:
    """Pairs of clusters and strategies that one core screens in a second."""
    lines = []
    for label, axes in (
        ("links", {key: _AXES[key] for key in ("pod", "network")}),
        ("links and memory", _AXES),
    ):
        study = _study(_LLAMA, {}, nodes=128, axes=axes)
        evaluator = Evaluator(study, models_of(study))
        points, known, pairs = points_of(study), Known(), 0
        began = time.process_time()
        for point in points:
            draft = drafted(study, point.values, dict(study.hardware))
            setting = evaluator.setting(study.workloads[0], draft, draft.cluster())
            pairs += len(
                known.estimates(setting, (setting.job.cluster.devices,), *limits_of(SearchSpec()))
            )
        second = pairs / (time.process_time() - began)
        lines.append(
            Figure(
                f"screening, {len(points)} clusters of 1,024 devices that differ in {label}",
                f">= {_RATE:,.0f} pairs/s",
                f"{second:,.0f} pairs/s ({pairs:,} pairs)",
                second >= _RATE,
            )
        )
    return Section(title="Screening across clusters and strategies, one core", figures=tuple(lines))


def optimum(options: Options) -> Section:
    """How far the strategy that a study finds is behind the best of all, each simulated."""
    draw = np.random.default_rng(_SEED)
    losses, sizes = [], []
    while len(losses) < _SPACES:
        setting, limits = _small(draw, options)
        space = enumerate_space(setting, limits=limits)
        screened = screen(setting, space)
        near = np.flatnonzero(screened.memory_bytes <= _NEAR * screened.capacity_bytes)
        if not 4 <= len(near) <= _PLAYED or not screened.fits(Constraints()).any():
            continue
        every = [
            predicted(setting, screened.options(index), detail=False).result
            for index in near.tolist()
        ]
        best = min(r.step_time_s for r in every if r.memory.fits)
        found = best_strategy(
            setting,
            objective="time",
            constraints=Constraints(),
            ranks=(setting.job.cluster.devices,),
            limits=limits,
            simulate=SearchSpec().simulate,
        )
        assert found.ranked is not None
        losses.append(found.ranked.result.step_time_s / best - 1)
        sizes.append(len(every))
    worst = max(losses)
    return Section(
        title="The strategy that is found against the best of a whole space, simulated",
        figures=(
            Figure(
                f"behind the optimum, {len(losses)} random spaces of {min(sizes)} to {max(sizes)}",
                f"<= {100 * _OPTIMUM:g} %",
                f"{100 * worst:.2f} % at most, {100 * float(np.mean(losses)):.2f} % on average",
                worst <= _OPTIMUM,
            ),
        ),
    )


def _small(draw: np.random.Generator, options: Options) -> tuple[Setting, Limits]:
    """Return a random job on a random cluster, and limits that leave few strategies."""
    job = {
        "model": str(draw.choice(["llama-3.2-1b", "llama-3.1-8b", "mixtral-8x7b"])),
        "data": {
            "sequence_length": int(draw.choice([1024, 4096])),
            "global_batch": int(draw.choice([32, 64, 96])),
        },
        "software": str(draw.choice(["megatron-core", "torchtitan"])),
    }
    axes = {
        "pod": {
            "path": "node.scale_up.bandwidth",
            "values": [f"{10 ** draw.uniform(10.5, 12):.6g} B/s"],
        },
        "network": {
            "path": "node.nic_bandwidth",
            "values": [f"{10 ** draw.uniform(9, 11):.6g} B/s"],
        },
        "flops": {"path": "device.flops", "values": [f"x{2 ** draw.uniform(-1, 2):.6g}"]},
    }
    study = _study(job, {}, nodes=int(draw.choice([1, 2, 4])), axes=axes)
    (point,) = points_of(study)
    draft = drafted(study, point.values, dict(study.hardware))
    evaluator = Evaluator(study, calibration=options.calibration)
    limits = Limits(
        shardings=tuple(draw.choice(["none", "zero1", "zero3"], 2, replace=False).tolist()),
        recomputations=(str(draw.choice(["none", "full"])),),
        micro_batches=tuple(draw.choice([1, 2, 4], 2, replace=False).tolist()),
        virtual_stages=(1, 2),
        axes={"cp": (1,), "fsdp": (1,), "ep": (1,)},
        contexts=(),
        schedules=("1f1b", "interleaved"),
    )
    return evaluator.setting(study.workloads[0], draft, draft.cluster()), limits
