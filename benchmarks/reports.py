"""Runs of published reports that no row file has: predicted and published.

    python -m benchmarks.reports [FILE] [--json P]
    python -m benchmarks.reports --summary

FILE is `validation/reports.yaml` unless another is named; `--summary` has a line for each quantity
of each of these files. A report may have a step time, a peak of
allocated memory (compared with what is predicted without driver, communicators and what the
allocator holds besides tensors), a peak of `reserved` memory (with what the allocator holds), the
memory that its device shows as `used` (compared with all that is predicted), the `energy` of its
device a step, where it ran on one alone, the average `device_power` of a board, the average
`node_power` of a node without switches and facility, or say that it ran out of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.frame import plain_table, report_parser, show_report
from wattree import job_from_mapping, simulate
from wattree.errors import WattreeError
from wattree.files import read_yaml
from wattree.job import Job
from wattree.trace import Result
from wattree.units import format_bytes, format_quantity, format_time, parse_quantity

_FOLDER = Path(__file__).parents[1] / "validation"
#: Categories of memory that a published kind of peak leaves out.
WITHOUT = {
    "allocated": ("allocator", "context", "communication"),
    "reserved": ("context", "communication"),
    "used": (),
}
#: Components of energy that no node has.
_OUTSIDE = ("switch", "facility")
#: How quantities are written that are not bytes.
_WRITTEN: Mapping[str, Callable[[float], str]] = {
    "step_time_s": format_time,
    "energy_j": lambda value: format_quantity(value, "J"),
    "device_power_w": lambda value: format_quantity(value, "W"),
    "node_power_w": lambda value: format_quantity(value, "W"),
}
_HEAD = ("report", "published", "predicted", "80 %", "error", "inside", "fits")
_SUMMARY_HEAD = ("file", "quantity", "mean error", "median", "inside", "said not to fit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = report_parser(__doc__)
    default = _FOLDER / "reports.yaml"
    parser.add_argument("file", nargs="?", type=Path, default=default, help="reports as YAML")
    parser.add_argument("--summary", action="store_true", help="a line for each quantity of a file")
    options = parser.parse_args(arguments)
    if options.summary:
        by_file = {path.stem: _found(path) for path in sorted(_FOLDER.glob("reports*.yaml"))}
        rows = [row for name, found in by_file.items() for row in _summary(name, found)]
        table = plain_table("Published reports", _SUMMARY_HEAD, rows, left=2)
        show_report(by_file, options.json_path, table, width=100)
        return 0
    found = _found(options.file)
    table = plain_table("Published reports", _HEAD, [_line(each) for each in found], left=1)
    show_report({"reports": found}, options.json_path, table, width=120)
    return 0


def _found(path: Path) -> list[dict[str, Any]]:
    return [each for one in read_yaml(path)["reports"] for each in _predicted(one)]


def _summary(name: str, found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each quantity that a file has; what is refused has none, and counts."""
    refused = sum("refused" in each for each in found)
    if refused:
        yield (name, "refused", "", "", str(refused), "")
    for quantity in dict.fromkeys(each.get("quantity") for each in found):
        of_it = [each for each in found if "error" in each and each["quantity"] == quantity]
        if of_it:
            errors = [abs(each["error"]) for each in of_it]
            inside = f"{sum(each['inside'] for each in of_it)} of {len(of_it)}"
            unfit = str(sum(not each["fits"] for each in of_it))
            words = (f"{100 * mean(errors):.1f} %", f"{100 * median(errors):.1f} %")
            yield (name, str(quantity).removesuffix("_s"), *words, inside, unfit)


def _predicted(report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a comparison for each published quantity of a report."""
    name = report["name"]
    try:
        job = job_from_mapping(report["job"], source=name)
        result = simulate(job).result
    except WattreeError as error:
        yield {"name": name, "refused": str(error)}
        return
    fits = result.memory.fits
    if "step_time" in report:
        published = parse_quantity(report["step_time"], "s")
        found = _compared(published, result.step_time_s, result.interval["step_time_s"])
        yield {"name": name, "quantity": "step_time_s", **found, "fits": fits}
    if "energy" in report:
        parts = result.energy_j.by_component  # at rest, all devices of the node
        predicted_j = parts["device_static"] / job.cluster.devices + parts["device_dynamic"]
        share = predicted_j / result.energy_j.total
        bounds = [share * bound for bound in result.interval["energy_j"]]
        found = _compared(parse_quantity(report["energy"], "j"), predicted_j, bounds)
        yield {"name": name, "quantity": "energy_j", **found, "fits": fits}
    for key, predicted_w in _powers(job, result).items():
        if key in report:
            share = predicted_w / result.average_power_w
            bounds = [share * bound for bound in result.interval["average_power_w"]]
            found = _compared(parse_quantity(report[key], "w"), predicted_w, bounds)
            yield {"name": name, "quantity": f"{key}_w", **found, "fits": fits}
    for key, left_out in WITHOUT.items():
        if key in report:
            without = sum(result.memory.by_category.get(each, 0.0) for each in left_out)
            found = _compared(
                parse_quantity(report[key], "bytes"),
                result.memory.peak_bytes - without,
                [bound - without for bound in result.interval["memory.peak_bytes"]],
            )
            yield {"name": name, "quantity": f"{key}_bytes", **found, "fits": fits}
    if report.get("out_of_memory"):
        yield {"name": name, "quantity": "out_of_memory", "inside": not fits, "fits": fits}


def _powers(job: Job, result: Result) -> dict[str, float]:
    """Return the average power of a device at work, and of a node. [W]"""
    parts = result.energy_j.by_component
    device_j = parts["device_static"] / job.cluster.devices
    device_j += parts["device_dynamic"] / (result.ranks / result.processes_per_device)
    node_j = sum(part for name, part in parts.items() if name not in _OUTSIDE)
    nodes = sum(pool.nodes for pool in job.cluster.pools)
    return {
        "device_power": device_j / result.step_time_s,
        "node_power": node_j / nodes / result.step_time_s,
    }


def _compared(published: float, predicted: float, bounds: Sequence[float]) -> dict[str, Any]:
    low, high = bounds
    return {
        "published": published,
        "predicted": predicted,
        "interval": [low, high],
        "error": predicted / published - 1.0,
        "inside": low <= published <= high,
    }


def _line(each: Mapping[str, Any]) -> tuple[str, ...]:
    if "refused" in each:
        return (each["name"], "", "refused", "", "", "", "")
    fits, inside = ("yes" if each[key] else "no" for key in ("fits", "inside"))
    if "published" not in each:
        return (each["name"], "no memory", "", "", "", inside, fits)
    written = _WRITTEN.get(each["quantity"], format_bytes)
    published, predicted, low, high = map(
        written, (each["published"], each["predicted"], *each["interval"])
    )
    error = f"{100 * each['error']:+.1f} %"
    return (each["name"], published, predicted, f"{low} to {high}", error, inside, fits)


if __name__ == "__main__":
    sys.exit(main())
