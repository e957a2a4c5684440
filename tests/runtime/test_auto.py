"""`--processes-per-device auto`, as the command line has it."""

from __future__ import annotations

import sys

import pytest
import typer

import wattree.runtime.tune
from wattree.cli.auto import tuned
from wattree.runtime.launch import INTERRUPTED
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.tune.measured import TrialOptions


def test_trials_that_are_interrupted_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the job itself does, with the same exit code; nothing is launched after them."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wattree.runtime.tune, "ramp", interrupted)
    options = TrialOptions(launch=LaunchOptions(device="cpu"))
    with pytest.raises(typer.Exit) as caught:
        tuned(lambda _: [sys.executable, "-c", ""], options)
    assert caught.value.exit_code == INTERRUPTED
    assert capsys.readouterr().err.endswith("wattree: interrupted\n")
