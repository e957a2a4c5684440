"""Processor utilization from the kernel's time counters; no energy by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from wattree.errors import MeterError
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading

#: Fields of a processor's line that are no work: waiting for nothing, waiting for storage.
_IDLE = (3, 4)
#: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
_FIELDS = 8


class ProcessorTime:
    """Utilization of the processors that this process may use, since the last call.

    Args:
        path: The kernel's file.
        processors: Their numbers; None for those that this process may use.

    Raises:
        MeterError: The system has no such file.
    """

    def __init__(
        self, path: Path = Path("/proc/stat"), *, processors: Sequence[int] | None = None
    ) -> None:
        self._path = path
        self.processors = tuple(sorted(_usable() if processors is None else processors))
        self._before = self._counts()

    def _counts(self) -> tuple[float, float]:
        """Return the busy ticks and all ticks."""
        try:
            lines = self._path.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError) as error:
            raise MeterError(f"{self._path} cannot be read ({error})") from error
        wanted = {f"cpu{number}" for number in self.processors}
        busy = total = 0.0
        for line in lines:
            name, *fields = line.split()
            if name in wanted:
                ticks = [float(field) for field in fields[:_FIELDS]]
                total += sum(ticks)
                busy += sum(ticks) - sum(ticks[index] for index in _IDLE)
        return busy, total

    def share(self) -> float | None:
        """Return the busy fraction since the last call; None if no time passed."""
        busy, total = self._counts()
        worked, went = busy - self._before[0], total - self._before[1]
        if went <= 0:
            return None
        self._before = busy, total
        return min(max(worked / went, 0.0), 1.0)


def _usable() -> Sequence[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)


class ProcessorTimeMeter:
    """Meter of the utilization `cpu` of a run."""

    kind = "processor time"

    def __init__(self, busy: ProcessorTime) -> None:
        self._busy = busy
        self._started = False

    def domains(self) -> tuple[Domain, ...]:
        """Return the single utilization domain."""
        return (Domain(name="cpu", device="processors", quantity=Quantity.SHARE),)

    def read(self) -> Sequence[Reading]:
        """Return the processor utilization since the last reading."""
        share = self._busy.share()
        if not self._started:  # the first is the start of the time that the next one is about
            self._started = True
            return [Reading("cpu", time.monotonic(), share or 0.0)]
        return [] if share is None else [Reading("cpu", time.monotonic(), share)]


@METERS.register("processor-time")
def _probe(options: MeterOptions) -> Meters:
    del options
    try:
        return Meters((ProcessorTimeMeter(ProcessorTime()),))
    except MeterError:  # no Linux: utilization is then not known
        return Meters()
