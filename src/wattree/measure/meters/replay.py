"""Replays the power series of an earlier run, for trying and testing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from wattree.errors import MeterError
from wattree.measure.meter import METERS, Domain, MeterOptions, Meters, Quantity, Reading
from wattree.trace import PowerSeries, Run, read_run
from wattree.trace.run import BOARD


class ReplayMeter:
    """Power of the devices of a run's first node, from the first reading on.

    Args:
        clock: The monotonic clock.

    Raises:
        MeterError: The run has no power series.
    """

    kind = "replay"

    def __init__(self, run: Run, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._series = dict(_named(series) for series in run.power if _is_first(series))
        if not self._series:
            raise MeterError(f"the run '{run.name}' has no power series to replay")
        self._played = dict.fromkeys(self._series, 0)
        self._note = f"replayed from the run '{run.name}', not read from this machine"
        self._start_s = math.nan

    def domains(self) -> tuple[Domain, ...]:
        """Return a power domain for each series, marked as not read from this machine."""
        return tuple(
            Domain(
                name=name,
                device=f"replay:{name}",
                quantity=Quantity.POWER,
                is_estimate=True,
                note=self._note,
            )
            for name in self._series
        )

    def read(self) -> Sequence[Reading]:
        """Return the points of the series whose time has come."""
        now_s = self._clock()
        readings = []
        if math.isnan(self._start_s):
            self._start_s = now_s
            readings = [
                Reading(name, now_s, series.watts[0]) for name, series in self._series.items()
            ]
        for name, series in self._series.items():
            while self._played[name] < len(series.at_s):
                at_s = self._start_s + series.at_s[self._played[name]]
                if at_s > now_s:
                    break
                readings.append(Reading(name, at_s, series.watts[self._played[name]]))
                self._played[name] += 1
        return readings


def _is_first(series: PowerSeries) -> bool:
    node, slash, _ = series.domain.partition("/")
    return bool(series.watts) and (node == "node0" or not slash)


def _named(series: PowerSeries) -> tuple[str, PowerSeries]:
    name = series.domain.rpartition("/")[2]
    return (BOARD if name == "total" else name), series


@METERS.register("replay")
def _probe(options: MeterOptions) -> Meters:
    if options.replay is None:
        return Meters()
    return Meters((ReplayMeter(read_run(options.replay)),))
