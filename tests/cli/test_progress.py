"""Progress of long runs as lines."""

from __future__ import annotations

import time

import pytest

from wattree.cli.design import Lines


def test_what_is_done_has_no_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A last line of "about 0 ns left" would only ask what nanoseconds are left for."""
    clock = iter([0.0, 20.0, 20.0, 40.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    lines = Lines()
    lines.report(1, 2, 0)
    lines.report(2, 2, 0)

    assert capsys.readouterr().err.splitlines() == [
        "wattree: 1 of 2 points, 20 s a point, about 20 s left",
        "wattree: 2 of 2 points, 20 s a point",
    ]
