"""Training on this machine's accelerator: time and energy by stage, predicted and measured.

    python -m benchmarks.gpu_energy [--seconds S] [--out PATH] [--known-as NAME] [--from PATH]

VGG16, ResNet-50 and ViT-B/16 of the zoo train on synthetic images, a decoder of the sizes of
Llama 3.2 1B on synthetic tokens, half a minute each; the device's energy counter is read by stage
(`wattree.measure.Stages`). The result names device, driver and software; without a device nothing
is written. Only the device's energy is compared, as no meter of the node is read. `--from` needs no
device: it prints what a result measured and what is predicted now.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import wattree
from benchmarks.gpu_training import (
    RESULTS,
    Training,
    described,
    environment,
    refused,
    result_of,
    sees_no_device,
    train,
    write_result,
)
from wattree.errors import WattreeError
from wattree.hardware import canonical_name, load_device
from wattree.job import load_job
from wattree.predict import run_of
from wattree.trace import STAGES, Run

#: Batches that fill a data-center device; those of images leave room in 16 GB.
TRAININGS = (
    Training(model="vgg-16", batch=64),
    Training(model="resnet-50", batch=128),
    Training(model="vit-b-16", batch=64),
    Training(model="llama-3.2-1b", batch=2, tokens=2048),
)
SECONDS = 30.0

#: A node around one device, whose name is left open. What it says besides does not reach the
#: device's energy and time: images are made in host memory, so no storage is read, and copies take
#: the device's own link to the host, not that to other devices.
NODE = """
name: one-device
title: "One device of this machine"
device: {device}
fabric: nvlink-only
sources: {{here: "this benchmark reads no more of the node"}}
devices: {{value: 1, source: here}}
scale_up:
  kind: pcie
  bandwidth: {{value: "32 GB/s", source: here}}
  latency: {{value: "5 us", source: here}}
  domain_devices: {{value: 1, source: here}}
  in_network_reduction: {{value: false, source: here}}
nics: {{value: 1, source: here}}
nic_bandwidth: {{value: "10 Gbit/s", source: here}}
nic_latency: {{value: "30 us", source: here}}
host:
  cpu_cores: {{value: 16, source: here}}
  memory: {{value: "64 GB", source: here}}
  storage_read: {{value: "1000 GB/s", source: here}}
  idle: {{value: "60 W", source: here}}
  busy: {{value: "150 W", source: here}}
price: null
"""
_JOB = """
model: {model}
data:
  global_batch: {batch}{sequence}
  loader: {{workers: 1, sample_bytes: 1 B, tensor_bytes: {tensor_bytes} B, pinned: false}}
precision: bf16
optimizer: sgd
software: pytorch
traits: {{tuned_convolutions: false}}
cluster: {{node: ./node.yaml, power_limit: "{power_limit_w} W"}}
strategy: {{preset: ddp, dp: 1, micro_batch: {batch}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a step of one device takes, predicted or measured.

    Attributes:
        step_s: Its time. [s]
        exposed_s: Stage → what of it is that stage's. [s]
        energy_j: Of the device. [J]
        by_stage_j: Stage → energy; None where the meter could not tell. [J]
        notes: How they were separated, or why not; what happened to the meter.
    """

    step_s: float
    exposed_s: Mapping[str, float]
    energy_j: float
    by_stage_j: Mapping[str, float] | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training on both sides."""

    training: Training
    steps: int
    predicted: Side
    measured: Side

    def as_json(self) -> dict[str, Any]:
        """Return plain data, with relative errors of the prediction."""
        return {
            **asdict(self),
            "error": {
                "step_s": self.predicted.step_s / self.measured.step_s - 1,
                "energy_j": self.predicted.energy_j / self.measured.energy_j - 1,
            },
        }


def device_of(name: str) -> str:
    """Return the catalog's name of a device from what its driver calls it.

    Raises:
        UnknownNameError: It is not in the catalog: nothing similar is put in its place.
    """
    return canonical_name("device", name)


def predicted(training: Training, device: str, *, power_limit_w: float) -> Side:
    """Return what Wattree says of a step on one device of the catalog.

    Args:
        device: Name in the catalog, or file.
        power_limit_w: Its limit. [W]
    """
    limit_w = min(power_limit_w, load_device(device).tdp_w)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "node.yaml").write_text(NODE.format(device=device), encoding="utf-8")
        text = _JOB.format(
            model=training.model,
            batch=training.batch,
            sequence=f"\n  sequence_length: {training.tokens}" if training.tokens else "",
            tensor_bytes=training.tensor_bytes,
            power_limit_w=limit_w,
        )
        (place / "job.yaml").write_text(text, encoding="utf-8")
        job = load_job(place / "job.yaml")
        prediction = wattree.simulate(job)
    by_stage = dict.fromkeys(STAGES, 0.0)
    for entry in prediction.result.energy_j.ledger:
        if entry.component.startswith("device_"):
            by_stage[entry.stage] += entry.energy_j
    run = run_of(job, prediction, steps=1, name=training.model)
    return Side(
        step_s=prediction.result.step_time_s,
        exposed_s={stage: run.stages[stage].exposed_s for stage in STAGES},
        energy_j=sum(by_stage.values()),
        by_stage_j=by_stage,
    )


def measured(run: Run) -> Side:
    """Return what a step of a measured run took; all its meters are of the device."""
    steps = run.iterations
    energies = {stage: run.stages[stage].energy_j for stage in STAGES}
    by_stage = {stage: each / steps for stage, each in energies.items() if each is not None}
    return Side(
        step_s=run.wall_s / steps,
        exposed_s={stage: run.stages[stage].exposed_s / steps for stage in STAGES},
        energy_j=run.energy_j / steps,
        by_stage_j=by_stage if len(by_stage) == len(STAGES) else None,
        notes=(*run.notes, *(f"{m.domain}: {m.note}" for m in run.meters if m.note)),
    )


def stored(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return a result as it was written, and its rows as they are predicted now."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for row in found["rows"]:
        training = Training(**row["training"])
        side = predicted(training, found["known_as"], power_limit_w=found["power_limit_w"])
        old = Side(**row["measured"])
        rows.append(Row(training=training, steps=row["steps"], predicted=side, measured=old))
    return found, rows


def table(rows: Sequence[Row], title: str) -> Table:
    """Return predicted against measured: step and each stage, in time and energy."""
    found = Table(title=title, title_justify="left")
    for name in ("model", "of a step"):
        found.add_column(name)
    for name in ("time pred.", "measured", "error", "energy pred.", "measured", "error", "W"):
        found.add_column(name, justify="right")
    for row in rows:
        ours, theirs = row.predicted, row.measured
        power = f"{ours.energy_j / ours.step_s:.0f} / {theirs.energy_j / theirs.step_s:.0f}"
        cells = _cells(ours.step_s, theirs.step_s, ours.energy_j, theirs.energy_j)
        found.add_row(f"{row.training.model}, {row.training.batch}", "all", *cells, power)
        for stage in STAGES:
            energies = [
                None if s.by_stage_j is None else s.by_stage_j[stage] for s in (ours, theirs)
            ]
            cells = _cells(ours.exposed_s[stage], theirs.exposed_s[stage], *energies)
            found.add_row("", stage, *cells, "", style="dim")
        found.add_section()
    return found


def _cells(
    time_a: float, time_b: float, energy_a: float | None, energy_b: float | None
) -> tuple[str, ...]:
    def number(value: float | None, scale: float) -> str:
        return "unknown" if value is None else f"{value * scale:.3f}"

    def error(ours: float | None, theirs: float | None) -> str:
        return f"{ours / theirs - 1:+.1%}" if ours and theirs else ""

    return (
        f"{number(time_a, 1e3)} ms",
        f"{number(time_b, 1e3)} ms",
        error(time_a, time_b),
        f"{number(energy_a, 1.0)} J",
        "unknown" if energy_b is None else f"{number(energy_b, 1.0)} J",
        error(energy_a, energy_b),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print the table and write the result; say so where there is no accelerator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each training")
    parser.add_argument("--known-as", help="the device's name in the catalog")
    parser.add_argument("--out", type=Path, help="file to write, instead of one in results/")
    parser.add_argument(
        "--from", type=Path, dest="stored", metavar="PATH", help="print this result; no device"
    )
    given = parser.parse_args(arguments)

    if given.stored:
        _show(*stored(given.stored))
        return 0
    if sees_no_device("trained or written"):
        return 0
    import pynvml

    try:
        result = _result(environment(0, pynvml), given.seconds, given.known_as)
    except WattreeError as error:
        return refused("gpu_energy", error)
    name = f"gpu_energy_{result['known_as']}.json"
    out = given.out or RESULTS / name
    write_result(result, out)
    return 0


def _result(found: dict[str, Any], seconds: float, known_as: str | None) -> dict[str, Any]:
    device = device_of(known_as or found["device"])  # before a minute is spent
    rows = []
    for training in TRAININGS:
        side = predicted(training, device, power_limit_w=found["power_limit_w"])
        run = train(training, device="cuda:0", seconds=seconds, meters=("nvml",))
        rows.append(
            Row(training=training, steps=run.iterations, predicted=side, measured=measured(run))
        )
    _show(found, rows)
    figures = {"seconds": seconds, "rows": [row.as_json() for row in rows]}
    return result_of("wattree-gpu-energy/1", found, device, **figures)


def _show(found: Mapping[str, Any], rows: Sequence[Row]) -> None:
    Console(width=120).print(table(rows, described(found)))
    for row in rows:
        for note in row.measured.notes:
            print(f"  {row.training.model}: {note}")


if __name__ == "__main__":
    raise SystemExit(main())
