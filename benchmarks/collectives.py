"""Collectives against measurements: the calibrated closed form and NCCL's choice.

    python -m benchmarks.collectives [DIR] [--worst N] [--json P]

DIR holds `collectives.csv` with measured times (nccl-tests and alike), by default
`../shared/opdata`. Rows of NCCL on systems that the catalog has are predicted twice, as
`collectives: auto` and as `collectives: nccl` would have it, with the shipped calibration. Errors
are of the time, positive where the prediction is too long. The rows missed most are listed.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from benchmarks.frame import SHARED, plain_table, report_parser, show_report
from wattree.cost import GroupShape, load_calibration, software_family
from wattree.cost.rates import Rates, rates_of
from wattree.cost.requests import COMPILED_KINDS, CollectiveRequests, Request
from wattree.errors import RowError, WattreeError
from wattree.hardware import Cluster, Precision, load_fabric, load_node, load_site

#: System of the table → node and fabric of the catalog. Others say too little to be predicted:
#: bridges between pairs of cards, and clusters whose nodes are not stated.
_SYSTEMS = {
    "a100_sxm": ("dgx-a100", "infiniband-hdr-fat-tree"),
    "a100_dgx": ("dgx-a100", "infiniband-hdr-fat-tree"),
    "vtrain_a100_node": ("dgx-a100", "infiniband-hdr-fat-tree"),
    "vtrain_v100_node": ("dgx-1", "infiniband-edr-fat-tree"),
    "h100_sxm": ("dgx-h100", "rail-optimised-ndr"),
    "h100_dgx": ("dgx-h100", "rail-optimised-ndr"),
    "h200_sxm": ("dgx-h200", "rail-optimised-ndr"),
    "b200_sxm": ("dgx-b200", "rail-optimised-ndr"),
    "gb200": ("gb200-nvl72", "rail-optimised-ndr"),
    "l40s": ("8x-l40s", "infiniband-ndr-fat-tree"),
    "rtx_pro_6000_server": ("8x-rtx-pro-6000", "infiniband-ndr-fat-tree"),
    "Alps-Clariden (GH200x4 node)": ("gh200-quad", "slingshot-11-dragonfly"),
    "AWS p5.48xlarge": ("p5.48xlarge", "efa"),
    "10-node H100 cluster": ("dgx-h100", "rail-optimised-ndr"),
}
_KINDS = {kind.replace("_to_", "to"): kind for kind in COMPILED_KINDS}
_CHOICES = ("auto", "nccl")
#: Bytes at which the columns of sizes end.
_SIZES = {"< 64 KiB": 2**16, "< 4 MiB": 2**22, "< 64 MiB": 2**26, "larger": float("inf")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured collective, and the predictions of its time."""

    system: str
    kind: str
    ranks: int
    per_node: int
    size_bytes: float
    measured_s: float
    predicted_s: dict[str, float]

    def error(self, choice: str) -> float:
        """Return the relative error."""
        return self.predicted_s[choice] / self.measured_s - 1.0

    @property
    def size_class(self) -> str:
        """Return the column of its size."""
        return next(name for name, end in _SIZES.items() if self.size_bytes < end)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; write JSON on request."""
    parser = report_parser(__doc__)
    parser.add_argument(
        "dir", nargs="?", type=Path, default=SHARED / "opdata", help="with collectives.csv"
    )
    parser.add_argument("--worst", type=int, default=12, metavar="N", help="rows to list")
    options = parser.parse_args(arguments)
    try:
        rows, left_out = predicted_rows(options.dir / "collectives.csv")
    except WattreeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    tables = tables_of(rows, worst=options.worst)
    others = ", ".join(f"{system} {count}" for system, count in sorted(left_out.items()))
    tail = f"{len(rows)} rows; left out (no NCCL collective, or system unknown): {others}"
    show_report(report_of(rows), options.json_path, *tables, Text(tail), width=132)
    return 0


def predicted_rows(path: Path) -> tuple[list[Row], dict[str, int]]:
    """Return the rows that can be predicted, and how many are left out, by system.

    Raises:
        RowError: The file cannot be read, or a row of it is not what its header says.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except OSError as error:
        raise RowError(f"{path}: cannot be read ({error.strerror or error})") from None
    rows: list[Row] = []
    left_out: dict[str, int] = {}
    for number, line in enumerate(lines, start=2):
        try:
            row = _row(line)
        except (KeyError, ValueError, TypeError) as error:
            raise RowError(
                f"{path}:{number}: found {error}, expected system, op, algo, library, gpus, "
                "gpus_per_node, nodes, bytes and latency_us"
            ) from None
        if row is None:
            left_out[line["system"]] = left_out.get(line["system"], 0) + 1
        else:
            rows.append(row)
    return rows, left_out


def _row(line: dict[str, str]) -> Row | None:
    kind = _KINDS.get(line["op"])
    is_nccl = line["algo"] == "auto" and line["library"].startswith("NCCL")
    if kind is None or not is_nccl or line["system"] not in _SYSTEMS or not line["gpus_per_node"]:
        return None
    ranks, per_node = int(line["gpus"]), int(float(line["gpus_per_node"]))
    size, measured_s = float(line["bytes"]), float(line["latency_us"]) * 1e-6
    nodes = -(-ranks // per_node)
    if nodes * per_node != ranks or ranks < 2 or size <= 0 or measured_s <= 0:
        return None
    rates = {choice: _rates(line["system"], nodes, choice) for choice in _CHOICES}
    return Row(
        system=line["system"],
        kind=kind,
        ranks=ranks,
        per_node=per_node,
        size_bytes=size,
        measured_s=measured_s,
        predicted_s={
            choice: _time_s(rates[choice], kind, size, nodes, per_node) for choice in _CHOICES
        },
    )


@cache
def _rates(system: str, nodes: int, choice: str) -> Rates:
    node_name, fabric = _SYSTEMS[system]
    node = load_node(node_name)
    if node.devices < 8 and nodes == 1 and node.scale_up.domain_devices > node.devices:
        nodes = 2  # a rack whose domain spans nodes
    cluster = Cluster(
        node=node, nodes=nodes, fabric=load_fabric(fabric), site=load_site("world-average")
    )
    asked = CollectiveRequests(by_kind={kind: Request(algorithm=choice) for kind in COMPILED_KINDS})
    software = software_family("megatron-core")
    rates = rates_of(cluster, software, Precision.BF16, load_calibration(), collectives=asked)
    return replace(rates, collectives=replace(rates.collectives, refuses=True))


def _time_s(rates: Rates, kind: str, size_bytes: float, nodes: int, per_node: int) -> float:
    """Return the time of one group, alone on its nodes. [s]"""
    domain = rates.collectives.cluster.domain_devices
    one = np.ones(1)
    group = GroupShape(
        ranks=one * nodes * per_node,
        inside=one * min(per_node, domain),
        spans=((one * per_node, one), (one * nodes, one * domain)),
        filled=one * per_node,
    )
    cost = rates.collectives.cost(kind, one * size_bytes, group, rates.links)
    return float(cost.latency_s[0] + cost.work_s[0])


# ------------------------------------------------------------------------------------ tables


def report_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return errors by system, kind, span and size, as plain values."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        span = "one node" if row.ranks == row.per_node else "several"
        groups.setdefault((row.system, row.kind, span, row.size_class), []).append(row)
    return [
        {"system": system, "kind": kind, "span": span, "size": size, "rows": len(members)}
        | {choice: _mean_abs(members, choice) for choice in _CHOICES}
        for (system, kind, span, size), members in sorted(groups.items())
    ]


def _mean_abs(rows: Sequence[Row], choice: str) -> float | None:
    return float(np.mean([abs(row.error(choice)) for row in rows])) if rows else None


def tables_of(rows: Sequence[Row], *, worst: int) -> Iterator[Table]:
    """Return errors by system, by kind and span, and the rows missed most."""
    by_system: dict[str, list[Row]] = {}
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        span = "one node" if row.ranks == row.per_node else "several nodes"
        by_system.setdefault(f"{row.system}, {span}", []).append(row)
        by_kind.setdefault(f"{row.kind}, {span}", []).append(row)
    for title, groups in (("by system", by_system), ("by kind", by_kind)):
        lines = [
            (name, str(len(members)), *_cells(members)) for name, members in sorted(groups.items())
        ]
        head = ("", "rows", *_SIZES)
        yield plain_table(f"Mean absolute error of the time, auto / nccl, {title}", head, lines)
    lines = []
    by_error = sorted(rows, key=lambda row: -min(abs(row.error(choice)) for choice in _CHOICES))
    for row in by_error[:worst]:
        errors = (f"{row.error(choice):+.0%}" for choice in _CHOICES)
        counts = (str(row.ranks), str(row.per_node), f"{row.size_bytes:,.0f}")
        lines.append((row.system, row.kind, *counts, f"{row.measured_s * 1e6:,.0f}", *errors))
    head = ("system", "kind", "ranks", "per node", "bytes", "measured us", *_CHOICES)
    yield plain_table("Missed most, by the better of the two", head, lines, left=2)


def _cells(rows: Sequence[Row]) -> Iterator[str]:
    for size_class in _SIZES:
        yield _cell([row for row in rows if row.size_class == size_class])


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    return " / ".join(f"{_mean_abs(rows, choice):.0%}" for choice in _CHOICES)


if __name__ == "__main__":
    sys.exit(main())
