"""`--processes-per-device auto`: trials, their table, and the launch that follows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from wattree.cli.launch import finish, note

if TYPE_CHECKING:
    from wattree.runtime.launch.options import LaunchOptions
    from wattree.runtime.tune import TrialSetting
    from wattree.runtime.tune.measured import TrialOptions


def tuned(
    command: Callable[[TrialSetting], Sequence[str]],
    options: TrialOptions,
    *,
    environment: Mapping[str, str] | None = None,
) -> LaunchOptions:
    """Return the options of a launch with the choice of trials; print the trials' results.

    Args:
        command: TrialSetting → program and arguments of a trial.
        environment: Variables of trials, in addition to those of this process.

    Raises:
        RunError: The first trial fails, or there can be none here.
        Exit: It was interrupted.
    """
    from wattree.cli.output import terminal
    from wattree.errors import RunError
    from wattree.report.train_text import show_choice
    from wattree.runtime.launch import INTERRUPTED, Finished
    from wattree.runtime.launch.meeting import MISTAKE
    from wattree.runtime.tune import ramp
    from wattree.runtime.tune.measured import Trials

    trials = Trials(command, options, environment={**os.environ, **(environment or {})}, say=note)
    if trials.is_first:
        note("looking for the best number of processes per device by short trials")
    try:
        found = ramp(trials, trials.limits)
        trials.done()
    except KeyboardInterrupt:
        finish(Finished(code=INTERRUPTED, interrupted=True))
        raise
    finally:
        trials.close()
    if found.rows[0].fault:
        if not trials.is_first:
            finish(Finished(code=MISTAKE))
        raise RunError(
            "--processes-per-device auto",
            [f"the trial of one process failed: {found.rows[0].fault}"],
        )
    if trials.is_first:
        show_choice(found, terminal(stderr=True))  # standard output is that of the job
    chosen, given = found.chosen, options.launch
    if chosen.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    workers, share = chosen.loader_workers, chosen.thread_percentage
    return replace(
        given,
        processes=chosen.processes,
        loader_workers=given.loader_workers if workers is None else workers,
        thread_percentage=given.thread_percentage if share is None else share,
        with_mps=None if chosen.processes == 1 else given.with_mps,
    )
