"""The made-up study that tests of fits share."""

from __future__ import annotations

import pytest

from tests.energy.synthetic import World, isolated, study
from wattree.energy.calibration import (
    EnergyCalibration,
)
from wattree.energy.fit import fit_runs
from wattree.trace.run import (
    Run,
)


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    """Return all runs of the protocol, 2 % noise in energy and 1 % in time."""
    world = World(seed=1, time_noise=0.01)
    return (*isolated(world), *study(world))


@pytest.fixture(scope="module")
def calibration(runs: tuple[Run, ...]) -> EnergyCalibration:
    """Return their fit."""
    return fit_runs(runs)
