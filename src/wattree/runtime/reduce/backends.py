"""Makes a backend that averages gradients, with its process groups and shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from wattree.errors import CommunicationError, HardwareError
from wattree.runtime.reduce.device import Hierarchical
from wattree.runtime.reduce.hook import Average
from wattree.runtime.reduce.mean import (
    Across,
    all_reduce_bytes,
    averaged_,
    made_small_,
    sum_rounded_once_,
)
from wattree.runtime.reduce.meeting import MemberMeeting, shared_file, shared_path, take_place
from wattree.runtime.reduce.members import Members, agree
from wattree.runtime.reduce.mpi import MpiSum
from wattree.runtime.reduce.shared_buffers import HostBuffers, SharedBuffers
from wattree.runtime.transfers import SentTraffic

#: What rebuilds a tensor in another process, and its arguments; plain values that can be sent.
_Handle = tuple[Callable[..., Tensor], tuple[Any, ...]]
#: Buffers grow to so many times what is asked for, as buckets of a model differ in size.
_SPARE = 1.25


#: Files of a device: where its processes meet, and buffers for two buckets in turn.
_FILES = ("meeting", "even", "odd")


def make_backend(
    method: str,
    process_group: Any,
    members: Members,
    device: Any,
    *,
    traffic: SentTraffic,
    timeout_s: float,
) -> Average:
    """Return a backend that averages over a process group; a collective call of its ranks.

    Args:
        method: One of `REDUCTIONS`.
        process_group: Of torch.distributed.
        traffic: Where to count what this process sends.
        timeout_s: Time after which a rank counts as missing. [s]

    Raises:
        CommunicationError: Ranks are not what the method needs.
        HardwareError: Ranks of a device cannot share memory.
    """
    if method == "hierarchical" and len(members.everybody) > len(members.leaders):
        return _hierarchical(process_group, members, device, traffic, timeout_s)
    return _flat(members, method, device, traffic, timeout_s)


def _hierarchical(
    group: Any, members: Members, device: Any, traffic: SentTraffic, timeout_s: float
) -> Average:
    meeting, *buffers = _shared_files(group, members)
    across = None
    if len(members.leaders) > 1:
        # Leaders are alone on their devices, as NCCL wants it. The others make a group, too, of
        # themselves: names of groups count those that a process has, and have to stay in step.
        is_leader = members.place == 0
        backend = "nccl" if is_leader and device.type != "cpu" else "gloo"
        ranks = members.leaders if is_leader else (dist.get_rank(),)
        group = _group_sum(ranks, backend, traffic, timeout_s)
        across = group if is_leader else None
    even, odd = _buffers(buffers, members, device, timeout_s)
    return Hierarchical(
        MemberMeeting(meeting, members.place, members.ranks, patience_s=timeout_s),
        (even, odd),
        across,
        devices=len(members.leaders),
        ranks=len(members.everybody),
    )


def _buffers(
    files: Sequence[int], members: Members, device: Any, timeout_s: float
) -> tuple[SharedBuffers, SharedBuffers]:
    count = len(members.ranks)
    if device.type == "cpu":
        return HostBuffers(files[0], count), HostBuffers(files[1], count)
    for file in files:
        os.close(file)
    group = _group(members.ranks, "gloo", timeout_s)  # tells handles of memory
    first, second = (
        DeviceBuffers(members.place, device, lambda mine: agree(group, mine)) for _ in range(2)
    )
    return first, second


def _flat(
    members: Members, method: str, device: Any, traffic: SentTraffic, timeout_s: float
) -> Average:
    ranks = members.everybody
    is_shared = len(ranks) > len(members.leaders)
    across: Across
    if method == "mpi":
        world = dist.get_world_size()
        across = MpiSum(ranks, rank=dist.get_rank(), world=world, traffic=traffic)
    else:
        # gloo takes several ranks of a device, by way of the host; NCCL is there for the others.
        is_native = device.type != "cpu" and not is_shared
        across = _group_sum(ranks, "nccl" if is_native else "gloo", traffic, timeout_s)
    return Flat(across, ranks=len(ranks))


def _group_sum(
    ranks: Sequence[int], backend: str, traffic: SentTraffic, timeout_s: float
) -> GroupSum:
    group = _group(ranks, backend, timeout_s)
    return GroupSum(group, traffic, patience_s=timeout_s, rank=dist.get_rank())


def _group(ranks: Sequence[int], backend: str, timeout_s: float) -> Any:
    return dist.new_group(
        list(ranks),
        backend=backend,
        timeout=timedelta(seconds=timeout_s),
        use_local_synchronization=True,
    )


def _shared_files(group: Any, members: Members) -> list[int]:
    """Return descriptors of the leader's files, which have no name, so none can be left behind."""
    own = [shared_file(f"wattree-{name}") for name in _FILES] if members.place == 0 else []
    offers = agree(group, (os.getpid(), own))
    leader = members.ranks[0]
    process, files = offers[members.everybody.index(leader)]
    problem = ""
    if members.place:
        try:
            own = [os.open(shared_path(process, file), os.O_RDWR | os.O_CLOEXEC) for file in files]
        except OSError as error:
            problem = (
                f"rank {dist.get_rank()} cannot open the shared memory of rank {leader} "
                f"({error.strerror}): both have to run as one user, in one container"
            )
    if own:
        # Before any member goes on: whoever waits for one without a place takes it for gone.
        take_place(own[0], members.place)
    problems = [problem_of_rank for problem_of_rank in agree(group, problem) if problem_of_rank]
    if problems:
        for file in own:
            os.close(file)
        raise HardwareError(f"{problems[0]}; WATTREE_REDUCE=flat shares no memory")
    return own


class Flat:
    """Averages over all ranks by one sum over them.

    Args:
        compressed: Whether gradients travel as bfloat16; they are added up in float32.
    """

    def __init__(self, across: Across, *, ranks: int, compressed: bool = False) -> None:
        self._across, self._ranks, self.compressed = across, ranks, compressed

    def average_(self, bucket: Tensor, number: int) -> None:
        """Replace gradients by their mean over all ranks, as `Hierarchical.average_` does."""
        del number
        made_small_(bucket, self._ranks)
        total = bucket.to(torch.bfloat16) if self.compressed else bucket
        self._across.sum_(total)
        averaged_(bucket, total, self._ranks)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def fail(self, rank: int) -> None:
        """Do nothing: the others notice when this process ends."""


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


class DeviceBuffers:
    """Shared buffers in the memory of the device.

    Each process has one buffer of its own, and opens those of the others.

    Args:
        exchange: Tells all members what this one says; returns what all say, in order.
        share: Returns the handle of a tensor [1].

    References:
        [1] PyTorch, "Multiprocessing package", sections "Sharing CUDA tensors" and
            "torch.multiprocessing.reductions": what a tensor of a device becomes elsewhere.
        [2] NVIDIA, "Multi-Process Service": CUDA IPC works between clients of one server.
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
