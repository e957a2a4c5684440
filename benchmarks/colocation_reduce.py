"""Gradients of processes that share a device: throughput, bytes between devices.

Sections for `benchmarks.colocation`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.frame import Figure, Section
from tests.distributed.ranks import run_ranks

_RANKS = "benchmarks/colocation_reduce_ranks.py"
#: Gradients of the measure, by the issue of this part. [MiB]
_MIB = 64
_PROCESSES, _TURNS, _WARM_UP = 4, 21, 4
#: Of the bytes: gradients, and averages between two readings. [MiB]
_PAYLOAD_MIB, _PAYLOAD_TURNS = 8, 5
#: Interface of a namespace that stands for a device, and addresses of the two.
_LINK, _ADDRESSES = "device", ("10.93.7.1/30", "10.93.7.2/30")


def throughput() -> Section:
    """Return how fast 4 processes average 64 MiB, in shared memory against gloo's all-reduce."""
    every = run_ranks(
        _PROCESSES,
        f"{_RANKS}:timed",
        {"mib": _MIB, "turns": _TURNS, "warm_up": _WARM_UP},
        limit_s=300,
    )
    # A turn has ended when its last process has.
    ends = {name: np.max([each[name] for each in every], axis=0) for name in every[0]}
    ratio = float(np.median(ends["gloo"] / ends["shared memory"]))
    rates = ", ".join(
        f"{name} {_MIB * 2**20 / statistics.median(times) / 1e9:.2f} GB/s"
        for name, times in ends.items()
    )
    figure = Figure(
        f"{_PROCESSES} processes, {_MIB} MiB of float32, shared memory against gloo",
        ">= 2 ×",
        f"{ratio:.2f} × ({rates})",
        ratio >= 2.0,
    )
    notes = (
        f"Median over {_TURNS} turns of the ratio of both, one after the other, by the process "
        "that ends last; gradients by time.",
    )
    return Section(title="Reduction on the CPU", figures=(figure,), notes=notes)


def crossing() -> Section | None:
    """Return the bytes between two devices, counted by the links of two namespaces; needs root."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return None
    with _two_hosts() as hosts:
        plain = _carried(hosts, "flat", 1)
        hierarchical = _carried(hosts, "hierarchical", 2)
        flat = _carried(hosts, "flat", 2)
    gradients = _PAYLOAD_MIB * 2**20
    ratio = hierarchical / plain
    figures = (
        Figure(
            "2 devices of 2 processes, hierarchical, against 2 ranks",
            "<= 1.01 ×",
            f"{ratio:.3f} × ({hierarchical / gradients:.2f} against "
            f"{plain / gradients:.2f} times the gradients)",
            ratio <= 1.01,
        ),
        Figure(
            "the same 4 ranks, flat, against 2 ranks",
            "",
            f"{flat / plain:.3f} × ({flat / gradients:.2f} times the gradients)",
        ),
    )
    notes = (
        "Sent over the link between two network namespaces that stand for devices, both "
        f"directions, headers included; {_PAYLOAD_MIB} MiB of float32.",
    )
    return Section(title="Bytes between devices", figures=figures, notes=notes)


def _carried(hosts: Sequence[str], method: str, processes: int) -> float:
    """Return what both links sent in one average. [B]"""
    arguments = {
        "method": method,
        "processes": processes,
        "mib": _PAYLOAD_MIB,
        "turns": _PAYLOAD_TURNS,
        "link": _LINK,
    }
    every = run_ranks(
        2 * processes,
        f"{_RANKS}:payload",
        arguments,
        environment={"GLOO_SOCKET_IFNAME": _LINK},
        prefixes=[["ip", "netns", "exec", host] for host in hosts for _ in range(processes)],
        limit_s=180,
    )
    return sum(float(every[rank]["carried"]) for rank in (0, processes))


@contextmanager
def _two_hosts() -> Iterator[list[str]]:
    """Join two network namespaces by a link while the block runs."""
    hosts = [f"wattree-reduce-{os.getpid()}-{number}" for number in (0, 1)]
    try:
        for host in hosts:
            _ip("netns", "add", host)
        first, second = hosts
        _ip(
            *("link", "add", _LINK, "netns", first, "type", "veth"),
            *("peer", "name", _LINK, "netns", second),
        )
        for host, address in zip(hosts, _ADDRESSES, strict=True):
            _ip("-n", host, "address", "add", address, "dev", _LINK)
            _ip("-n", host, "link", "set", _LINK, "up")
            _ip("-n", host, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
