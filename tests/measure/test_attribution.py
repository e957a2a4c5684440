"""Energy by stage: recovered where a meter can tell, refused where it cannot."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.measure.fakes import counter
from wattree.measure.stages.attribution import stage_energies
from wattree.measure.track import Track

WATTS = {"materials": 20.0, "computing": 100.0, "communicating": 50.0}


def loop(
    seed: int,
    *,
    seconds: float,
    every_s: float,
    step_s: float,
    noise: float = 0.0,
    mixes_alike: bool = False,
) -> tuple[Track, dict[str, tuple[list[float], list[float]]], dict[str, float]]:
    """Return a counter's track over a loop of known powers, the waits in it, and the truth."""
    draw = np.random.default_rng(seed)
    waits: dict[str, tuple[list[float], list[float]]] = {
        "materials": ([], []),
        "communicating": ([], []),
    }
    edges, labels, now_s = [0.0], [], 0.0
    while now_s < seconds:
        # Starvation comes and goes over seconds, as it does where a file server is shared.
        swing = 1.0 if mixes_alike else 1 + 0.8 * math.sin(now_s / 3)
        lull = 1.0 if mixes_alike else 1 + 0.8 * math.sin(now_s / 1.7)
        for stage, share in (
            ("materials", 0.3 * swing),
            ("computing", 0.5),
            ("communicating", 0.2 * lull),
        ):
            until_s = now_s + share * step_s * (1 if mixes_alike else draw.uniform(0.9, 1.1))
            if stage in waits:
                waits[stage][0].append(now_s)
                waits[stage][1].append(until_s)
            edges.append(until_s)
            labels.append(stage)
            now_s = until_s
    joules = [0.0]
    truth = dict.fromkeys(WATTS, 0.0)
    for label, (begin, end) in zip(labels, pairwise(edges), strict=True):
        used = WATTS[label] * (end - begin)
        truth[label] += used
        joules.append(joules[-1] + used)
    track = Track(counter("gpu0"))
    reads = np.arange(0.0, now_s, every_s)
    shown = np.interp(reads, edges, joules)
    steps = np.diff(shown, prepend=0.0) * (1 + noise * draw.standard_normal(len(shown)))
    for at_s, value in zip(reads, np.cumsum(np.maximum(steps, 0.0)), strict=True):
        track.add(float(at_s), float(value))
    return track, waits, truth


def test_a_fast_meter_is_integrated() -> None:
    """Every stage lasts many updates."""
    track, waits, truth = loop(1, seconds=20, every_s=0.002, step_s=0.5)
    split = stage_energies(track, waits, 0.0, track.changed_s)

    assert split.method == "integrated over the times of the stages"
    assert split.energy_j == pytest.approx(truth, rel=0.02)


def test_a_slow_meter_is_resolved_by_least_squares_where_the_mixture_changes() -> None:
    """Hundreds of steps between two updates: the powers are found all the same."""
    track, waits, truth = loop(2, seconds=60, every_s=0.1, step_s=0.01, noise=0.01)
    split = stage_energies(track, waits, 0.0, track.changed_s)

    assert split.method.startswith("least squares over ")
    assert split.energy_j == pytest.approx(truth, rel=0.05)


def test_a_mixture_that_never_changes_is_not_resolved() -> None:
    """Any powers with the same sum would fit: none is reported."""
    track, waits, _ = loop(3, seconds=30, every_s=0.1, step_s=0.01, noise=0.02, mixes_alike=True)
    split = stage_energies(track, waits, 0.0, track.changed_s)

    assert split.energy_j is None
    assert split.method.startswith("each stage takes the same share of every update of the meter")


def test_a_reading_that_never_changes_is_not_resolved() -> None:
    """Steps about as long as the meter's period: residuals are zero, whatever the powers are."""
    track, draw = Track(counter("gpu0")), np.random.default_rng(4)
    starts = np.arange(40) + draw.uniform(0.0, 0.02, 40)
    for second in range(41):
        track.add(float(second), 200.0 * second)
    waits = {"materials": (list(starts), list(starts + 0.6))}

    assert stage_energies(track, waits, 0.0, track.changed_s).energy_j is None


def test_too_few_updates_are_not_resolved() -> None:
    """Three unknowns need more than a handful of sums."""
    track, waits, _ = loop(4, seconds=2, every_s=0.1, step_s=0.01)
    split = stage_energies(track, waits, 0.0, track.changed_s)

    assert split.energy_j is None
    assert "are too few to tell 3 stages apart" in split.method


def test_where_nothing_was_waited_for_all_is_computing() -> None:
    """A loop on resident data."""
    track, _, truth = loop(5, seconds=5, every_s=0.1, step_s=0.01)
    split = stage_energies(track, {"materials": ([], [])}, 0.0, track.changed_s)

    assert split.energy_j is not None
    assert split.energy_j["computing"] == pytest.approx(sum(truth.values()), rel=0.05)
    assert split.energy_j["materials"] == 0.0


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    every_s=st.sampled_from([0.003, 0.05, 0.1]),
    part=st.floats(0.2, 1.0),
)
def test_stages_add_up_to_the_whole(seed: int, every_s: float, part: float) -> None:
    """To rounding, whatever the method and the time asked for."""
    track, waits, _ = loop(seed, seconds=15, every_s=every_s, step_s=0.2)
    end_s = part * track.changed_s
    split = stage_energies(track, waits, 0.0, end_s)

    if split.energy_j is not None:
        total_j = track.between(0.0, end_s)
        assert math.fsum(split.energy_j.values()) == pytest.approx(total_j, rel=1e-9)
