"""Trials of a command: launched as the job will be, ended after some steps, read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wattree.errors import MeterError, RunError, WattreeError
from wattree.measure import find_meters
from wattree.measure.window import Window, origin_of
from wattree.runtime.colocation.devices import NodeDevice, accelerators, clients_limit
from wattree.runtime.colocation.mps import control_program
from wattree.runtime.launch import INTERRUPTED, launch_from
from wattree.runtime.launch.node import equipment
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.launch.script import launch_script
from wattree.runtime.tune.ramp import RampLimits, TrialRow, TrialSetting
from wattree.runtime.tune.trial import TRIAL, Trial, TrialAccount, accounts
from wattree.temporary import temporary_folder
from wattree.trace import RunOrigin

_SOURCE = "--processes-per-device auto"
#: Time to end once asked to stop: what a trial did is thrown away. [s]
_GRACE_S = 2.0
_NO_REASON = "it failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """How trials run.

    Attributes:
        launch: As the job will be launched; its number of processes is set by each trial.
        seconds: That each is measured. [s]
        limit_s: After which it is given up. [s]
        samples: Setting → samples of an update over all processes; None: counted.
        switches: Whether a trial can switch batch and model.
    """

    launch: LaunchOptions
    seconds: float = 3.0
    limit_s: float = 120.0
    samples: Callable[[TrialSetting], float] | None = None
    switches: bool = True


class Trials:
    """Runs trials of a command on this host.

    Args:
        command: Setting → program and arguments.
        say: Takes lines for the user.

    Raises:
        RunError: It cannot be launched at all, or other launchers were started with this one.
    """

    def __init__(
        self,
        command: Callable[[TrialSetting], Sequence[str]],
        options: TrialOptions,
        *,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        outer = launch_from(environment)
        if outer is not None and outer.world > 1:
            raise RunError(
                _SOURCE,
                [
                    f"found {outer.world} ranks of {outer.launcher}, but trials are of one host; "
                    "run this command without it on one of the hosts, and give the number"
                ],
            )
        self._command, self._options, self._say = command, options, say
        self._environment = environment
        self._tools = equipment(replace(options.launch, processes=1), environment)

    @property
    def limits(self) -> RampLimits:
        """Return the limits of the search."""
        devices = self._tools.devices
        cores = set().union(*(device.cores for device in devices)) or {0}
        is_cuda = self._tools.kind == "cuda"
        cuda = accelerators(self._environment).cuda if is_cuda else (0, 0)
        clients = min(clients_limit(device, cuda) for device in devices) if is_cuda else len(cores)
        with_mps = self._options.launch.with_mps is not False
        return RampLimits(
            free_bytes=min(device.free_bytes for device in devices),
            clients=max(clients // (1 if is_cuda else len(devices)), 1),
            cores=max(len(cores) // len(devices), 1),
            shares_threads=is_cuda and with_mps and control_program(self._environment) is not None,
            switches=self._options.switches,
            sets_threads=not is_cuda
            and len(cores) > len(devices)
            and "OMP_NUM_THREADS" not in self._environment,
        )

    def __call__(self, setting: TrialSetting) -> TrialRow:
        """Run a trial and return its result.

        Raises:
            KeyboardInterrupt: The user ended it.
        """
        with temporary_folder("trial") as name:
            row = self._measured(setting, Path(name))
        outcome = f"cannot: {row.fault}" if row.fault else f"{row.rate:,.1f} samples/s"
        self._say(f"trial of {setting.words()}: {outcome}")
        return row

    def _measured(self, setting: TrialSetting, folder: Path) -> TrialRow:
        base = self._options.launch
        logs = folder / "logs"
        logs.mkdir()
        trial = Trial(
            folder=folder,
            seconds=self._options.seconds,
            limit_s=self._options.limit_s,
            batch_factor=setting.batch_factor,
            compiles=setting.compiles,
        )
        workers = setting.loader_workers
        options = replace(
            base,
            processes=setting.processes,
            loader_workers=base.loader_workers if workers is None else workers,
            thread_percentage=setting.thread_percentage or base.thread_percentage,
            with_mps=None if setting.processes == 1 else base.with_mps,
            memory_per_process_bytes=None,
            patches=True,
            logs=logs,
            grace_s=_GRACE_S,
        )
        environment = {**self._environment, TRIAL: trial.as_text()}
        if setting.threads is not None:
            environment["OMP_NUM_THREADS"] = str(setting.threads)
        quiet: list[str] = []
        before = self._tools.devices
        try:
            with _metered() as window:
                finished = launch_script(
                    self._command(setting), options, environment=environment, say=quiet.append
                )
        except WattreeError as error:
            return TrialRow(setting=setting, fault=_line(str(error)))
        if finished.code == INTERRUPTED:
            raise KeyboardInterrupt
        found = accounts(folder)
        if finished.failure is not None or finished.code:
            message = "" if finished.failure is None else finished.failure.message
            return TrialRow(setting=setting, fault=_why(logs, message))
        if fault := self._unusable(setting, found):
            return TrialRow(setting=setting, fault=fault)
        return self._row(setting, found, window, before)

    def _unusable(self, setting: TrialSetting, found: Sequence[TrialAccount]) -> str:
        """Return why accounts have no data on the setting; empty if they do."""
        if not found:
            return "it ended before any step was measured; expected a longer run"
        if setting.compiles and not found[0].wraps:
            return "DDP wraps no model here, so none was compiled"
        if self._options.samples is None and not found[0].wraps:
            return (
                "the script wraps no model in DistributedDataParallel: its processes would train "
                "copies that know nothing of each other"
            )
        return ""

    def _row(
        self,
        setting: TrialSetting,
        found: Sequence[TrialAccount],
        window: Window | None,
        before: Sequence[NodeDevice],
    ) -> TrialRow:
        # The ranks take the same steps; the slowest clock is that of all.
        step_s = max(account.seconds / account.steps for account in found)
        if self._options.samples is None:
            samples = sum(account.samples / account.steps for account in found)
        else:
            samples = self._options.samples(setting)
        energy = busy = None
        if window is not None:
            read = window.between(found[0].begin_s, found[0].end_s)
            if origin_of(read.meters) is RunOrigin.MEASURED:
                used_j = sum(reading.energy_j for reading in read.meters)
                energy = used_j / (samples * found[0].steps)
            busy = read.utilization.get("accelerator0")
        used = max(account.device_used_bytes for account in found)
        if used:
            taken = min(device.memory_bytes - device.free_bytes for device in before)
            memory = (used - taken) / setting.processes
        else:
            memory = max(account.memory_bytes for account in found)
        devices = max(len(found) // setting.processes, 1)
        return TrialRow(
            setting=setting,
            step_s=step_s,
            rate=samples / step_s,
            samples=samples,
            energy_j=energy,
            data_share=sum(account.data_s / account.seconds for account in found) / len(found),
            memory_bytes=memory,
            workers=sum(account.workers for account in found) // devices,
            busy=busy,
        )


@contextlib.contextmanager
def _metered() -> Iterator[Window | None]:
    """Read this machine's meters while the block runs; None where it has none."""
    try:
        found = find_meters()
    except MeterError:
        yield None
        return
    window = Window(found.meters, missing=found.missing)
    window.start()
    try:
        yield window
    finally:
        window.stop()


def _why(logs: Path, message: str) -> str:
    """Return the last line that failed processes wrote, else the launcher's message."""
    for path in sorted(logs.rglob("*")):
        if not path.is_file():
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "rror" in line and not line.startswith(" ")]
        if errors:
            return _line(errors[-1])
    return _line(message or _NO_REASON)


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
