"""Sums between processes that share no memory: over a process group, or MPI."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wattree.errors import CommunicationError
from wattree.runtime.transfers import Traffic

__all__ = ["GroupSum"]


class GroupSum:
    """Sums over the ranks of a process group of torch.distributed.

    What is of type bfloat16 is added up in float32 and rounded once: gloo would round every
    addition. Every rank gets its part of it from all, adds up, and gives the sum to all: the bytes
    of an all-reduce.

    Args:
        process_group: Of its own: its collectives run beside those of the program.
        traffic: Where bytes are counted.
        patience_s: Time after which a rank counts as missing. [s]
        rank: Of this process among all, for messages.
    """

    def __init__(
        self, process_group: Any, traffic: Traffic, *, patience_s: float, rank: int
    ) -> None:
        self._group, self._traffic, self._patience_s = process_group, traffic, patience_s
        self._rank = rank
        self.size = dist.get_world_size(process_group)

    def sum_(self, total: Tensor) -> None:
        """Replace a tensor by its sum over the ranks of the group.

        Raises:
            CommunicationError: A rank is missing.
        """
        if self.size == 1:
            return
        payload = total.numel() * total.element_size()
        self._traffic.add("all_reduce", round(2 * (self.size - 1) * payload / self.size))
        try:
            if total.dtype == torch.bfloat16:
                self._sum_rounded_once(total)
            else:
                self._await(dist.all_reduce(total, group=self._group, async_op=True), total)
        except RuntimeError as error:
            raise CommunicationError(self._explained(str(error).splitlines()[0])) from error

    def _sum_rounded_once(self, total: Tensor) -> None:
        part = -(-total.numel() // self.size)
        sending = total.new_zeros(part * self.size)
        sending[: total.numel()] = total
        received = torch.empty_like(sending)
        work = dist.all_to_all_single(received, sending, group=self._group, async_op=True)
        self._await(work, total)
        mine = received.view(self.size, part).float().sum(0).to(total.dtype)
        whole = list(sending.split(part))
        self._await(dist.all_gather(whole, mine, group=self._group, async_op=True), total)
        total.copy_(sending[: total.numel()])

    def _await(self, work: Any, tensor: Tensor) -> None:
        if tensor.device.type == "cpu":
            work.wait(timedelta(seconds=self._patience_s))
        else:
            work.wait()  # orders streams; the backend's own watchdog ends what hangs

    def _explained(self, said: str) -> str:
        at = f"rank {self._rank}, averaging gradients with {self.size} devices or ranks"
        if "imed out" in said or "timeout" in said:
            return f"{at}: took more than {self._patience_s:g} s: another rank hangs"
        if "onnection" in said:
            return f"{at}: failed: another rank has ended; see its own message ({said[:120]})"
        return f"{at}: failed: {said}"
