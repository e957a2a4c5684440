"""Fits the constants of the emulated network to recorded scenarios.

A pattern search: one constant after the other is moved up and down by a step that shrinks when
nothing helps. It needs no derivative (makespans have kinks) and is the same every time.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.netlab.compare import Comparison, compare, predict
from benchmarks.netlab.machine import Machine
from benchmarks.netlab.scenario import Scenario

#: Constant → first step, least and largest value.
_TRAFFIC = {
    "message_latency_s": (5e-5, 5e-5, 4e-4),
    "message_link_s": (2e-5, 0.0, 2e-4),
    "collective_slack": (1e-3, 0.0, 2e-2),
    "send_buffer_bytes": (1e4, 1e5, 2.6e5),
    "wake_s": (1e-4, 0.0, 5e-4),
    "copy_s_per_byte": (2e-10, 0.0, 2e-9),
}
_OVERLAP = {
    "busy_s_per_byte": (1e-9, 0.0, 2e-8),
    "waiting_s_per_byte": (4e-10, 0.0, 2e-8),
}
FITTED = (*_TRAFFIC, *_OVERLAP, "product_s_per_flop")
_ROUNDS = 5


def unfitted(machine: Machine) -> Machine:
    """Return `machine` with its traffic constants at plain guesses, for fits that must not know.

    0.2 ms per dependent step and 150 kB in a socket of 256 KiB; everything else costs nothing.
    """
    return replace(
        machine,
        message_latency_s=2e-4,
        message_link_s=0.0,
        collective_slack=0.0,
        send_buffer_bytes=1.5e5,
        wake_s=0.0,
        copy_s_per_byte=0.0,
    )


def fit_machine(start: Machine, scenarios: Sequence[Scenario]) -> Machine:
    """Return the constants that predict the measured ones among `scenarios` best.

    Products are fitted last: first their length without traffic, then what traffic does to them.
    What has no scenario to be fitted on stays as in `start`.
    """
    known = [one for one in scenarios if one.measured is not None]
    quiet = [one for one in known if not one.multiplies]
    alone = [one for one in known if one.multiplies and not one.communicates]
    overlapped = [one for one in known if one.multiplies and one.communicates]
    machine = _search(start, quiet, _TRAFFIC) if quiet else start
    if alone:
        ratio = statistics.median(
            one.measured.makespan_s / predict(one, machine).makespan_s
            for one in alone
            if one.measured is not None
        )
        machine = replace(machine, product_s_per_flop=machine.product_s_per_flop * ratio)
    return _search(machine, overlapped, _OVERLAP) if overlapped else machine


def _loss(machine: Machine, scenarios: Sequence[Scenario]) -> float:
    """Return the mean of makespan errors and task-end errors; the worst count a little more."""
    compared = [compare(one, predict(one, machine)) for one in scenarios]
    return statistics.fmean(_loss_of(one) for one in compared)


def _loss_of(comparison: Comparison) -> float:
    assert comparison.error is not None
    ends = comparison.mean_end_error or 0.0
    return float(abs(comparison.error) + 10.0 * comparison.error**2 + ends)


def _search(
    machine: Machine,
    scenarios: Sequence[Scenario],
    ranges: dict[str, tuple[float, float, float]],
) -> Machine:
    loss_of: Callable[[Machine], float] = lambda tried: _loss(tried, scenarios)  # noqa: E731
    best, shrink = loss_of(machine), 1.0
    for _ in range(_ROUNDS):
        before = best
        for name, (step, least, most) in ranges.items():
            for change in (step * shrink, -step * shrink):
                value = min(most, max(least, getattr(machine, name) + change))
                tried = replace(machine, **{name: value})
                if tried != machine and (found := loss_of(tried)) < best:
                    machine, best = tried, found
                    break
        if best > before * 0.995:
            shrink /= 2
    return machine
