"""NCCL's protocols: usable share of the bandwidth, and time of a step.

Numbers are those of NCCL's tuning model, `ncclTunerConstantsDefaults` in src/graph/tuning.cc of
NCCL 2.28 to 2.30 (NVIDIA, Apache-2.0 and BSD); times there are in microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np

from wattree.arrays import Floats


class Protocol(StrEnum):
    """How a protocol cuts up and flags messages."""

    LL = "ll"  # 4 bytes of data with 4 of flag
    LL128 = "ll128"  # 120 bytes of data with 8 of flag, over links that keep 128 bytes together
    SIMPLE = "simple"  # whole slices, with a fence

    @property
    def bandwidth_fraction(self) -> float:
        """Share of a link's bytes that is data."""
        return {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}[self.value]


#: Order of the latency tables.
HARDWARE = ("nvlink", "pcie", "network")

#: Algorithm → by protocol: time before the first step; of a step over each of `HARDWARE`. [us]
_LATENCIES_US: Mapping[str, tuple[tuple[float, float, float], ...]] = {
    "tree": ((6.8, 14.0, 8.4), (0.6, 1.25, 4.0), (1.0, 1.9, 4.0), (5.0, 8.5, 14.0)),
    "ring": ((6.6, 14.0, 8.4), (0.6, 1.9, 3.4), (1.0, 2.5, 5.7), (2.7, 4.0, 14.0)),
    "nvls": ((0.0, 0.0, 0.0), (0.0, 0.0, 25.0), (0.0, 0.0, 0.0), (0.0, 0.0, 18.0)),
    "nvls-tree": ((0.0, 0.0, 0.0), (0.0, 0.0, 25.0), (0.0, 0.0, 0.0), (0.0, 0.0, 20.9)),
}


def _latencies_s(column: int) -> Mapping[str, Mapping[Protocol, float]]:
    return {
        name: {protocol: us * 1e-6 for protocol, us in zip(Protocol, rows[column], strict=True)}
        for name, rows in _LATENCIES_US.items()
    }


#: Algorithm → protocol → time of a collective before its first step. [s]
BASE_LATENCIES_S = _latencies_s(0)
#: Hardware → algorithm → protocol → time of one step. [s]
HARDWARE_LATENCIES_S = {name: _latencies_s(i) for i, name in enumerate(HARDWARE, start=1)}


def base_latency_s(algorithm: str, protocol: Protocol) -> float:
    """Return the time before the first step; algorithms that NCCL lacks use the ring's. [s]"""
    return BASE_LATENCIES_S["tree" if algorithm == "tree" else "ring"][protocol]


def hop_latencies_s(algorithm: str, protocol: Protocol) -> Floats:
    """Return the time of a step over each of `HARDWARE`. Shape `(3,)`. [s]

    NVLS and the algorithms that NCCL has not take the steps of a ring: the tables count an NVLS
    collective as a whole.
    """
    row = "tree" if algorithm == "tree" else "ring"
    return np.array([HARDWARE_LATENCIES_S[hardware][row][protocol] for hardware in HARDWARE])
