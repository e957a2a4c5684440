"""Buffers in memory that the processes of a device share: one for the bucket of each."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from typing import Any, Protocol

import torch
from torch import Tensor

from wattree.errors import HardwareError

#: Buffers begin on a line of the processor's cache.
_LINE_BYTES = 64
#: Pages are mapped at once where the system can, not one by one when they are first written to.
_FLAGS = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class SharedBuffers(Protocol):
    """A buffer for the bucket of each process of a device, which all of them see."""

    def of(self, elements: int, dtype: Any) -> list[Tensor]:
        """Return the buffers, `(elements,)` each, in the order of the members.

        All members ask for the same at the same time. Their contents may be gone.
        """
        ...

    def settle(self) -> None:
        """Wait until the others can read this process's writes."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


class HostBuffers:
    """Shared buffers in the host's memory.

    Args:
        descriptor: Of a file in memory that the members share.
    """

    def __init__(self, descriptor: int, members: int) -> None:
        self._descriptor, self._members = descriptor, members
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def of(self, elements: int, dtype: Any) -> list[Tensor]:
        """Return the buffers.

        Raises:
            HardwareError: Memory is too small for them.
        """
        size = elements * torch.empty(0, dtype=dtype).element_size()
        stride = -(-size // _LINE_BYTES) * _LINE_BYTES
        self._grow(stride * self._members)
        return [
            self._bytes[member * stride : member * stride + size].view(dtype)
            for member in range(self._members)
        ]

    def settle(self) -> None:
        """Return at once: processors make writes visible to each other."""

    def close(self) -> None:
        """Give the memory back; it is free when all members have."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def _grow(self, size: int) -> None:
        if size <= self._bytes.numel():
            return
        try:
            # Takes the memory now: otherwise the first write that finds none would end the process.
            # It never makes a file shorter, so that members may do this in any order.
            os.posix_fallocate(self._descriptor, 0, size)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.ENOMEM}:
                raise
            raise HardwareError(
                f"{size / 2**20:.0f} MiB of memory for the gradients that {self._members} "
                "processes of a device share could not be had; a smaller bucket_cap_mb of DDP "
                "needs less, and so does WATTREE_REDUCE=flat"
            ) from error
        shared = mmap.mmap(self._descriptor, size, flags=_FLAGS)
        self._bytes = torch.frombuffer(shared, dtype=torch.uint8)
