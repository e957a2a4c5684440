"""What two processes on this machine gain over one: measured in turns, and predicted from one run.

A section for `benchmarks.colocation`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.colocation_predicted import MeasuredStep, predicted_gain
from benchmarks.frame import Figure, Section
from tests.distributed.ranks import run_ranks
from wattree.errors import RunError
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.launch.script import launch_script
from wattree.runtime.tune import TrialSetting
from wattree.runtime.tune.measured import TrialOptions, Trials

_SCRIPT = Path(__file__).parent / "colocation_job.py"
#: Most that predicted and measured gain may be apart, by the issue of this part.
_MOST = 0.10
_TURNS, _SECONDS, _PROFILED_STEPS, _AVERAGES = 7, 2.0, 60, 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job.

    Attributes:
        name: For readers.
        words: For the script.
        rule: What becomes of the batch.
    """

    name: str
    words: tuple[str, ...]
    rule: str = "fixed-global"

    def environment(self) -> dict[str, str]:
        """Return the environment of its runs: a thread for each process.

        Two processes have a core each. One with a thread on each core may be several times slower
        on a machine with other work, as threads wait for each other: that would be no gain of a
        second process.
        """
        return {**os.environ, "OMP_NUM_THREADS": "1"}


#: A slow disk, loader workers that two processes share, computing alongside waiting, computing
#: alone of several sizes, and a step that is little but overheads.
CASES = (
    Case(name="samples wait 1 ms each, perceptron", words=("--latency", "1e-3", "--batch", "16")),
    Case(
        name="the same, a batch for each",
        words=("--latency", "1e-3", "--batch", "16"),
        rule="fixed-per-process",
    ),
    Case(
        name="the same, by two loader workers in all",
        words=("--latency", "1e-3", "--batch", "16", "--workers", "2"),
    ),
    Case(
        name="samples wait 0.3 ms each, convolutions",
        words=("--latency", "3e-4", "--batch", "32", "--model", "convolutions"),
    ),
    Case(name="computing alone, 4 samples", words=("--batch", "4", "--model", "convolutions")),
    Case(name="computing alone, 32 samples", words=("--batch", "32", "--model", "convolutions")),
    Case(name="overheads alone, perceptron", words=("--batch", "16")),
)


def gains(turns: int = _TURNS, seconds: float = _SECONDS) -> Section:
    """Return measured and predicted gain of two processes, case by case.

    Args:
        turns: Times that one and two processes are measured in turn.
        seconds: Length of each measurement. [s]
    """
    figures = []
    for case in CASES:
        ratios, predictions = [], []
        for turn in range(turns):  # in turns, as machines drift
            words, alone = (*case.words, "--shares", "2"), LaunchOptions(device="cpu")
            profile = profiled(_SCRIPT, words, alone, case.environment())
            averaging = averaging_s(2, int(profile["gradient_bytes"]))
            predictions.append(predicted_from(profile, 2, case.rule, averaging))
            ratios.append(measured_gain(case, 2, turn=turn, seconds=seconds))
        predicted, measured = statistics.median(predictions), statistics.median(ratios)
        error = predicted / measured - 1
        figures.append(
            Figure(
                f"{case.name} ({case.rule})",
                f"within {_MOST:.0%}",
                f"predicted {predicted:.2f} x ({min(predictions):.2f} to "
                f"{max(predictions):.2f}), measured {measured:.2f} x ({min(ratios):.2f} to "
                f"{max(ratios):.2f}): {error:+.1%}",
                abs(error) <= _MOST,
            )
        )
    notes = (
        f"Two processes under wattree launch against one; medians over {turns} turns of both "
        f"together, {len(os.sched_getaffinity(0))} cores. Predicted by "
        "benchmarks.colocation_predicted from a run of one process, with the shipped contention of "
        "CPUs, and the time that averaging gradients of that size takes processes which do nothing "
        "else.",
    )
    return Section(title="Gain of two processes", figures=tuple(figures), notes=notes)


def profiled(
    script: Path, words: Sequence[str], options: LaunchOptions, environment: Mapping[str, str]
) -> dict[str, float]:
    """Return where the step of one process goes: one run of a script with its own clock.

    Args:
        words: Of the script.

    Raises:
        RunError: It failed.
    """
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "profile.json"
        command = [sys.executable, str(script), *words, "--steps", str(_PROFILED_STEPS)]
        finished = launch_script(
            [*command, "--profile", str(path)],
            replace(options, logs=Path(made) / "logs"),
            environment=environment,
            say=_nothing,
        )
        if finished.code:
            raise RunError(str(script), [f"ended with {finished.code}: {finished.failure}"])
        measured: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return measured


@lru_cache
def averaging_s(processes: int, gradient_bytes: int) -> float:
    """Return what averaging gradients of a size takes more among processes than alone. [s]

    Of processes that do nothing else: it hangs on the machine and the size, not on the job.
    """
    every = run_ranks(
        processes,
        "benchmarks/colocation_gain_ranks.py:averaged",
        {"gradient_bytes": gradient_bytes, "turns": _AVERAGES},
        limit_s=120,
    )
    # Passes have ended when those of the last process have.
    ends = {name: np.max([each[name] for each in every], axis=0) for name in every[0]}
    return max(float(np.median(ends["together"]) - np.median(ends["alone"])), 0.0)


def predicted_from(
    profile: Mapping[str, float], processes: int, rule: str, averaging: float
) -> float:
    """Return the gain that a prediction makes of a profile.

    Args:
        profile: Of `profiled`, for that number of processes.
        averaging: What averaging the gradients takes. [s]
    """
    cores = len(os.sched_getaffinity(0))
    # Of its time a share `h` stays whatever the batch is, the rest shrinks to 1 / q.
    ratio = min(profile["share_s"] / profile["whole_s"], 1.0)
    fixed = max((ratio - 1 / processes) / (1 - 1 / processes), 0.0)
    alone = MeasuredStep(
        device_s=profile["whole_s"],
        waiting_s=profile["waiting_s"],
        host_s=profile["host_s"],
        fixed_share=fixed,
        workers=int(profile["workers"]),
        loader_s=profile.get("loader_s", 0.0),
        loader_core_s=profile.get("loader_core_s", 0.0),
        cores_used=max(profile["cores"], 1.0),
    )
    gain = predicted_gain(alone, processes, rule=rule, cores=cores, reduction_s=averaging)
    # A clock between steps hides what workers need longer than they.
    step_s = max(profile["step_s"], alone.loader_s / max(alone.workers, 1))
    return gain * step_s / alone.step_s


def measured_gain(case: Case, processes: int, *, turn: int = 0, seconds: float = _SECONDS) -> float:
    """Return samples per second of `q` processes over those of one, each measured once.

    Args:
        processes: `q`.
        turn: Which of them begins: one process in even turns.
        seconds: Length of each measurement. [s]

    Raises:
        RunError: A run failed.
    """
    launch = LaunchOptions(device="cpu", batch_rule=case.rule)
    trials = Trials(
        lambda _: (sys.executable, str(_SCRIPT), *case.words),
        TrialOptions(launch=launch, seconds=seconds),
        environment=case.environment(),
        say=_nothing,
    )
    order = (processes, 1) if turn % 2 else (1, processes)
    rows = {count: trials(TrialSetting(processes=count)) for count in order}
    fault = rows[1].fault or rows[processes].fault
    if fault:
        raise RunError(str(_SCRIPT), [fault])
    return rows[processes].rate / rows[1].rate


def _nothing(line: str) -> None:
    del line
