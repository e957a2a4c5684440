"""What tests of measuring share."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.trace import PowerSeries, Run, RunOrigin, write_run


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a run of 100 W to replay: fast enough a sensor for the shortest command.

    It is as long as the slowest machine needs, and read more seldom after the first seconds.
    """
    often, then = range(1, 5_000), range(100, 9_000)
    at_s = (*(index / 1000 for index in often), *(index / 20 for index in then))
    path = tmp_path / "recorded.json"
    series = PowerSeries(domain="node0/gpu0", at_s=at_s, watts=(100.0,) * len(at_s))
    write_run(Run(name="old", origin=RunOrigin.MEASURED, wall_s=450.0, power=(series,)), path)
    return path
