"""Whether NCCL takes several ranks of one device.

References:
    [1] NCCL 2.30, user guide, "Environment Variables": `NCCL_MULTI_RANK_GPU_ENABLE` (since 2.30,
        off unless it is 1); releases before it end with "Duplicate GPU detected".
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

from wattree.errors import HardwareError

#: The switch [1], and the first release that has it.
_SWITCH = "NCCL_MULTI_RANK_GPU_ENABLE"
_FIRST = (2, 30)


def check_nccl() -> None:
    """Refuse NCCL for several ranks of a device, unless the library that is loaded takes them.

    Raises:
        HardwareError: It does not; what to do.
    """
    problem = multi_rank_problem(loaded_version(), os.environ)
    if problem:
        raise HardwareError(problem)


def multi_rank_problem(version: tuple[int, int, int] | None, environment: Mapping[str, str]) -> str:
    """Return why NCCL takes one rank of a device alone; empty if it takes several.

    Args:
        version: Of the library; None where there is none.
    """
    others = "; the reduction 'hierarchical' has one rank of each device use NCCL"
    if version is None:
        return f"the reduction 'nccl' needs NCCL, which this PyTorch has not{others}"
    if version[:2] < _FIRST:
        found = ".".join(map(str, version))
        return (
            f"NCCL {found} takes one rank of a device; several of them need 2.30 or newer and "
            f"{_SWITCH}=1{others}"
        )
    if environment.get(_SWITCH) != "1":
        return (
            f"{_SWITCH}: found {environment.get(_SWITCH)!r}, expected 1, with which NCCL takes "
            "several ranks of a device (experimental: it hangs where multiprocessors or memory run "
            f"out){others}"
        )
    return ""


def loaded_version() -> tuple[int, int, int] | None:
    """Return the version of the NCCL that this process has loaded; None if there is none.

    PyTorch names the release that it was built with, which may be another one.
    """
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    found = ctypes.c_int()
    try:
        asked = ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):  # linked into PyTorch itself
        major, minor, patch = torch.cuda.nccl.version()[:3]
        return int(major), int(minor), int(patch)
    if asked != 0:
        return None
    code = found.value  # major * 10000 + minor * 100 + patch, since 2.9
    return code // 10_000, code // 100 % 100, code % 100
