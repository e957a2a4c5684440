"""The output folder of `wattree train`: a measured run and its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from wattree.errors import JobError, RunError
from wattree.files import read_yaml
from wattree.job import Job, job_from_mapping
from wattree.strategy import Strategy, StrategyOptions
from wattree.trace.run import Activity, Run, RunOrigin
from wattree.trace.run_file import read_run

#: What `wattree train` leaves in the folder of a run.
RUN_FILE, JOB_FILE = "run.json", "job.yaml"
#: Stages in the order in which they are reported.
RUN_STAGES = ("computing", "communicating", "materials")


class TrainedRun:
    """A measured run and its job.

    Args:
        folder: With `run.json` and `job.yaml`.

    Attributes:
        folder: Of the run.
        run, job: What was measured, and what was run.
        strategy: The job's.
        step_s: Time of a step. [s]
        stages_s: Stage → how long a step waited for it. [s]

    Raises:
        RunError: It is no measured run of training.
        JobError: The job cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run: Run = read_run(folder / RUN_FILE)
        self.job: Job = _job_of(folder)
        problems = []
        if self.run.origin is RunOrigin.SIMULATED:
            problems.append("origin: found 'simulated', expected a run that was measured")
        if self.run.activity is not Activity.TRAINING:
            problems.append(f"activity: found '{self.run.activity}', expected 'training'")
        if self.run.iterations < 1:
            problems.append("iterations: found 0, expected the steps that the run made")
        if not self.run.stages:
            problems.append("stages: none are there, expected computing and communicating")
        if isinstance(self.job.strategy, str):
            problems.append(f"strategy: of {JOB_FILE} is 'auto', expected what was run")
        if problems:
            raise RunError(str(folder / RUN_FILE), problems)
        assert not isinstance(self.job.strategy, str)
        self.strategy: Strategy | StrategyOptions = self.job.strategy
        self.step_s = self.run.wall_s / self.run.iterations
        self.stages_s: Mapping[str, float] = {
            name: self.run.stages[name].exposed_s / self.run.iterations
            for name in RUN_STAGES
            if name in self.run.stages
        }

    @property
    def device(self) -> str:
        """The kind of device that the job names."""
        return self.job.cluster.pool.node.device.name


def _job_of(folder: Path) -> Job:
    """Return the job in a run's folder.

    It was written somewhere else: paths in it are looked for from the run's folder, then from
    where the command is called and from the folder around the run's.
    """
    source = folder / JOB_FILE
    mapping, refused = read_yaml(source), None
    for start in (folder, Path.cwd(), folder.absolute().parent):
        try:
            return job_from_mapping(mapping, str(source), folder=start)
        except JobError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def refuse_mixed(cases: Sequence[TrainedRun]) -> None:
    """Raise an error for runs on several kinds of devices.

    Raises:
        RunError: A calibration is of one.
    """
    devices = list(dict.fromkeys(case.device for case in cases))
    if len(devices) > 1:
        raise RunError(
            "--from-run",
            [f"runs are of {', '.join(devices)}; a calibration is of one: refit each by itself"],
        )
