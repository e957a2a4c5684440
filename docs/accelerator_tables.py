"""Put what was measured on accelerators, beside what is predicted, into the pages.

`python docs/accelerator_tables.py`, from the checkout. The figures are those of benchmarks/results,
which `make gpu` writes: docs/energy.md has steps by stage, as they are predicted now;
docs/colocation.md has several processes, as they were predicted from a profile of the same run;
docs/phantom.md has kernels, held against the roofline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wattree.cost import load_calibration, matmul_time_s
from wattree.hardware import Device, Precision, load_device
from wattree.trace import STAGES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_energy import stored  # noqa: E402 - found in a checkout alone

RESULTS = ROOT / "benchmarks" / "results"
#: Kernels of a phantom layer.
_SPLIT = ("local", "compress", "decompress")
#: Heads of columns, then rows.
Cells = Sequence[Sequence[str]]


def main() -> None:
    """Fill the pages."""
    for name, text in tables():
        page = ROOT / "docs" / f"{name}.md"
        begin, end = f"<!-- gpu-{name}:begin -->", f"<!-- gpu-{name}:end -->"
        head, rest = page.read_text(encoding="utf-8").split(begin)
        _, tail = rest.split(end)
        page.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}", encoding="utf-8")


def tables() -> Iterator[tuple[str, str]]:
    """Yield the name of each page, and what it has between its markers."""
    made: dict[str, Callable[[Path], Cells]] = {
        "energy": _energy,
        "colocation": _colocation,
        "phantom": _phantom,
    }
    for name, cells in made.items():
        parts = []
        for path in sorted(RESULTS.glob(f"gpu_{name}_*.json")):
            parts += [_place(_read(path)), _markdown(cells(path))]
        yield name, "\n\n".join(parts)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _place(found: Mapping[str, Any]) -> str:
    return (
        f"{found['device']} ({found['power_limit_w']:.0f} W), driver {found['driver']}, torch "
        f"{found['torch']}, CUDA {found['cuda']}:"
    )


def _markdown(cells: Cells) -> str:
    head, *rows = cells
    rule = ["---" if column < 2 else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _energy(path: Path) -> Cells:
    """Return time and energy of each model's step and of its stages that take time."""
    found: list[Sequence[str]] = [("step of", "stage", *_compared("time"), *_compared("energy"))]
    for row in stored(path)[1]:
        ours, theirs = row.predicted, row.measured
        for stage in ("all", *STAGES):
            is_all = stage == "all"
            times, energies = (
                [side.step_s if is_all else side.exposed_s[stage] for side in (ours, theirs)],
                [side.energy_j if is_all else side.by_stage_j[stage] for side in (ours, theirs)],
            )
            if times[1] > 0.01 * theirs.step_s:
                model = f"{row.training.model}, {row.training.batch}" if is_all else ""
                shown = [f"{each * 1e3:.1f} ms" for each in times]
                drawn = [f"{each:.2f} J" for each in energies]
                found.append((model, stage, *shown, _error(*times), *drawn, _error(*energies)))
    return found


def _colocation(path: Path) -> Cells:
    """Return what two processes gain over one."""
    found: list[Sequence[str]] = [
        ("bound by", "processes", "samples/s", *_compared("gain"), "J/sample")
    ]
    for line in _read(path)["lines"]:
        gain, predicted = line["gain"], line["predicted"]
        is_alone = line["processes"] == 1
        job = f"{line['bound']}: {line['model']}, {line['size']} pixels"
        compared = (
            ("", "", "")
            if is_alone
            else (
                f"{predicted:.2f} ×",
                f"{gain:.2f} ×",
                _error(predicted, gain),
            )
        )
        sharing = "one process" if is_alone else f"{line['processes']}, {line['sharing']}"
        energy = f"{line['energy_j']:.3f}"
        found.append((job if is_alone else "", sharing, f"{line['rate']:,.0f}", *compared, energy))
    return found


def _phantom(path: Path) -> Cells:
    """Return what kernels reach of the roofline, and times of a layer's forward pass."""
    result = _read(path)
    device, rows = load_device(result["known_as"]), result["rows"]
    found: list[Sequence[str]] = [
        (
            "ranks",
            "ghosts",
            *(f"{kernel}, of roofline" for kernel in _SPLIT),
            *_compared("forward"),
            "to rows, by FLOP",
            "measured",
        )
    ]
    for sizes, whole in ((row["sizes"], row) for row in rows if row["kernel"] == "rows"):
        layer = [row for row in rows if row["sizes"] == sizes and row is not whole]
        reached = [
            _range([row["fraction_of_roofline"] for row in layer if row["kernel"] == kernel])
            for kernel in _SPLIT
        ]
        forward = [row for row in layer if row["direction"] == "forward"]
        predicted_s = sum(_predicted_s(row, device) for row in forward)
        time_s, flop = (sum(row[name] for row in forward) for name in ("time_s", "flop"))
        found.append(
            (
                f"{sizes['ranks']}",
                f"{sizes['ghosts']}",
                *reached,
                f"{predicted_s * 1e6:.0f} us",
                f"{time_s * 1e6:.0f} us",
                _error(predicted_s, time_s),
                f"{flop / whole['flop']:.2f}",
                f"{time_s / whole['time_s']:.2f}",
            )
        )
    return found


def _predicted_s(row: Mapping[str, Any], device: Device) -> float:
    """Return the time of a matmul as steps are predicted. [s]"""
    calibration = load_calibration()
    m, n, k = (np.array([float(size)]) for size in row["shape"])
    share = calibration.device(device, "matmul.bf16")
    memory = calibration.learned(device, "memory_efficiency")
    time_s = matmul_time_s(
        m=m,
        n=n,
        k=k,
        groups=np.ones(1),
        flop_per_s=device.matrix_peak_flop_per_s(Precision.BF16) * share,
        compute_units=device.compute_units,
        traffic_bytes=np.array([row["bytes"]]),
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s * memory,
    )
    return float(time_s[0])


def _compared(what: str) -> tuple[str, str, str]:
    return f"{what}, predicted", "measured", "error"


def _range(shares: Sequence[float]) -> str:
    least, most = (f"{100 * each:.0f}" for each in (min(shares), max(shares)))
    return f"{least} %" if least == most else f"{least} to {most} %"


def _error(ours: float, theirs: float) -> str:
    return f"{100 * (ours / theirs - 1):+.0f} %"


if __name__ == "__main__":
    main()
