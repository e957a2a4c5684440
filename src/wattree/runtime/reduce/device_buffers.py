"""Buffers in an accelerator's memory, by CUDA IPC.

References:
    [1] PyTorch, "Multiprocessing package", sections "Sharing CUDA tensors" and
        "torch.multiprocessing.reductions": what a tensor of a device becomes for other processes.
    [2] NVIDIA, "Multi-Process Service": CUDA IPC works between clients of one server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

#: What rebuilds a tensor in another process, and its arguments; plain values that can be sent.
_Handle = tuple[Callable[..., Tensor], tuple[Any, ...]]
#: Buffers grow to so many times what is asked for, as buckets of a model differ in size.
_SPARE = 1.25


class DeviceBuffers:
    """Shared buffers in the memory of the device.

    Each process has one buffer of its own, and opens those of the others.

    Args:
        place: Of this process among the members.
        device: Of the buffers.
        exchange: Tells all members what this one says; returns what all say, in order.
        share: Returns the handle of a tensor [1].
    """

    def __init__(
        self,
        place: int,
        device: Any,
        exchange: Callable[[_Handle], list[_Handle]],
        *,
        share: Callable[[Tensor], _Handle] = reduce_tensor,
    ) -> None:
        self._place, self._device = place, device
        self._exchange, self._share = exchange, share
        self._buffers: list[Tensor] = []

    def of(self, elements: int, dtype: Any) -> list[Tensor]:
        """Return the buffers; a collective call of the members whenever they have to grow."""
        size = elements * torch.empty(0, dtype=dtype).element_size()
        if not self._buffers or size > self._buffers[0].numel():
            self._grow(int(size * _SPARE))
        return [buffer[:size].view(dtype) for buffer in self._buffers]

    def settle(self) -> None:
        """Wait until the stream of this thread has finished."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Give the memory back; that of a process is free when no other has it open [1]."""
        self._buffers = []

    def _grow(self, size: int) -> None:
        # Handles are of allocations: sizes are those of whole elements of any type.
        own = torch.empty(-(-size // 8) * 8, dtype=torch.uint8, device=self._device)
        self._buffers = []  # closed before others free what was opened
        handles = self._exchange(self._share(own))
        self._buffers = [
            own if member == self._place else rebuild(*arguments)
            for member, (rebuild, arguments) in enumerate(handles)
        ]
