"""Readings add up to energies, whatever happens to a counter."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.measure.fakes import counter, power
from wattree.measure.track import Track, unwrapped_step_j


def counted(*values: float, wraps_j: float | None = None, every_s: float = 0.1) -> Track:
    """Return the track of a counter that is read regularly from second 0 on."""
    track = Track(counter("gpu0", wraps_j=wraps_j))
    for index, value in enumerate(values):
        track.add(index * every_s, value)
    return track


def whole(track: Track) -> float:
    """Return the energy of all that was read."""
    return track.between(0.0, track.changed_s)


@given(
    steps=st.lists(st.floats(0.01, 90), min_size=2, max_size=50),
    start=st.floats(0, 99.9),
)
def test_a_counter_that_wraps_adds_up_to_its_steps(steps: list[float], start: float) -> None:
    """Wrapping changes what is shown, not what was used."""
    shown, values = start, [start]
    for step in steps:
        shown = (shown + step) % 100.0
        values.append(shown)
    track = counted(*values, wraps_j=100.0)

    assert whole(track) == pytest.approx(math.fsum(steps), rel=1e-9)


@given(
    before=st.floats(0, 1e6),
    after=st.floats(0, 1e6),
    wraps=st.none() | st.floats(1, 1e6),
    limit=st.floats(0, 1e6),
)
def test_a_step_is_never_negative_nor_more_than_can_be(
    before: float, after: float, wraps: float | None, limit: float
) -> None:
    """Whatever a counter shows, a reading of it adds what is possible or nothing."""
    assume(wraps is None or (before <= wraps and after <= wraps))
    step = unwrapped_step_j(before, after, wraps_j=wraps, limit_j=limit)

    assert step is None or 0 <= step <= limit


@given(
    steps=st.lists(st.floats(0.01, 90), min_size=3, max_size=30),
    cuts=st.lists(st.floats(0, 3), min_size=1, max_size=5).map(sorted),
)
def test_the_energies_of_parts_add_up_to_the_whole(steps: list[float], cuts: list[float]) -> None:
    """Stages and power series are cut out of one total."""
    track = counted(0, *[math.fsum(steps[: index + 1]) for index in range(len(steps))])
    edges = [0.0, *cuts, 4.0]
    parts = [track.between(a, b) for a, b in pairwise(edges)]

    assert math.fsum(parts) == pytest.approx(track.between(0.0, 4.0), rel=1e-9)


@given(st.lists(st.floats(0.01, 90), min_size=12, max_size=60), st.integers(1, 10))
def test_a_thinned_series_keeps_its_energy(steps: list[float], most: int) -> None:
    """Joining neighbours of a long series loses time resolution, no joule."""
    track = counted(0, *[math.fsum(steps[: index + 1]) for index in range(len(steps))])
    at_s, watts = track.series(0.0, track.changed_s, most=most)
    lengths = [b - a for a, b in zip((0.0, *at_s), at_s, strict=False)]

    assert len(at_s) <= most
    assert math.fsum(w * length for w, length in zip(watts, lengths, strict=True)) == pytest.approx(
        whole(track), rel=1e-9
    )


@given(
    readings=st.lists(
        st.tuples(st.floats(-10, 1e4), st.floats(allow_nan=True, allow_infinity=True)), max_size=30
    ),
    is_power=st.booleans(),
    wraps_j=st.none() | st.floats(1, 1e6),
    start_s=st.floats(-10, 1e4),
    length_s=st.floats(0.1, 1e4),
)
def test_no_readings_make_an_energy_that_is_none(
    readings: list[tuple[float, float]],
    is_power: bool,  # noqa: FBT001 - hypothesis passes arguments by name
    wraps_j: float | None,
    start_s: float,
    length_s: float,
) -> None:
    """Whatever a broken meter says: a finite energy of at least 0, and a sound series."""
    track = Track(power("board") if is_power else counter("gpu0", wraps_j=wraps_j))
    for at_s, value in readings:
        track.add(at_s, min(value, 1e12) if math.isfinite(value) else value)
    at, watts = track.series(start_s, start_s + length_s, most=10)

    assert 0 <= track.between(start_s, start_s + length_s) < math.inf
    assert all(0 <= w < math.inf for w in watts)
    assert list(at) == sorted(set(at))


def test_a_reset_counts_what_came_after_it_and_is_noted() -> None:
    """The joules before the reset that no reading saw are lost, and said to be."""
    track = counted(5000, 5010, 5020, 3, 13)

    assert whole(track) == pytest.approx(33)
    assert track.notes(0, 9) == ("was reset; up to 0.10 s are not counted (at 0.3 s)",)


def test_a_step_back_that_is_no_wrap_is_a_reset() -> None:
    """A counter far from its end did not wrap: that would be more than the device can draw."""
    track = counted(1000, 1010, 5, wraps_j=262_143)

    assert whole(track) == pytest.approx(15)
    assert track.notes(0, 9)[0].startswith("was reset")


def test_a_wrap_is_noted() -> None:
    """A reader may want to know; the energy is right all the same."""
    assert counted(95, 5, wraps_j=100).notes(0, 9) == (
        "wrapped, which is taken into account (at 0.1 s)",
    )


def test_a_jump_ahead_is_not_counted() -> None:
    """A counter that leaps by a megajoule in a tenth of a second has not measured it."""
    track = counted(0, 10, 1_000_010, 1_000_020)

    assert whole(track) == pytest.approx(20)
    assert track.notes(0, 9) == ("jumped by 1e+06 J, which is not counted (at 0.2 s)",)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_what_is_no_energy_is_left_out(bad: float) -> None:
    """The counter goes on at the next reading: nothing is lost, nothing invented."""
    track = counted(0, 10, bad, bad, 40)

    assert whole(track) == pytest.approx(40)
    assert track.notes(0, 9) == (
        "reported values that are negative or no numbers (2 times, first at 0.2 s)",
    )


def test_a_counter_slower_than_its_readings_is_taken_from_change_to_change() -> None:
    """Between updates it shows nothing; reading it does not make its power a row of spikes."""
    values = [10 * (index // 5) for index in range(2, 52)]  # updated every 0.5 s, 20 W
    track = counted(*values)
    _, watts = track.series(0.0, 4.9, most=100)

    assert track.period_s == pytest.approx(0.5)
    assert track.resolution_j == pytest.approx(10)
    assert watts == pytest.approx([20.0] * len(watts))
    assert track.between(0.0, 4.9) == pytest.approx(98.0)


def test_beyond_its_last_change_a_counter_goes_on_for_one_period_only() -> None:
    """What it has used and not shown yet is known for so long; after that it may be stuck."""
    track = counted(0, 10, 20, 30)

    assert track.between(0.0, 0.4) == pytest.approx(40)
    assert track.between(0.0, 50.0) == pytest.approx(40)


def test_a_power_is_integrated_over_the_time_before_each_reading() -> None:
    """A power meter shows the average up to now."""
    track = Track(power("board"))
    for at_s, watts in ((0.0, 999.0), (1.0, 100.0), (3.0, 50.0)):
        track.add(at_s, watts)

    assert track.between(0.0, 3.0) == pytest.approx(200)


def test_a_gap_in_a_power_is_filled_and_noted() -> None:
    """Its energy is a guess, so it must be marked as one."""
    track = Track(power("board"))
    for at_s in (0, 1, 2, 3, 20, 21):
        track.add(at_s, 100.0)

    assert track.between(0.0, 21.0) == pytest.approx(2100)
    assert track.notes(0, 30) == ("had a gap of 17.0 s, filled with what followed it (at 20.0 s)",)


def test_readings_out_of_order_are_left_out() -> None:
    """A logger's clock that was set back must not make negative times."""
    track = Track(power("board"))
    for at_s in (0, 1, 2, 1.5, 3):
        track.add(at_s, 100.0)

    assert track.between(0.0, 3.0) == pytest.approx(300)
    assert track.notes(0, 9) == ("had readings out of their order, left out (at 2.0 s)",)


def test_another_value_at_the_same_time_is_left_out_and_noted() -> None:
    """Two loggers in one file: which one is right no one knows."""
    track = Track(power("board"))
    for line in range(8):
        track.add(float(line // 2), 100.0 * (1 + line % 2), line=2 + line)

    assert track.between(0.0, 3.0) == pytest.approx(300)
    assert track.notes(0, 9) == (
        "had other values at a time that was read, left out (4 times, first at 0.0 s; lines 3, 5, "
        "7, 9)",
    )


def test_a_peak_is_an_average_over_its_time() -> None:
    """One late update of a sensor is no peak of power."""
    track = counted(0, 10, 10.01, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120)

    assert track.peak(0.0, 1.2, over_s=1.0) == pytest.approx(100, rel=0.11)


def test_a_row_in_the_future_loses_itself_alone() -> None:
    """One wrong clock reading must not make all that follow it out of order."""
    track = Track(power("board"))
    for index in range(500):
        ahead_s = 3600.0 if index % 50 == 49 else 0.0
        track.add(index * 0.1 + ahead_s, 200.0, now_s=index * 0.1)

    assert track.between(0.0, 49.8) == pytest.approx(200 * 49.8)
    assert track.period_s == pytest.approx(0.1, rel=0.05)
    (note,) = track.notes(0.0, 50.0)
    assert note.startswith("had times ahead of the clock, left out (10 times")


@pytest.mark.parametrize("every_s", [1.0, 90.0])
def test_a_clock_that_is_always_ahead_is_no_wrong_one(every_s: float) -> None:
    """Its readings are in order, and their differences are right, however rare they are."""
    track = Track(power("board"))
    for index in range(20):
        track.add(index * every_s + 60.0, 100.0, now_s=index * every_s)

    assert track.between(60.0, 60.0 + 19 * every_s) == pytest.approx(1900 * every_s)
    assert track.notes(0.0, 79.0) == ()


def test_a_first_row_in_the_future_loses_itself_alone() -> None:
    """Those after it are not out of order: their times are not ahead of the clock."""
    track = Track(power("board"))
    track.add(3600.0, 200.0, line=2, now_s=0.0)
    for index in range(1, 101):
        track.add(index * 0.1, 200.0, line=index + 2, now_s=index * 0.1)

    assert track.between(0.1, 10.0) == pytest.approx(200 * 9.9)
    (note,) = track.notes(0.0, 10.0)
    assert note.startswith("had times ahead of the clock, left out")
    assert note.endswith("line 2)")


def test_a_power_that_nothing_can_draw_is_left_out() -> None:
    """A row of 10 MW in fifty of 200 W would make everything else nothing."""
    track = Track(power("board"))
    for index in range(100):
        track.add(index * 0.1, 1e7 if index % 50 == 25 else 200.0)

    assert track.between(0.0, 9.9) == pytest.approx(200 * 9.9)
    assert track.notes(0.0, 9.9)[0].startswith("reported more than")
