"""Arguments and options of `wattree train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wattree.cli.launch import (
    BatchRule,
    LaunchDevice,
    MemoryLimit,
    ThreadPercentage,
    WithMps,
    WithoutMps,
    mps_option,
)
from wattree.cli.output import (
    Calibration,
    JobFile,
    JsonPath,
    check_is_file,
    check_outputs,
    quantity_option,
    trace_option,
)
from wattree.cli.request import asked, choice, switch

if TYPE_CHECKING:
    from wattree.runtime.train import TrainSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """Arguments and options of `wattree train`."""

    context: typer.Context
    job: JobFile
    json_path: JsonPath = None
    trace_path: Path | None = trace_option("the last steps of every rank")
    calibration: Calibration = None
    out: Path | None = asked(
        "DIR", "Folder for the run (run.json), the result (result.json) and the job (job.yaml)."
    )
    compare: bool = switch(
        "--compare", "Simulate the same job and print predicted next to measured."
    )
    preset: str | None = asked(
        "NAME", "Train with this preset instead of the job's, on as many ranks."
    )
    against: list[str] | None = asked(
        "PRESET", "Train again with this preset and show both side by side; may be repeated."
    )
    device: LaunchDevice = choice(
        "Where ranks compute; auto: on the kind of device the job names.", value=LaunchDevice.AUTO
    )
    fresh: bool = switch("--fresh", "Start over even if there is a checkpoint.")
    timeout: str = asked(
        "TIME", "How long ranks wait for each other before they give up.", value="180 s", shown=True
    )
    meter: list[str] | None = asked("NAME", "Read this kind of meter alone; may be repeated.")
    tdp: str | None = asked(
        "POWER", "Rated power of all processors, for the estimate where there is no meter."
    )
    processes: str | None = asked(
        "Q",
        "Processes on each device, each with a replica; auto: as many as trials find best.",
        "--processes-per-device",
        "-q",
        shown="the job's strategy.processes_per_device",
    )
    batch_rule: BatchRule | None = choice(
        "Whether the processes of a device divide its batch, or have one each and a "
        "learning rate scaled to it.",
        value=None,
        shown="the job's strategy.batch_rule",
    )
    with_mps: WithMps = False
    without_mps: WithoutMps = False
    thread_percentage: ThreadPercentage = None
    memory_limit: MemoryLimit = None
    quiet: bool = switch("--quiet", "Show no progress.")
    silent: bool = switch("--silent", "Print nothing.", hidden=True)

    def __post_init__(self) -> None:
        check_outputs(self.json_path, self.trace_path, source=self.job)
        check_is_file("--trace", self.trace_path)
        mps_option(with_mps=self.with_mps, without_mps=self.without_mps)

    @property
    def by_mps(self) -> bool | None:
        """Return whether devices are shared by MPS; None where nothing was set."""
        return mps_option(with_mps=self.with_mps, without_mps=self.without_mps)

    @property
    def rule(self) -> str | None:
        """Return the batch rule; None if not set."""
        return None if self.batch_rule is None else self.batch_rule.value

    def settings(self) -> TrainSettings:
        """Return the settings that the ranks receive.

        Raises:
            UnitError: A quantity is none.
        """
        from wattree.runtime.train import TrainSettings

        timeout_s = quantity_option("--timeout", self.timeout, "s")
        assert timeout_s is not None
        return TrainSettings(
            out=None if self.out is None else self.out.absolute(),
            device=self.device.value,
            fresh=self.fresh,
            timeout_s=timeout_s,
            meters=tuple(self.meter or ()),
            tdp_w=quantity_option("--tdp", self.tdp, "w"),
            quiet=self.quiet,
        )
