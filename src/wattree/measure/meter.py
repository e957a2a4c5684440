"""The meter interface: a meter lists its domains and returns the readings since the last call.

A meter knows its device and nothing else. Wraps, resets, gaps and what they do to an energy are
the business of `track.py`; when meters are read, that of `window.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from wattree.registry import Registry

#: No processor, memory or accelerator of one package draws as much. It tells a counter that
#: wrapped from one that was reset, nothing else. [W]
_MOST_W = 10_000.0


class Quantity(StrEnum):
    """Kinds of numbers that a domain yields."""

    ENERGY = "energy"  # a counter that grows [J]
    POWER = "power"  # [W]
    SHARE = "share"  # how much of a component is busy, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One thing that a meter reads.

    Attributes:
        name: Within its node: `gpu0`, `cpu0`, `dram0`, `host`, `board`; for a share the component.
        device: What is read, the same for every process that reads it: a UUID, a path.
        quantity: What its numbers are.
        title: For people: the name of the device; may be empty.
        wraps_j: Where the counter starts again from 0; None if it does not. [J]
        most_w: More than it can draw; tells a wrap from a reset. [W]
        rated_w: Rated power; None if unknown. [W]
        updates_every_s: How often its maker says that it is updated; None if no one says. [s]
        is_estimate: No counter reads this.
        note: What a reader of its energy must know.
    """

    name: str
    device: str
    quantity: Quantity
    title: str = ""
    wraps_j: float | None = None
    most_w: float = _MOST_W
    rated_w: float | None = None
    updates_every_s: float | None = None
    is_estimate: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A number of a domain, with its time on the monotonic clock.

    Attributes:
        at_s: When. [s]
        value: As it was read.
        line: Where it stands in the file that it was read from; None if in none.
    """

    domain: str
    at_s: float
    value: float
    line: int | None = None


class Meter(Protocol):
    """Reads some domains of this node.

    Attributes:
        kind: What stands in files of runs: `nvml`, `rapl`, ….
    """

    kind: str

    def domains(self) -> tuple[Domain, ...]:
        """Return the domains; the same at every call."""
        ...

    def read(self) -> Sequence[Reading]:
        """Return the readings since the last call, ordered by time.

        A domain that could not be read this time is left out; the number may be wrong (NaN,
        negative, a counter that went back): whoever asks judges it.

        Raises:
            MeterError: Nothing can be read any more, with the reason.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterOptions:
    """User options for meters.

    Attributes:
        csv: File of a node meter, or of a log of devices or runs.
        csv_shift_s: Added to the times of that file: how far its clock is behind. [s]
        replay: File of a run whose power series are executed.
        devices: Accelerators to read, by index or UUID; None for all.
        tdp_w: Rated power of all processors together, for the estimate. [W]
    """

    csv: str | None = None
    csv_shift_s: float = 0.0
    replay: str | None = None
    devices: tuple[str, ...] | None = None
    tdp_w: float | None = None


@dataclass(frozen=True, slots=True)
class Meters:
    """Result of a probe: meters, and domains of the machine that nothing can read.

    Attributes:
        meters: Ready to be read.
        missing: `gpu0: why, and how to get it`.
    """

    meters: tuple[Meter, ...] = ()
    missing: tuple[str, ...] = ()


class MeterProbe(Protocol):
    """Finds the meters of one kind. Raises `MeterError` only for invalid user options."""

    def __call__(self, options: MeterOptions) -> Meters:
        """Return the meters of this kind; none if the machine has none."""
        ...


#: Kinds of meters by name. Each registers itself in a file of `meters/`.
METERS: Registry[MeterProbe] = Registry(kind="meter", group="wattree.meters")
