"""What tests of measuring share."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree.trace import PowerSeries, Run, RunOrigin, write_run


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a run of 100 W to replay: fast enough a sensor for the shortest command."""
    at_s = tuple(index / 1000 for index in range(1, 20_000))
    path = tmp_path / "recorded.json"
    series = PowerSeries(domain="node0/gpu0", at_s=at_s, watts=(100.0,) * len(at_s))
    write_run(Run(name="old", origin=RunOrigin.MEASURED, wall_s=20.0, power=(series,)), path)
    return path
