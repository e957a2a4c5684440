"""What published servers draw idle and busy: makes the constants of the estimating meter.

    python -m benchmarks.server_power ../shared/opdata [--write]

The medians and quartiles ship, the table does not.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattree.measure import meters

TARGET = Path(meters.__file__).parent / "server_power.json"
SOURCE = (
    "SPECpower_ssj2008 results published 2017 to 2026 as collected by cloud-carbon-footprint/"
    "ccf-coefficients (b0032d9, data), power at 100 % load and at active idle; rated power of "
    "processors from mlco2/codecarbon (b05965e, data)"
)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def described(values: Sequence[float]) -> dict[str, Any]:
    """Return median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}


def constants(folder: Path) -> dict[str, Any]:
    """Return idle and full power of servers, per core and per watt of their processors' rating."""
    rated = {row["cpu"].lower(): float(row["tdp_w"]) for row in rows_of(folder / "cpu_tdp.csv")}
    per_core, per_watt = [], []
    for row in rows_of(folder / "cpu_specpower.csv"):
        if not (row["watts_100pct"] and row["watts_active_idle"] and row["cores"]):
            continue
        powers = float(row["watts_active_idle"]), float(row["watts_100pct"])
        per_core.append([watts / int(row["cores"]) for watts in powers])
        if (tdp_w := rated.get(row["cpu"].lower())) is not None:
            per_watt.append([watts / (int(row["chips"]) * tdp_w) for watts in powers])
    return {
        "source": SOURCE,
        "made_by": "python -m benchmarks.server_power DIR --write",
        "per_core": _both(per_core, "W per physical core"),
        "per_rated_watt": _both(per_watt, "W per watt of rated power of all processors"),
    }


def _both(found: Sequence[Sequence[float]], unit: str) -> dict[str, Any]:
    idle, full = zip(*found, strict=True)
    return {
        "unit": unit,
        "servers": len(found),
        "idle": described(idle),
        "full": described(full),
    }


def main() -> None:
    """Print the constants, or write them where the meter reads them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = json.dumps(constants(arguments.folder), indent=2) + "\n"
    if arguments.write:
        TARGET.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
