"""Training steps over rate-limited links between four emulated hosts, on real processes.

Needs root, iproute2 and the emulation of `netlab` in the reference data.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.energy_frame import Options, Section
from benchmarks.measure import Figure
from tests.distributed.ranks import run_ranks

__all__ = ["network", "section"]

#: Ranks, each a host with one thread; width, layers, rows and ghosts; link rate as of the issue.
_P, _N, _LAYERS, _ROWS, _K, _MBIT_PER_S = 4, 8192, 4, 64, 64, 200
#: Width of a dense stack with as many parameters as the phantom one: n sqrt(1/p + k p / n).
_ISO = 4344
#: Ghosts and rows whose messages are 256 KiB between two ranks: ghosts as for `_K`, more rows.
_LONG_ROWS = 1024
_TURNS = 5


def section(options: Options) -> Section | None:
    """Return step times, exposed communication and bytes; None without root or emulation."""
    if os.geteuid() != 0 or shutil.which("tc") is None or not (options.shared / "netlab").is_dir():
        return None
    stack = {"n": _N, "layers": _LAYERS, "rows": _ROWS}
    iso = {**stack, "n": _ISO}
    long = {**stack, "layers": 2, "n": 4096, "rows": _LONG_ROWS}
    told: dict[str, dict[str, Any]] = {
        "phantom": {"kind": "phantom", "ghosts": _K, **stack},
        "phantom, no overlap": {"kind": "phantom", "ghosts": _K, "overlap": False, **stack},
        "block-diagonal": {"kind": "phantom", "ghosts": 0, **stack},
        "low rank": {"kind": "low rank", "ghosts": _K, **stack},
        "rows": {"kind": "rows", **stack},
        "rows, no overlap": {"kind": "rows", "overlap": False, **stack},
        "megatron": {"kind": "megatron", **stack},
        "sequence": {"kind": "sequence", **stack},
        "iso rows": {"kind": "rows", **iso},
        "iso megatron": {"kind": "megatron", **iso},
        "long phantom": {"kind": "phantom", "ghosts": _K, **long},
        "long rows": {"kind": "rows", **long},
    }
    busy = os.getloadavg()[0]
    with network(options.shared / "netlab") as (prefixes, device):
        every = run_ranks(
            _P,
            "benchmarks/phantom_steps.py:steps",
            {"contestants": told, "turns": _TURNS, "device": device},
            limit_s=1500,
            timeout_s=300,
            environment={"GLOO_SOCKET_IFNAME": device},
            prefixes=prefixes,
        )
    figures = [*_times(every), *_exposed(every), *_bytes(every)]
    notes = (
        f"{_P} ranks of one thread on {os.cpu_count()} cores ({busy:.1f} processes ran before), "
        f"{_LAYERS} layers of {_N}, {_K} ghosts, {_ROWS} rows, float32, SGD, {_MBIT_PER_S} Mbit/s; "
        "contestants take turns.",
    )
    return Section(title="Steps over links", figures=tuple(figures), notes=notes)


@contextmanager
def network(netlab: Path) -> Iterator[tuple[list[list[str]], str]]:
    """Give what to put before the command of each rank, and the interface of its link.

    Args:
        netlab: Folder of the emulation.
    """
    sys.path.insert(0, str(netlab))
    try:
        emulation = import_module("emulation")
    finally:
        sys.path.remove(str(netlab))
    emulation.NAMESPACE_PREFIX = "phantom-"  # never those of another program
    hosts = [f"h{rank}" for rank in range(_P)]
    links = [{"ends": [host, "s0"], "rate_mbit_per_s": _MBIT_PER_S} for host in hosts]
    topology = {"hosts": hosts, "switches": ["s0"], "links": links}
    with emulation.Network(emulation.Topology.from_dict(topology)):
        inside = [["ip", "netns", "exec", emulation.namespace(host)] for host in hosts]
        yield inside, emulation.interface_towards("s0")


def _times(every: list[dict[str, Any]]) -> list[Figure]:
    """Return step times: of each turn the slowest rank, of these the median."""
    seconds = {
        name: statistics.median(
            map(max, zip(*(each[name]["seconds"] for each in every), strict=True))
        )
        for name in every[0]
    }
    phantom_s = seconds["phantom"]
    best = min(("rows", "megatron", "sequence"), key=seconds.__getitem__)
    iso = min(("iso rows", "iso megatron"), key=seconds.__getitem__)
    figures = [
        _ratio(f"same width: {best} / phantom", seconds[best] / phantom_s, 3.5),
        _ratio(f"as many parameters: {iso} ({_ISO}) / phantom", seconds[iso] / phantom_s, 1.3),
    ]
    for name, found_s in seconds.items():
        count = sum(each[name]["parameters"] for each in every)
        figures.append(
            Figure(
                measure=f"step of {name}, {count / 1e6:,.1f} M parameters",
                wanted="",
                found=f"{found_s * 1e3:,.0f} ms",
                reached=True,
            )
        )
    return figures


def _ratio(measure: str, found: float, wanted: float) -> Figure:
    return Figure(
        measure=measure,
        wanted=f">= {wanted} x",
        found=f"{found:.2f} x",
        reached=found >= wanted,
    )


def _exposed(every: list[dict[str, Any]]) -> list[Figure]:
    """Return how much less ranks wait with overlap: medians of the mean over ranks."""
    figures = []
    for name in ("phantom", "rows"):
        on_s, off_s = (
            statistics.median(
                map(statistics.mean, zip(*(each[key]["waited"] for each in every), strict=True))
            )
            for key in (name, f"{name}, no overlap")
        )
        saved = 1 - on_s / off_s
        figures.append(
            Figure(
                measure=f"{name}: waiting with overlap, {on_s * 1e3:,.0f} of {off_s * 1e3:,.0f} ms",
                wanted=">= 30 % less",
                found=f"{saved:.0%} less",
                reached=saved >= 0.3,
            )
        )
    return figures


def _bytes(every: list[dict[str, Any]]) -> list[Figure]:
    """Return payload against the formula and the interface against the payload."""
    ghosts = 2 * 2 * (_P - 1) * _K * _LONG_ROWS * 4
    # Nobody needs the gradient of the first layer's input; compressors need that of its ghosts.
    whole = (2 + 1) * (_P - 1) * (4096 // _P) * _LONG_ROWS * 4
    figures = []
    for name, formula in (("long phantom", ghosts), ("long rows", whole)):
        payload = max(abs(each[name]["payload"] / formula - 1) for each in every)
        wire = max(abs(each[name]["wire"] / formula - 1) for each in every)
        for what, found, most in (("payload", payload, 0.02), ("interface", wire, 0.04)):
            figures.append(
                Figure(
                    measure=f"{name}: {what} against formula, {formula:,} B per rank and step",
                    wanted=f"within {most:.0%}",
                    found=f"{found:.2%}",
                    reached=found <= most,
                )
            )
    return figures
