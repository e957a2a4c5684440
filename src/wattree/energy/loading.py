"""Energy of data loading above the host's other power. Pure functions.

- A core at work: `(1 - 0.19) TDP / cores`, as CPUs fall to 19 % at rest (median of
  SPECpower_ssj2008 results), pooled over three processors of training hosts (product
  specifications): Xeon Platinum 8480+ 350 W and 56 cores, Xeon Platinum 8168 205 W and 24 cores,
  EPYC 7742 225 W and 64 cores.
- A byte read from flash: active less idle power over the rate of sequential reads; Solidigm
  D7-P5510 product brief, 2021: 18 W, 5 W, 6.5 GB/s.
- A byte copied to the device: read from main memory, 20 pJ per bit (Horowitz, ISSCC 2014: 1.3 to
  2.6 nJ per 64 bits), and sent over PCIe, 6.5 pJ per bit (NVIDIA Grace Hopper whitepaper, 2022:
  1.3 pJ per bit over NVLink-C2C, a fifth of PCIe 5.0).
"""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats

_REST_SHARE = 0.19
#: Rated power and cores of processors. [W]
_PROCESSORS = ((350.0, 56.0), (205.0, 24.0), (225.0, 64.0))
_READ_J_PER_BYTE = (18.0 - 5.0) / 6.5e9
_COPY_J_PER_BYTE = 8 * (20e-12 + 6.5e-12)


def core_w() -> float:
    """Return the power of a busy core above idle: the median of known processors. [W]"""
    per_core = [tdp_w / cores for tdp_w, cores in _PROCESSORS]
    return (1.0 - _REST_SHARE) * float(np.median(per_core))


def loading_energy_j(*, core_s: Floats, read_bytes: Floats, copied_bytes: Floats) -> Floats:
    """Return the energy of loading. [J]

    `core_s core_w + 2 nJ/B read_bytes + 0.21 nJ/B copied_bytes`; what the device's memory takes
    for a copy is not in it.

    Args:
        core_s: Core time of reading, decoding and augmenting. [s]
        read_bytes: From storage. [B]
        copied_bytes: From host to device memory. [B]
    """
    moved = _READ_J_PER_BYTE * read_bytes + _COPY_J_PER_BYTE * copied_bytes
    return np.asarray(core_w() * core_s + moved)
