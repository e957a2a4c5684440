"""Estimates a server's power from processor utilization, for machines without a meter.

    P = n * (p_idle + (p_full - p_idle) * busy)

with n cores and p per core from published results of whole servers (processors, memory, disks,
fans and conversion losses, no accelerators). It does not know the machine; published servers of
one core count differ by a factor of two. Where the rated power of the processors is known, it takes
the place of the cores, and the spread is a fifth.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from wattree.errors import MeterError
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading
from wattree.measure.meters.processor_time import ProcessorTime

#: What published servers draw; `benchmarks/server_power.py` makes the file.
_SERVERS = Path(__file__).parent / "server_power.json"
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology"


class EstimateMeter:
    """Power of the node without its accelerators, estimated.

    Args:
        cores: Physical cores among them, or the part of one that they are.
        tdp_w: Rated power of all processors together; None if unknown. [W]
    """

    kind = "estimate"

    def __init__(
        self,
        busy: ProcessorTime,
        *,
        cores: float,
        tdp_w: float | None = None,
    ) -> None:
        self._busy, self._rated_w = busy, tdp_w
        servers = json.loads(_SERVERS.read_text(encoding="utf-8"))
        per, size, unit = (
            (servers["per_core"], cores, f"{cores:g} cores")
            if tdp_w is None
            else (servers["per_rated_watt"], tdp_w, f"{tdp_w:g} W of rated power")
        )
        self._idle_w, self._full_w = size * per["idle"]["median"], size * per["full"]["median"]
        low, high = size * per["full"]["quartiles"][0], size * per["full"]["quartiles"][1]
        self._note = (
            f"estimated from processor time and {per['servers']} published servers: "
            f"{self._idle_w:.3g} W idle, {self._full_w:.3g} W busy (half of such servers draw "
            f"{low:.3g} to {high:.3g} W) for {unit}; without accelerators"
        )
        self._started = False

    def domains(self) -> tuple[Domain, ...]:
        """Return the one power, marked as an estimate."""
        domain = Domain(
            name="host",
            device="host",
            quantity=Quantity.POWER,
            rated_w=self._rated_w,
            is_estimate=True,
            note=self._note,
        )
        return (domain,)

    def read(self) -> Sequence[Reading]:
        """Return the power since the last reading."""
        share = self._busy.share()
        if share is None and self._started:
            return []
        self._started = True
        watts = self._idle_w + (self._full_w - self._idle_w) * (share or 0.0)
        return [Reading("host", time.monotonic(), watts)]


def _cores(processors: Sequence[int]) -> float:
    """Return the number of physical cores; a thread counts as its fraction of a core."""
    return sum(1.0 / _threads(number) for number in processors)


def _threads(processor: int) -> int:
    try:
        folder = Path(_TOPOLOGY.format(processor))
        found = (folder / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return 1
    ranges = [part.partition("-") for part in found.strip().split(",")]
    return max(1, sum(int(last or first) - int(first) + 1 for first, _, last in ranges))


@METERS.register("estimate")
def _probe(options: MeterOptions) -> Meters:
    try:
        busy = ProcessorTime()
    except MeterError as error:
        return Meters(missing=(f"host: no estimate either: {error}",))
    meter = EstimateMeter(busy, cores=_cores(busy.processors), tdp_w=options.tdp_w)
    return Meters((meter,))
