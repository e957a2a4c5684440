"""Sums over the ranks of a process group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from wattree.errors import CommunicationError
from wattree.runtime.reduce.mean import all_reduce_bytes, sum_rounded_once_
from wattree.runtime.transfers import SentTraffic


class GroupSum:
    """Sums over the ranks of a process group of torch.distributed.

    Types of two bytes are added up in float32 and rounded once: gloo would round every addition.

    Args:
        process_group: Of its own: its collectives run alongside those of the program.
        traffic: Where bytes are counted.
        patience_s: Time after which a rank counts as missing. [s]
        rank: Of this process among all, for messages.
    """

    def __init__(
        self, process_group: Any, traffic: SentTraffic, *, patience_s: float, rank: int
    ) -> None:
        self._group, self._traffic, self._patience_s = process_group, traffic, patience_s
        self._rank, self.size = rank, dist.get_world_size(process_group)
        self._ranks = dist.get_process_group_ranks(process_group)

    def sum_(self, total: Tensor) -> None:
        """Replace a tensor by its sum over the ranks of the group.

        Raises:
            CommunicationError: A rank is missing.
        """
        if self.size == 1:
            return
        self._traffic.add("all_reduce", all_reduce_bytes(total, self.size))
        try:
            if total.element_size() == 2:
                sum_rounded_once_(total, self.size, self._all_to_all, self._all_gather)
            else:
                self._await(dist.all_reduce(total, group=self._group, async_op=True), total)
        except RuntimeError as error:
            raise CommunicationError(self._explained(str(error).splitlines()[0])) from error

    def _all_to_all(self, received: Tensor, sending: Tensor) -> None:
        work = dist.all_to_all_single(received, sending, group=self._group, async_op=True)
        self._await(work, sending)

    def _all_gather(self, whole: Tensor, part: Tensor) -> None:
        parts = list(whole.split(part.numel()))
        self._await(dist.all_gather(parts, part, group=self._group, async_op=True), whole)

    def _await(self, work: Any, tensor: Tensor) -> None:
        if tensor.device.type == "cpu":
            work.wait(timedelta(seconds=self._patience_s))
        else:
            work.wait()  # orders streams; the backend's own watchdog ends what hangs

    def _explained(self, problem_of_rank: str) -> str:
        others = ", ".join(str(rank) for rank in self._ranks if rank != self._rank)
        at = f"rank {self._rank}, averaging gradients with rank{'s' * (self.size > 2)} {others}"
        if "imed out" in problem_of_rank or "timeout" in problem_of_rank:
            return f"{at}: took more than {self._patience_s:g} s: one of them hangs"
        if "onnection" in problem_of_rank:
            return f"{at}: one of them has ended; see its own message"
        return f"{at}: failed: {problem_of_rank}"
