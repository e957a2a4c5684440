"""Trials of `waits.py` by one of several launchers; prints the rows that it drew up."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.tune import TrialSetting
from wattree.runtime.tune.measured import TrialOptions, Trials

SCRIPT = Path(__file__).with_name("waits.py")
FIRST = os.environ["OMPI_COMM_WORLD_RANK"] == "0"
FAILS = "--one-fails" in sys.argv and not FIRST
WORDS = ["-c", "raise OSError('no disk')"] if FAILS else [str(SCRIPT), sys.argv[1]]


def main() -> None:
    """Try one process, then two."""
    trials = Trials(
        lambda _: [sys.executable, *WORDS],
        TrialOptions(
            launch=LaunchOptions(device="cpu", timeout_s=600.0), seconds=0.3, limit_s=600.0
        ),
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
        say=[].append,
    )
    rows = [asdict(trials(TrialSetting(processes=processes))) for processes in (1, 2)]
    text = json.dumps([asdict(trials.limits), rows])
    trials.done()
    trials.close()
    sys.stdout.write(f"{text}\n")  # one piece


main()
