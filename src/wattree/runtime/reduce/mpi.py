"""Sums over the processes of an MPI program, by mpi4py.

References:
    [1] Open MPI, "MPIX_Query_cuda_support(3)": whether the library takes memory of a device.
    [2] MPI Forum, "MPI: A Message-Passing Interface Standard 4.0", section 11.6, threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wattree.errors import CommunicationError, MissingExtraError
from wattree.runtime.launch.environment import LAUNCHERS
from wattree.runtime.reduce.mean import all_reduce_bytes, sum_rounded_once_
from wattree.runtime.transfers import SentTraffic


class MpiSum:
    """Sums over ranks that are processes of one MPI program.

    A collective call of all of them.

    Args:
        ranks: Of torch.distributed whose gradients are averaged together.
        rank, world: Of this process among all, and how many they are.
        traffic: Where bytes are counted.

    Raises:
        MissingExtraError: mpi4py is not installed.
        CommunicationError: The ranks are not those of an MPI program.
    """

    def __init__(
        self, ranks: Sequence[int], *, rank: int, world: int, traffic: SentTraffic
    ) -> None:
        problem = mpi_problem(world, os.environ)  # starting MPI where it holds would not return
        if problem:
            raise CommunicationError(f"rank {rank}: {problem}")
        self._mpi, self._traffic, self._rank = _library(), traffic, rank
        self.size = len(ranks)
        # Calls come from the thread that averages, others may come from the program's own.
        if self._mpi.Query_thread() < self._mpi.THREAD_SERIALIZED:
            raise CommunicationError(
                f"rank {rank}: MPI was started without threads, expected MPI_THREAD_MULTIPLE; "
                "leave starting it to mpi4py"
            )
        self._all = self._mpi.COMM_WORLD.Split(color=min(ranks), key=rank)
        if self._all.Get_size() != self.size:
            raise CommunicationError(
                f"rank {rank}: found {self._all.Get_size()} processes of MPI, expected the "
                f"{self.size} ranks whose gradients are averaged"
            )
        self._takes_devices = _is_cuda_aware()

    def sum_(self, total: Tensor) -> None:
        """Replace a tensor by its sum over the ranks.

        Raises:
            CommunicationError: MPI says that it failed.
        """
        if self.size == 1:
            return
        self._traffic.add("all_reduce", all_reduce_bytes(total, self.size))
        there = total
        if total.device.type != "cpu":
            if self._takes_devices:
                torch.cuda.current_stream(total.device).synchronize()
            else:
                there = total.cpu()
        try:
            if there.element_size() == 2:
                sum_rounded_once_(there, self.size, self._all_to_all, self._all_gather)
            else:
                self._all.Allreduce(self._mpi.IN_PLACE, _buffer(there))
        except self._mpi.Exception as error:
            raise CommunicationError(
                f"rank {self._rank}, averaging gradients by MPI: {error}"
            ) from error
        if there is not total:
            total.copy_(there)

    def _all_to_all(self, received: Tensor, sending: Tensor) -> None:
        self._all.Alltoall(_bytes(sending), _bytes(received))

    def _all_gather(self, whole: Tensor, part: Tensor) -> None:
        self._all.Allgather(_bytes(part), _bytes(whole))


def mpi_problem(world: int, environment: Mapping[str, str]) -> str:
    """Return why the ranks are not processes of one MPI program; empty if they may be."""
    how = (
        "the reduction 'mpi' needs every rank to be a process of mpirun (mpirun -n RANKS …), "
        "not of a launcher that it starts"
    )
    for launcher in LAUNCHERS:
        if launcher.name in {"mpirun", "mpiexec"} and launcher.world in environment:
            found = environment[launcher.world]
            return "" if found == str(world) else f"{how}: MPI has {found}, the job {world} ranks"
    return f"{how}: found none of its variables"


def _library() -> Any:
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            needed_for="the reduction 'mpi'", package="mpi4py", extra="mpi"
        ) from error
    except (ImportError, RuntimeError) as error:  # no library of MPI
        raise CommunicationError(f"mpi4py finds no MPI library: {error}") from error
    return MPI


def _is_cuda_aware() -> bool:
    """Return whether the library reports that it accepts memory of devices [1]."""
    for name in (None, "libmpi.so.40", "libmpi.so"):
        try:
            return bool(ctypes.CDLL(name).MPIX_Query_cuda_support())
        except (OSError, AttributeError):
            continue
    return False


def _buffer(tensor: Tensor) -> Any:
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def _bytes(tensor: Tensor) -> Any:
    return _buffer(tensor.view(torch.uint8))
