"""Several processes on one accelerator: throughput, utilization, energy, with the prediction.

    python -m benchmarks.gpu_colocation [--seconds S] [--only JOB] [--out FILE]

`make gpu-colocation` runs it: three jobs, bound by the loader (large images, one worker), by
launches (a network of many small kernels on small images) and by computation (a large batch), with
1 and 2 processes on the first device, under MPS and in turns, each with the batch that one has and
the same loader workers in all. `--processes 1 2 3 4 6` takes longer. The result goes to
benchmarks/results and names device, driver and software. `--device cpu` tries the program itself,
where nothing is written unless `--out` says so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import wattree
from benchmarks.colocation_gain import profiled
from benchmarks.colocation_predicted import MeasuredStep, predicted_gain
from benchmarks.gpu_colocation_job import MODELS
from benchmarks.gpu_energy import NODE, device_of
from benchmarks.gpu_training import (
    RESULTS,
    environment,
    result_of,
    sees_no_device,
    write_result,
)
from wattree.cost.colocation import capacity_of_fill
from wattree.errors import RunError, UnknownNameError, WattreeError
from wattree.job import job_from_mapping
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.tune import TrialSetting
from wattree.runtime.tune.measured import TrialOptions, Trials

_SCRIPT = Path(__file__).parent / "gpu_colocation_job.py"
_RULE = "fixed-per-process"
PROCESSES = (1, 2)
#: The published gain on one device (AccDP, HiPC 2022), and how far predictions may be off.
GOAL, CLOSE = 1.58, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained.

    Attributes:
        model: One of `MODELS`.
        size: Of an image's side. [pixels]
        batch: Samples of a process.
        workers: Of the device's loaders.
    """

    model: str
    size: int
    batch: int = 32
    workers: int = 12

    def words(self) -> tuple[str, ...]:
        """Return the arguments of the script, but for its workers."""
        return ("--model", self.model, "--size", str(self.size), "--batch", str(self.batch))


#: By what bounds them where one process has the device.
JOBS = {
    "loader": Job(model="resnet-18", size=224, batch=64, workers=1),
    "launches": Job(model="shufflenet", size=32),
    "computation": Job(model="resnet-18", size=224, batch=256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the table.

    Attributes:
        bound: What bounds the job, of `JOBS`.
        model, size, sharing: What, of how many pixels, and how the device is shared.
        setting: In words.
        rate: Samples per second; 0 where it could not be measured, for which `fault` says why.
        gain: Over one process with the same batch.
        predicted: The same as predicted from a profile of one process.
        busy: Share of the time in which the device had a kernel.
        energy_j: By sample.
    """

    bound: str
    model: str
    size: int
    sharing: str
    setting: str
    processes: int
    rate: float
    gain: float
    predicted: float
    busy: float | None
    energy_j: float | None
    fault: str = ""


def lines_of(
    bound: str,
    job: Job,
    *,
    device: str,
    known_as: str | None,
    seconds: float,
    processes: Sequence[int] = PROCESSES,
) -> Iterator[Line]:
    """Measure one job in every way.

    Args:
        device: `cuda` or `cpu`.
        known_as: The device's name in the catalog; None: what MPS fills is not predicted.
        seconds: Length of each measurement. [s]
        processes: Numbers of processes.

    Raises:
        RunError: One process alone cannot train.
    """
    words = (*job.words(), "--workers", str(job.workers))
    profile = profiled(_SCRIPT, words, LaunchOptions(device=device, devices=1), os.environ)
    fill = _fill(job, known_as)
    alone: Any = None
    for sharing in ("mps", "time-sliced") if device == "cuda" else ("processor",):
        trials = _trials(job, sharing, device, seconds)
        settings = [TrialSetting(processes=count) for count in processes if count > 1]
        if alone is None:
            settings = [TrialSetting(), *settings]
        for setting in settings:
            row = trials(setting)
            if alone is None:
                alone = row
                if row.fault:
                    raise RunError(str(_SCRIPT), [row.fault])
            yield Line(
                bound=bound,
                model=job.model,
                size=job.size,
                sharing=sharing if setting.processes > 1 else "alone",
                setting=setting.words(),
                processes=setting.processes,
                rate=row.rate,
                gain=row.rate / alone.rate,
                predicted=predicted(profile, setting.processes, sharing, fill),
                busy=row.busy,
                energy_j=row.energy_j,
                fault=row.fault,
            )


def predicted(
    profile: Mapping[str, float], processes: int, sharing: str, fill: float | None
) -> float:
    """Return the gain of processes with a batch each, from a profile of one.

    Args:
        sharing: `mps`, `time-sliced` or `processor`.
        fill: Share of the device's units that kernels fill; None: all of them.
    """
    gaps = max(profile["step_s"] - profile["waiting_s"] - profile["device_s"], 0.0)
    overlaps = sharing == "mps" and fill is not None
    alone = MeasuredStep(
        device_s=profile["device_s"],
        waiting_s=profile["waiting_s"],
        gaps_s=gaps,
        alternations=max(int(profile["kernels"]), 1),
    )
    return predicted_gain(
        alone,
        processes,
        rule=_RULE,
        cores=len(os.sched_getaffinity(0)) if sharing == "processor" else None,
        capacity=float(capacity_of_fill(fill)) if overlaps and fill is not None else 1.0,
    )


def table(lines: Sequence[Line], title: str) -> Table:
    """Return what was measured, as a table."""
    found = Table(title=title, title_justify="left")
    for name in ("bound by", "model", "pixels", "shared by", "setting"):
        found.add_column(name)
    for name in ("samples/s", "gain", "predicted", "error", "busy", "J/sample"):
        found.add_column(name, justify="right")
    for line in lines:
        head = (line.bound, line.model, str(line.size), line.sharing, line.setting)
        if line.fault:
            found.add_row(*head, f"cannot: {line.fault[:60]}")
            continue
        found.add_row(
            *head,
            f"{line.rate:,.0f}",
            f"{line.gain:.2f}",
            f"{line.predicted:.2f}",
            f"{line.predicted / line.gain - 1:+.0%}",
            "" if line.busy is None else f"{line.busy:.0%}",
            "no meter" if line.energy_j is None else f"{line.energy_j:.3g}",
        )
    return found


def _fill(job: Job, known_as: str | None) -> float | None:
    """Return the share of the device that kernels fill, as simulated; None where it cannot be."""
    if known_as is None:
        return None
    network: Any = {"name": MODELS[job.model], "arguments": {"image_size": job.size}}
    if job.model == "mlp":
        network = {"ffn": {"width": 512, "depth": 4, "inputs": 3 * job.size**2, "outputs": 10}}
    try:
        with tempfile.TemporaryDirectory() as made:
            node = Path(made) / "node.yaml"
            node.write_text(NODE.format(device=known_as), encoding="utf-8")
            strategy = {"preset": "ddp", "processes_per_device": 2, "batch_rule": _RULE}
            two = job_from_mapping(
                {
                    "model": network,
                    "data": {"global_batch": job.batch},
                    "precision": "bf16",
                    "optimizer": "sgd",
                    "software": "pytorch",
                    "cluster": {"node": str(node)},
                    "strategy": strategy,
                }
            )
            use = wattree.simulate(two).result.colocation
    except WattreeError as error:
        print(f"{job.model}: what its kernels fill is not known: {error}", file=sys.stderr)
        return None
    return None if use is None else use.fill


def _trials(job: Job, sharing: str, device: str, seconds: float) -> Trials:
    launch = LaunchOptions(
        device=device,
        devices=1,
        batch_rule=_RULE,
        with_mps={"mps": True, "time-sliced": False}.get(sharing),
        loader_workers=job.workers,
    )
    command = [sys.executable, str(_SCRIPT), *job.words(), "--workers", str(job.workers)]
    return Trials(
        lambda _: command,
        TrialOptions(launch=launch, seconds=seconds, limit_s=300.0),
        environment=os.environ,
        say=lambda line: print(line, file=sys.stderr),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the result; say so where there is no accelerator."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--only", choices=sorted(JOBS), help="one job, by what bounds it")
    parser.add_argument("--processes", type=int, nargs="+", default=PROCESSES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--known-as", help="the device's name in the catalog")
    parser.add_argument("--out", type=Path, help="file to write, instead of one in results/")
    given = parser.parse_args(arguments)
    import torch

    found: dict[str, Any] = {"device": "CPU", "torch": str(torch.__version__)}
    known_as = None
    if given.device == "cuda":
        if sees_no_device("measured or written"):
            return 0
        import pynvml

        found = environment(0, pynvml)
        try:
            known_as = device_of(given.known_as or found["device"])
        except UnknownNameError as error:
            print(f"benchmarks.gpu_colocation: {error}: no prediction of MPS", file=sys.stderr)
    lines: list[Line] = []
    for bound in [given.only] if given.only else JOBS:
        lines += lines_of(
            bound,
            JOBS[bound],
            device=given.device,
            known_as=known_as,
            seconds=given.seconds,
            processes=given.processes,
        )
    Console(width=130).print(table(lines, f"{found['device']}, torch {found['torch']}"))
    _print_verdict(lines)
    name = f"gpu_colocation_{known_as or 'device'}.json"
    out = given.out or (RESULTS / name if given.device == "cuda" else None)
    if out is not None:
        figures = {"seconds": given.seconds, "lines": [asdict(line) for line in lines]}
        write_result(result_of("wattree-gpu-colocation/2", found, known_as, **figures), out)
    return 0


def _print_verdict(lines: Sequence[Line]) -> None:
    several = [line for line in lines if line.processes > 1 and not line.fault]
    if not several:
        print("nothing was measured with several processes")
        return
    best = max(several, key=lambda line: line.gain)
    close = [abs(line.predicted / line.gain - 1) <= CLOSE for line in several]
    print(
        f"best: bound by {best.bound}, {best.setting} ({best.sharing}): "
        f"{best.gain:.2f} x, goal {GOAL} x: {'met' if best.gain >= GOAL else 'MISSED'}"
    )
    print(f"predictions within {CLOSE:.0%}: {sum(close)} of {len(close)}")


if __name__ == "__main__":
    raise SystemExit(main())
