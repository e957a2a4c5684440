"""A data loader wrapper that records waiting time and the workers' processor time."""

from __future__ import annotations

import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from wattree.process import processor_s

#: How often the processor time of workers is read. [s]
_READ_EVERY_S = 0.5
#: Nesting in which the tensors of a batch are looked for.
_DEEPEST = 4


class LabeledLoader:
    """Yields the batches of a loader; all other attributes are the loader's own.

    Args:
        loader: Any iterable of batches.
        begin: Called when waiting begins; what it returns is passed to `received`.
        received: Called with that, the batch, the loader's processor time since the batch before
            [s], and its number of workers.
        ended: Called after the last batch, with the loader's processor time since. [s]
    """

    def __init__(
        self,
        loader: Any,
        *,
        begin: Callable[[], Any],
        received: Callable[[Any, Any, float, int], None],
        ended: Callable[[float], None],
    ) -> None:
        self._loader, self._begin, self._received = loader, begin, received
        self._ended = ended
        self._reported_at_s: dict[
            int, float
        ] = {}  # of workers that stay from one epoch to the next

    def __iter__(self) -> Iterator[Any]:
        """Yield the loader's batches."""
        begun, here_s = self._begin(), time.thread_time()
        batches = iter(self._loader)
        workers = WorkerTime(getattr(batches, "_workers", ()), reported_s=self._reported_at_s)
        try:
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                core_s = workers.since() if workers.count else time.thread_time() - here_s
                self._received(begun, batch, core_s, workers.count)
                yield batch
                begun, here_s = self._begin(), time.thread_time()
        finally:
            self._ended(workers.rest())

    def __len__(self) -> int:
        """Return the loader's length."""
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self._loader, name)


class WorkerTime:
    """Processor time of a loader's worker processes, as the kernel counts it.

    Args:
        workers: Processes of `multiprocessing`.
        reported_s: Worker's number → its time reported so far; updated. [s]
        clock: The monotonic clock.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        *,
        reported_s: dict[int, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._numbers = [worker.pid for worker in workers]
        self._reported_at_s = {} if reported_s is None else reported_s
        for number in set(self._reported_at_s) - set(self._numbers):
            del self._reported_at_s[number]  # its number may be given to another
        self._clock, self._read_s = clock, clock()
        self._ended_s = _ended_children_s()
        self._reported_s = math.fsum(self._reported_at_s.values())  # of the workers of now
        self.count = len(self._numbers)

    def since(self) -> float:
        """Return the time since the last report; 0 between two readings. [s]"""
        if self._clock() - self._read_s < _READ_EVERY_S:
            return 0.0
        self._read_s = self._clock()
        return self._grown_s()

    def rest(self) -> float:
        """Return the time since the last report, however short, of ended workers too. [s]"""
        if not self.count:
            return 0.0
        grown_s = self._grown_s()
        if any(processor_s(number) is None for number in self._numbers):
            # The kernel tells of children that have ended all at once. What else the program
            # started and waited for meanwhile is among them, which loops over data seldom do.
            ended_s = _ended_children_s() - self._ended_s
            unseen_s = max(0.0, ended_s - self._reported_s)
            self._reported_s += unseen_s
            grown_s += unseen_s
        return grown_s

    def _grown_s(self) -> float:
        grown_s = 0.0
        for number in self._numbers:
            found_s = processor_s(number)
            before_s = self._reported_at_s.get(number, 0.0)
            if found_s is not None and found_s > before_s:
                grown_s += found_s - before_s
                self._reported_at_s[number] = found_s
        self._reported_s += grown_s
        return grown_s


def _ended_children_s() -> float:
    """Return the processor time of all children that ended and were reaped. [s]"""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def samples_of(batch: Any) -> int | None:
    """Return the samples of a batch: the first dim of its first tensor; None if it has none."""
    for tensor in _tensors(batch, _DEEPEST):
        if len(tensor.shape) > 0:
            return int(tensor.shape[0])
    return None


def bytes_of(batch: Any) -> int:
    """Return the bytes of all tensors of a batch. [B]"""
    return sum(int(getattr(tensor, "nbytes", 0)) for tensor in _tensors(batch, _DEEPEST))


def _tensors(batch: Any, depth: int) -> Iterator[Any]:
    if hasattr(batch, "shape"):
        yield batch
    elif depth > 0 and isinstance(batch, Mapping):
        for part in batch.values():
            yield from _tensors(part, depth - 1)
    elif depth > 0 and isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors(part, depth - 1)


class Counts:
    """Number of samples and bytes that a loop has processed.

    Attributes:
        steps: Updates, or batches where no one says what an update is.
        workers: Of the loader, at most.
        batch_bytes: Of all tensors of all batches. [B]
        core_s: The loader's processor time. [s]
        samples: None once a batch had no tensor to count them by.
        reduced_bytes: Given to all-reduces that the program calls itself. [B]
        collectives: That it calls itself, by name; those that only wait for others are none.
    """

    def __init__(self) -> None:
        self.steps = self.workers = self.batch_bytes = 0
        self.core_s = 0.0
        self.samples: int | None = 0
        self.reduced_bytes = 0
        self.collectives: Counter[str] = Counter()

    def add(self, batch: Any, core_s: float, workers: int) -> None:
        """Count a batch."""
        found = samples_of(batch)
        self.samples = None if found is None or self.samples is None else self.samples + found
        self.batch_bytes += bytes_of(batch)
        self.core_s += core_s
        self.workers = max(self.workers, workers)
