"""The communication hook of DDP: a thread averages buckets concurrently with backward."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from wattree.errors import CommunicationError, WattreeError
from wattree.runtime.transfers import SentTraffic

#: Time that the thread has to end; it is in the middle of a bucket if it takes longer. [s]
_LEAVE_S = 1.0


class Average(Protocol):
    """A method of averaging buckets over ranks.

    Attributes:
        compressed: Whether gradients travel as bfloat16.
    """

    compressed: bool

    def average_(self, bucket: Tensor, number: int) -> None:
        """Replace gradients by their mean over ranks; buckets have the same order on all."""
        ...

    def fail(self, rank: int) -> None:
        """Notify others that a rank failed."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


@dataclass(frozen=True, slots=True)
class _Turn:
    """A bucket that waits for its turn."""

    bucket: Tensor
    number: int
    done: Any  # a future
    ready: Any  # an event of the device's stream; None on the CPU


class Reduction:
    """Averages the gradients of a DDP model from its hook on.

    Args:
        model: The DDP model.
        rank: Of this process among all, for messages.
        traffic: What this process sent to other devices (to other ranks, of flat reductions).

    Attributes:
        method: One of `REDUCTIONS`.
        traffic: As above.
        failure: What went wrong; None if nothing did.
    """

    def __init__(
        self,
        average: Average,
        *,
        method: str,
        model: Any,
        rank: int,
        traffic: SentTraffic,
        device: Any,
    ) -> None:
        self.method, self.traffic = method, traffic
        self.failure: Exception | None = None
        self._is_closed = False
        self._average, self._rank = average, rank
        self._model = weakref.ref(model)  # which has this, by its hook
        self._device = device
        self._stream = None if device.type == "cpu" else torch.cuda.Stream(device)
        self._turns: queue.SimpleQueue[_Turn | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wattree-reduce", daemon=True)
        self._thread.start()
        # A thread that Python stops at its end while it is inside torch aborts the process.
        weakref.finalize(self, _stop, self._turns, self._thread)

    def hook(self, bucket: dist.GradBucket) -> Any:
        """Take a bucket; return the future of its mean."""
        tensor, number = bucket.buffer(), bucket.index()
        is_cpu = self._stream is None
        done = torch.futures.Future() if is_cpu else torch.futures.Future(devices=[self._device])
        ready = None
        if not is_cpu:
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(self._device))
        if self._is_closed:
            raise CommunicationError(f"rank {self._rank}: gradients are averaged no more: closed")
        # DDP's own name for what `join` was asked; there is no public one.
        if not getattr(self._model(), "_divide_by_initial_world_size", True):
            raise CommunicationError(
                f"rank {self._rank}: model.join: found divide_by_initial_world_size=False, "
                "expected True, with which ranks without batches count as zero gradients"
            )
        self._turns.put(_Turn(tensor, number, done, ready))
        return done.then(_mean)

    def compress(self) -> None:
        """Send gradients as bfloat16 from the next backward pass on; on all ranks, before it."""
        self._average.compressed = True

    def close(self) -> None:
        """End the thread and give memory back; backward passes fail from now on."""
        if self._is_closed:
            return
        self._is_closed = True
        self._turns.put(None)
        self._thread.join(_LEAVE_S)
        if not self._thread.is_alive():
            self._average.close()

    def _run(self) -> None:
        while (turn := self._turns.get()) is not None:
            found = self._averaged(turn)
            with self._on_stream():
                turn.done.set_result(found)
            del turn, found  # a thread that waits would keep the bucket

    def _averaged(self, turn: _Turn) -> Tensor | Exception:
        if self.failure is not None:  # ranks may be at different buckets: nothing fits any more
            return self.failure
        try:
            with torch.no_grad(), self._on_stream() as stream:
                if stream is not None:
                    stream.wait_event(turn.ready)
                self._average.average_(turn.bucket, turn.number)
        except Exception as error:  # noqa: BLE001 - raised where the program waits for the bucket
            self._average.fail(self._rank)
            self.failure = (
                error
                if isinstance(error, WattreeError)
                else CommunicationError(
                    f"rank {self._rank}, averaging bucket {turn.number} of the gradients: "
                    f"{type(error).__name__}: {error}"
                )
            )
            return self.failure
        return turn.bucket

    @contextlib.contextmanager
    def _on_stream(self) -> Any:
        if self._stream is None:
            yield None
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield self._stream


def _stop(turns: queue.SimpleQueue[_Turn | None], thread: threading.Thread) -> None:
    """End a thread and wait for it, at the end of the process."""
    turns.put(None)
    thread.join(_LEAVE_S)


def _mean(done: Any) -> Tensor:
    """Return the averaged bucket, or raise its error in the backward pass."""
    found = done.value()
    if isinstance(found, Exception):
        raise found
    return found
