"""How fast, how good and how safe studies are: screening, the screened optimum, Ray, kills.

python -m benchmarks.design --only rate|optimum|ray|kills [--json P]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Figure, Options, Section
from benchmarks.measure import ROOT
from wattree.design import Outcome, Study, run_study, study_from_mapping
from wattree.design.assign import drafted
from wattree.design.backends import Backend, StudyWork, backend_of
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
_RAY, _POINTS = 0.15, 64
_KILLS = 20
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


def ray(_: Options) -> Section | None:
    """Throughput of Ray on this machine against the pool of processes, start-up apart."""
    bandwidths = {"path": "node.scale_up.bandwidth", "range": ["100 GB/s", "900 GB/s"]}
    study = _study(
        {"model": "llama-3.1-8b", "data": {"sequence_length": 4096, "global_batch": 64}},
        {"pp": [1, 2], "cp": 1, "schedule": "1f1b", "simulate": 1},
        nodes=2,
        axes={"pod": {**bandwidths, "points": _POINTS}},
    )
    work = StudyWork(study=study, models=models_of(study))
    taken, found = {}, {}
    for on in ("processes", "ray"):
        try:
            backend = backend_of(on, work, workers=2, points=_POINTS)
        except Exception as error:  # noqa: BLE001 - Ray may not be there
            print(f"ray: left out: {error}", file=sys.stderr)
            return None
        try:
            found[on], taken[on] = _timed(backend, study)
        finally:
            backend.close()
    seconds = sum(o.seconds for o in found["processes"]) / len(found["processes"])
    share, alike = taken["ray"] / taken["processes"] - 1, found["ray"] == found["processes"]
    return Section(
        title="Ray on this machine against the pool of processes, two workers each",
        figures=(
            Figure(
                f"time of {len(found['ray'])} points of {1e3 * seconds:.0f} ms, Ray over pool",
                f"<= +{100 * _RAY:g} %",
                f"{100 * share:+.1f} %",
                share <= _RAY,
            ),
            Figure("results", "identical", "identical" if alike else "different", alike),
        ),
    )


def _timed(backend: Backend, study: Study) -> tuple[list[Outcome], float]:
    """Return the outcomes of a study, and the time they took after the workers had begun."""
    points = points_of(study)
    warm, points = points[:8], points[8:]
    began, outcomes, in_flight = 0.0, list[Outcome](), 0
    for batch in (warm, points):
        waiting, began = list(batch), time.perf_counter()
        while waiting or in_flight:
            taken, waiting = waiting[: backend.free_slots], waiting[backend.free_slots :]
            backend.submit(taken)
            done = backend.completed(1.0)
            in_flight += len(taken) - len(done)
            outcomes += done
    lasted = time.perf_counter() - began
    measured = {point.key for point in points}
    order = {point.key: number for number, point in enumerate(points)}
    kept = [o for o in outcomes if o.point.key in measured]
    return sorted(kept, key=lambda o: order[o.point.key]), lasted


def kills(_: Options) -> Section:
    """A study killed at random moments again and again, until it is finished."""
    with tempfile.TemporaryDirectory() as folder:
        expected = _run(Path(folder) / "whole.yaml")
        draw, sound, lost, killed = random.Random(_SEED), 0, 0, 0
        path = Path(folder) / "killed.yaml"
        while killed < _KILLS:
            told = _killed(path, draw)
            killed += 1
            ok, kept = _looked_at(path)
            sound += ok
            lost += max(told - kept, 0)
            if kept == len(expected):
                path = Path(folder) / f"killed-{killed}.yaml"
        same = _run(path) == expected
    lines = [
        Figure(f"database sound after {killed} kills", f"{killed}", f"{sound}", sound == killed),
        Figure("finished points lost", "0", f"{lost}", lost == 0),
        Figure("resumed result", "same", "identical" if same else "different", same),
    ]
    return Section(title="Kills (SIGKILL) at random moments", figures=tuple(lines))


_PROGRAM = """
import sys
from pathlib import Path
from benchmarks.design_rate import small
from wattree.design import run_study
run_study(small(Path(sys.argv[1])), on="processes", workers=2,
          progress=lambda done, *_: print(done, flush=True))
"""


def small(path: Path) -> Study:
    """Return a study of points of some milliseconds, with its file at `path`."""
    job = {"model": "llama-3.2-1b", "data": {"sequence_length": 1024, "global_batch": 16}}
    search = {"pp": 1, "cp": 1, "fsdp": 1, "sharding": "none", "micro_batch": 1, "simulate": 1}
    bandwidths = {"path": "node.scale_up.bandwidth", "range": ["100 GB/s", "900 GB/s"]}
    mapping = {
        "name": "small",
        "workloads": [{"name": "one", "job": job, "search": search}],
        "cluster": {"node": "dgx-a100"},
        "axes": {"pod": {**bandwidths, "points": 100}},
    }
    return study_from_mapping(mapping, str(path))


def _run(path: Path) -> tuple[Outcome, ...]:
    return run_study(small(path), on="processes", workers=2).outcomes


def _killed(path: Path, draw: random.Random) -> int:
    """Run the study, kill it at some moment, and return how many points it had told of."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )
    assert process.stdout is not None
    told = 0
    for _ in range(draw.randint(1, 12)):
        told = int(process.stdout.readline() or told)
    time.sleep(draw.random() * 0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return told


def _looked_at(path: Path) -> tuple[bool, int]:
    """Return whether the file of a study is sound, and how many finished points it holds."""
    with sqlite3.connect(path.with_name(f"{path.stem}.results.sqlite")) as file:
        (sound,) = file.execute("PRAGMA integrity_check").fetchone()
        rows = file.execute("SELECT outcome FROM points WHERE outcome NOT NULL").fetchall()
    file.close()
    return sound == "ok" and all(json.loads(text) for (text,) in rows), len(rows)
