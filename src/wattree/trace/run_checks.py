"""Checks of runs: each fault with the key of its file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields

from wattree.trace.run import STAGES, PowerSeries, Run

#: How far the stages' exposed times may be from the run's: readings of a clock are rounded.
_STAGES_OFF = 1e-2
#: Beyond any machine, and far below where squares and products of such figures overflow.
_MOST = 1e30
#: More than any machine has, or does in a year.
_MOST_OF = {"nodes": 10**7, "devices_per_node": 10**4, "iterations": 10**12}
#: Power that no machine draws: that of a few power plants. [W]
_MOST_W = 1e10
#: How far beyond the run's end the last reading of a series may be: the one that ended it. [s]
_LATE_S = 2.0


def problems_of(run: Run) -> list[str]:
    """Return a line for each value that no run can have, with its key; empty for a sound run."""
    return [
        *_numbers(run),
        *_stages(run),
        *_meters(run),
        *(line for index, series in enumerate(run.power) for line in _power(index, series, run)),
    ]


def _bad(value: float | None) -> bool:
    return value is not None and not 0 <= value <= _MOST


def _sound(value: float | None) -> str:
    """Return what is expected in place of a figure."""
    return f"at most {_MOST:.0e}" if value is not None and value > 0 else "0 or more"


def _numbers(run: Run) -> Iterator[str]:
    if _bad(run.wall_s) or run.wall_s == 0:
        most = f", at most {_MOST:.0e}" if run.wall_s > _MOST else ""
        yield f"wall_s: found {run.wall_s}, expected a length above 0{most}"
    yield from _counts(run)
    if _bad(run.rated_w):
        yield f"rated_w: found {run.rated_w}, expected a power of {_sound(run.rated_w)}, or null"
    for field in fields(run.work):
        if _bad(value := getattr(run.work, field.name)):
            yield f"work.{field.name}: found {value}, expected {_sound(value)}, or null"
    for name, share in run.utilization.items():
        if not 0 <= share <= 1:
            yield f"utilization.{name}: found {share}, expected a share between 0 and 1"


def _counts(run: Run) -> Iterator[str]:
    for name, least in (("nodes", 1), ("devices_per_node", 0), ("iterations", 0)):
        if (value := getattr(run, name)) < least:
            yield f"{name}: found {value}, expected at least {least}"
        elif value > _MOST_OF[name]:
            yield f"{name}: found {value:.3g}, expected at most {_MOST_OF[name]:.0e}"
    if run.ranks_per_node is not None and run.ranks_per_node < 1:
        yield f"ranks_per_node: found {run.ranks_per_node}, expected at least 1, or null"


def _stages(run: Run) -> Iterator[str]:
    for name, use in run.stages.items():
        if name not in STAGES:
            yield f"stages.{name}: unknown stage; known: {', '.join(STAGES)}"
        for key in ("busy_s", "exposed_s", "energy_j"):
            if _bad(value := getattr(use, key)):
                yield f"stages.{name}.{key}: found {value}, expected {_sound(value)}"
    exposed_s = math.fsum(use.exposed_s for use in run.stages.values())
    if run.stages and run.wall_s > 0 and abs(exposed_s - run.wall_s) > _STAGES_OFF * run.wall_s:
        yield (
            f"stages: found {exposed_s:.6g} s exposed in all, expected wall_s, {run.wall_s:.6g} s: "
            "every moment belongs to one stage"
        )


def _meters(run: Run) -> Iterator[str]:
    seen: set[str] = set()
    for index, reading in enumerate(run.meters):
        for key in ("energy_j", "resolution_j", "period_s"):
            if _bad(value := getattr(reading, key)):
                yield (
                    f"meters[{index}].{key}: found {value}, expected {_sound(value)} "
                    f"({reading.domain})"
                )
        if reading.domain in seen:
            yield (
                f"meters[{index}].domain: found {reading.domain!r} a second time, expected each "
                "domain once: a device has one reading however many ranks share it"
            )
        seen.add(reading.domain)


def _watts(value: float) -> str:
    return f"below {_MOST_W:.0e} W" if value > _MOST_W else "0 or more"


def _power(index: int, series: PowerSeries, run: Run) -> Iterator[str]:
    where = f"power[{index}]"
    if series.at_s and math.isfinite(run.wall_s) and run.wall_s > 0:
        last = series.at_s[-1]
        if last > run.wall_s * (1 + _STAGES_OFF) + _LATE_S:
            yield (
                f"{where}.at_s[{len(series.at_s) - 1}]: found {last:.6g} s, beyond the run's end, "
                f"expected at most wall_s, {run.wall_s:.6g} s ({series.domain})"
            )
    if len(series.at_s) != len(series.watts):
        yield (
            f"{where}: found {len(series.at_s)} times and {len(series.watts)} powers "
            f"({series.domain}), expected as many"
        )
    for place, watts in enumerate(series.watts):
        if _bad(watts) or watts > _MOST_W:
            yield (
                f"{where}.watts[{place}]: found {watts}, expected {_watts(watts)}; leave out "
                f"the times at which nothing was read ({series.domain})"
            )
    before = -math.ulp(0.0)  # the first may be the start itself
    for place, at_s in enumerate(series.at_s):
        if not (math.isfinite(at_s) and at_s > before):
            yield (
                f"{where}.at_s[{place}]: found {at_s} after {before}, expected ascending times "
                f"from the run's start ({series.domain})"
            )
        before = at_s
