"""Find the meters of this machine, and the parts that no meter reads."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.errors import MeterError
from wattree.measure import meters as _kinds
from wattree.measure.meter import METERS, Meter, MeterOptions, Meters, Quantity
from wattree.trace.run import BOARD

assert _kinds  # imported to register its meters

#: In this order: of two meters of one device the first reads it.
_LOOKED_FOR = ("csv", "replay", "nvml", "amdsmi", "apple", "rapl")
_BUSY, _ESTIMATE, _REPLAY = "processor-time", "estimate", "replay"


def find_meters(names: Sequence[str] = (), options: MeterOptions | None = None) -> Meters:
    """Return the meters to read.

    Args:
        names: Kinds of meters; none for all that the machine has. An estimate takes their place
            only where there is none at all, or where it is asked for; a replay that of all.
        options: What a user says about them.

    Raises:
        UnknownNameError: There is no such kind.
        MeterError: A kind was asked for and there is none, or nothing can be read at all.
    """
    options = options or MeterOptions()
    meters: list[Meter] = []
    missing: list[str] = []
    usual = _LOOKED_FOR if options.replay is None else (_REPLAY,)
    for name in names or usual:
        if name == "nvml" and not names and any(_reads_devices(meter) for meter in meters):
            continue  # a log of its devices, which need not name them as it does
        found = METERS[name](options)
        if names and not found.meters:
            why = "; ".join(found.missing) or _not_there(name)
            raise MeterError(f"--meter {name}: {why}")
        meters += found.meters
        missing += found.missing
    if not _reads_energy(meters):
        found = METERS[_ESTIMATE](options)
        meters += found.meters
        missing += found.missing
        if not found.meters:
            raise MeterError("; ".join(["nothing on this machine can be read", *missing]))
    if not any(domain.name == BOARD for meter in meters for domain in meter.domains()):
        missing.append(f"{BOARD}: no meter of the whole node is named; --csv FILE reads one")
    if _BUSY not in names:
        meters += METERS[_BUSY](options).meters
    return Meters(tuple(meters), tuple(missing))


def _not_there(name: str) -> str:
    if name in {"csv", "replay"}:
        return f"needs a file: --{name} FILE"
    return "this machine has no such device"


def _reads_devices(meter: Meter) -> bool:
    return any(domain.name.startswith("gpu") for domain in meter.domains())


def _reads_energy(meters: Sequence[Meter]) -> bool:
    return any(
        domain.quantity is not Quantity.SHARE for meter in meters for domain in meter.domains()
    )
