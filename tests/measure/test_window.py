"""Windows over meters: what is usable is reported, what is not is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.measure.fakes import Clock, Scripted, counter, power
from wattree.measure import Window
from wattree.measure.meter import Domain, Quantity, Reading
from wattree.measure.window import WindowReading, origin_of
from wattree.trace import RunOrigin


def read(
    meters: list[Scripted],
    clock: Clock,
    *,
    polls: int = 31,
    every_s: float = 0.1,
    wall: Clock | None = None,
    jump: tuple[int, float] | None = None,
) -> WindowReading:
    """Return what a window over meters reads, poll by poll, on a clock of its own."""
    wall = wall or Clock(1.7e9)
    window = Window(meters, clock=clock, wall_clock=wall)
    window.begin()
    for poll in range(polls - 2):
        clock.now_s += every_s
        wall.now_s += every_s + (jump[1] if jump and jump[0] == poll else 0.0)
        window.poll()
    clock.now_s += every_s
    wall.now_s += every_s
    window.end()
    return window.between()


def grows(by: float, count: int = 40, start: float = 0.0) -> list[float]:
    """Return the values of a counter."""
    return [start + by * index for index in range(count)]


def test_energy_and_power_of_a_counter() -> None:
    """The plain case: 20 W for 3 s."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": grows(2.0)})], clock)

    assert found.wall_s == pytest.approx(3.0)
    assert found.meters[0].domain == "node0/gpu0"
    assert found.meters[0].energy_j == pytest.approx(60.0)
    assert found.meters[0].resolution_j == pytest.approx(2.0)
    assert found.meters[0].period_s == pytest.approx(0.1)
    assert found.peak_w == {"node0/gpu0": pytest.approx(20.0)}
    assert found.power[0].watts == pytest.approx([20.0] * 30)


def test_two_meters_of_one_device_read_it_once() -> None:
    """Two ranks on a device, or two libraries: its joules are the same joules."""
    clock = Clock()
    one = Scripted(clock, {"gpu0": grows(2.0)}, domains=[counter("gpu0", device="GPU-1")])
    two = Scripted(clock, {"gpu7": grows(2.0)}, domains=[counter("gpu7", device="GPU-1")])
    found = read([one, two], clock)

    assert [reading.domain for reading in found.meters] == ["node0/gpu0"]


def test_a_stuck_counter_is_missing_not_zero() -> None:
    """A device that is on draws something; no change means no measurement."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": [7.0], "gpu1": grows(1.0)})], clock)

    assert [reading.domain for reading in found.meters] == ["node0/gpu1"]
    assert found.missing == ("node0/gpu0: its counter is stuck: it did not change in 3.0 s",)


def test_a_counter_that_gets_stuck_says_from_when_on() -> None:
    """Its energy up to then is kept."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": grows(2.0, count=11)})], clock)

    assert found.meters[0].energy_j == pytest.approx(22.0)
    assert found.meters[0].note == "did not change in the last 2.0 s, from 1.0 s on"


def test_a_window_too_short_for_a_sensor_is_refused_with_the_length_needed() -> None:
    """Three updates of a sensor are no measurement."""
    clock = Clock()
    slow = [10.0 * (index // 10) for index in range(40)]  # updated every second
    found = read([Scripted(clock, {"gpu0": slow})], clock)

    assert found.meters == ()
    assert found.missing == (
        "node0/gpu0: 3.00 s are too short: it was updated every 1 s and needs 10 updates, so at "
        "least 10 s",
    )
    assert found.needs_s == pytest.approx(10.0)


def test_a_meter_that_hesitates_loses_nothing() -> None:
    """Its counter went on: the next reading has what the missed one would have had."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": grows(2.0)}, fails=range(5, 8))], clock)

    assert found.meters[0].energy_j == pytest.approx(60.0)
    assert found.meters[0].note == ""


def test_a_meter_that_fails_keeps_what_it_read() -> None:
    """A driver that goes away takes no joule with it."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": grows(2.0)}, fails=range(21, 99))], clock)

    assert found.meters[0].energy_j == pytest.approx(42.0)
    assert found.meters[0].note.startswith("was lost at 2.1 s: the driver went away")


def test_a_meter_that_never_answers_is_missing() -> None:
    """Absence has a reason, and is no zero."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": grows(2.0)}, fails=range(99))], clock)

    assert found.meters == ()
    assert found.missing == ("node0/gpu0: the driver went away",)


def test_a_jump_of_the_wall_clock_changes_no_energy_and_is_noted() -> None:
    """Durations are of the monotonic clock."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": grows(2.0)})], clock, jump=(9, 3600.0))

    assert found.meters[0].energy_j == pytest.approx(60.0)
    assert found.notes == (
        "the wall clock jumped by +3600.0 s at 1.0 s; times here are of the monotonic clock",
    )


def test_a_part_of_a_window_has_its_part_of_the_energy() -> None:
    """A loop is measured from its first batch on, not from the start of the program."""
    clock = Clock()
    window = Window([Scripted(clock, {"gpu0": grows(2.0)})], clock=clock)
    window.begin()
    for _ in range(30):
        clock.now_s += 0.1
        window.poll()

    assert window.between(100.5, 102.5).meters[0].energy_j == pytest.approx(40.0)


def test_the_thread_reads_and_ends() -> None:
    """The one test with a real clock: start, read in between, stop, once."""
    clock = Clock()
    window = Window([Scripted(clock, {"gpu0": grows(2.0)})], interval_s=0.001)
    window.start()
    window.stop()
    stopped_s = window.stopped_s
    window.stop()

    assert window.stopped_s == stopped_s >= window.started_s


def test_a_domain_whose_readings_are_all_impossible_says_why() -> None:
    """Not that there were none: a factor of a thousand is easily mended."""
    clock = Clock()
    found = read([Scripted(clock, {"board": [1e9]}, domains=[power("board")])], clock)

    (missing,) = found.missing
    assert "no reading can be used: it reported more than" in missing


def test_readings_of_another_time_are_no_zero() -> None:
    """A logger that stopped an hour ago, or whose clock is an hour off."""
    clock = Clock()
    window = Window([Scripted(clock, {"gpu0": grows(2.0)})], clock=clock)
    window.begin()
    for _ in range(30):
        clock.now_s += 0.1
        window.poll()
    early, late = window.between(50.0, 80.0), window.between(200.0, 230.0)

    assert early.meters == late.meters == ()
    assert early.missing == ("node0/gpu0: the first reading is 20.0 s after the end",)
    assert late.missing == ("node0/gpu0: the last reading is 97.0 s before the start",)


class Backwards(Scripted):
    """A file whose rows have ever earlier times."""

    def read(self) -> list[Reading]:
        """Return the next reading, dated before the last one."""
        return [replace(each, at_s=203.0 - each.at_s) for each in super().read()]


def test_times_that_fall_are_named_and_no_length_is_asked_for() -> None:
    """A longer window would not help: only the first reading can be used."""
    clock = Clock()
    found = read([Backwards(clock, {"gpu0": grows(2.0)})], clock)

    assert found.meters == ()
    assert found.needs_s == 0.0
    assert "updated every" not in found.missing[0]
    assert "had readings out of their order, left out" in found.missing[0]


def test_a_device_that_another_process_claims_is_not_read() -> None:
    """And it is said who may know."""
    clock = Clock()
    window = Window([Scripted(clock, {"gpu0": grows(2.0)})], clock=clock, claim=lambda _: False)
    window.begin()
    clock.now_s += 1
    window.end()

    assert window.between().missing == (
        "node0/gpu0: another process that writes the same file reads it",
    )


def test_a_power_meter_that_always_says_nothing_is_missing() -> None:
    """No machine that runs draws 0 W: what it reads is not connected."""
    domain = Domain(name="board", device="strip", quantity=Quantity.POWER)
    clock = Clock()
    found = read([Scripted(clock, {"board": [0.0] * 40}, domains=[domain])], clock)

    assert found.meters == ()
    assert found.missing == (
        "node0/board: it read 0 W all the time: it does not read what it is connected to",
    )


def test_a_run_of_which_nothing_was_read_is_not_called_measured() -> None:
    """An origin speaks of energy; there is none."""
    clock = Clock()
    found = read([Scripted(clock, {"gpu0": [5.0] * 40})], clock)

    assert found.meters == ()
    assert origin_of(found.meters) is RunOrigin.UNREAD


def test_devices_of_two_makers_have_names_of_their_own() -> None:
    """Each maker numbers its devices from 0; no reading is lost for that."""
    clock = Clock()
    two = [
        Scripted(clock, {"gpu0": grows(step)}, domains=[counter("gpu0", device=device)])
        for step, device in ((1.0, "GPU-1"), (2.0, "amd:0"))
    ]
    found = read(two, clock)

    assert [each.domain for each in found.meters] == ["node0/gpu0", "node0/gpu1"]
    assert [each.energy_j for each in found.meters] == pytest.approx([30.0, 60.0])
    assert found.meters[1].note == "gpu0 of scripted"
    assert [each.domain for each in found.power] == ["node0/gpu0", "node0/gpu1"]
