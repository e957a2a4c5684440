"""Runs of published reports that no row file has: predicted beside published.

    python -m benchmarks.reports [FILE] [--json P]

FILE is `validation/reports.yaml` unless another is named.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import plain_table, report_parser, show_report
from wattree import job_from_mapping, simulate
from wattree.errors import WattreeError
from wattree.files import read_yaml
from wattree.units import format_time, parse_quantity

_FILE = Path(__file__).parents[1] / "validation" / "reports.yaml"
_HEAD = ("report", "published", "predicted", "80 %", "error", "inside", "fits")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=_FILE, help="reports as YAML")
    options = parser.parse_args(arguments)
    found = [_predicted(report) for report in read_yaml(options.file)["reports"]]
    table = plain_table("Published reports", _HEAD, [_line(each) for each in found], left=1)
    show_report({"reports": found}, options.json_path, table, width=120)
    return 0


def _predicted(report: Mapping[str, Any]) -> dict[str, Any]:
    published_s = parse_quantity(report["step_time"], "s")
    known: dict[str, Any] = {"name": report["name"], "published_s": published_s}
    try:
        result = simulate(job_from_mapping(report["job"], source=report["name"])).result
    except WattreeError as error:
        return known | {"refused": str(error)}
    low, high = result.interval["step_time_s"]
    return known | {
        "predicted_s": result.step_time_s,
        "interval": [low, high],
        "error": result.step_time_s / published_s - 1.0,
        "inside": low <= published_s <= high,
        "fits": result.memory.fits,
    }


def _line(each: Mapping[str, Any]) -> tuple[str, ...]:
    name, published = each["name"], format_time(each["published_s"])
    if "refused" in each:
        return (name, published, "refused", "", "", "", "")
    low, high = map(format_time, each["interval"])
    return (
        name,
        published,
        format_time(each["predicted_s"]),
        f"{low} to {high}",
        f"{100 * each['error']:+.1f} %",
        "yes" if each["inside"] else "no",
        "yes" if each["fits"] else "no",
    )


if __name__ == "__main__":
    sys.exit(main())
