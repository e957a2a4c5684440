"""Trials of a command: launched as the job will be, ended after some steps, read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from wattree.errors import MeterError, RunError, WattreeError
from wattree.measure import find_meters
from wattree.measure.window import Window, origin_of
from wattree.runtime.colocation.devices import NodeDevice, accelerators, clients_limit
from wattree.runtime.colocation.mps import control_program
from wattree.runtime.launch import INTERRUPTED, launch_from
from wattree.runtime.launch.agree import exchanged
from wattree.runtime.launch.meeting import meet
from wattree.runtime.launch.node import equipment
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.launch.script import ALONE, launch_script
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPart:
    """The result of one launcher's trial.

    Attributes:
        fault: Why it found nothing; empty where it did.
        interrupted: Whether its user ended it.
        accounts: Of its processes, by rank.
        energy_j: That its host used meanwhile; 0 of all but one launcher of a host, None where no
            meter read it. [J]
        busy: Share of the time in which its first accelerator had any kernel; None without one.
        memory_bytes: Of the fullest device that one process takes. [B]
    """

    fault: str = ""
    interrupted: bool = False
    accounts: tuple[TrialAccount, ...] = ()
    energy_j: float | None = None
    busy: float | None = None
    memory_bytes: float = 0.0


class Trials:
    """Runs trials of a command: on this host, or with the other launchers of a job.

    Launchers tell each other what they found of each trial, so that all draw the same conclusions.

    Args:
        command: Setting → program and arguments.
        say: Takes lines for the user, on the first launcher.

    Raises:
        RunError: It cannot be launched at all, or not all launchers came.
    """

    def __init__(
        self,
        command: Callable[[TrialSetting], Sequence[str]],
        options: TrialOptions,
        *,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._outer = launch_from(environment) or ALONE
        if self._outer.world > 1 and options.launch.reduce == "mpi":
            raise RunError(
                _SOURCE,
                [
                    f"found --reduce mpi under {self._outer.world} ranks of "
                    f"{self._outer.launcher}, which starts every process itself; give their number"
                ],
            )
        self._command, self._options = command, options
        self._environment = environment
        self._tools = equipment(replace(options.launch, processes=1), environment)
        self._meeting = meet(
            self._outer, environment, purpose="trials", timeout_s=options.launch.timeout_s
        )
        self._say = say if self.is_first else _silent

    @property
    def is_first(self) -> bool:
        """Return whether this launcher reports to the user."""
        return self._meeting.number == 0

    def done(self) -> None:
        """Wait until the other launchers are done, too: none is taken for one that was killed."""
        self._meeting.done()

    def close(self) -> None:
        """Leave the other launchers."""
        self._meeting.close()

    @property
    def limits(self) -> RampLimits:
        """Return the limits of the search on all hosts."""
        return least_limits(exchanged(self._meeting, self._limits()))

    def _limits(self) -> RampLimits:
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
            mine = self._measured(setting, Path(name))
            parts = exchanged(self._meeting, mine)
        if any(part.interrupted for part in parts):
            raise KeyboardInterrupt
        row = self._row(setting, parts)
        outcome = f"cannot: {row.fault}" if row.fault else f"{row.rate:,.1f} samples/s"
        self._say(f"trial of {setting.words()}: {outcome}")
        return row

    def _measured(self, setting: TrialSetting, folder: Path) -> TrialPart:
        base = self._options.launch
        logs = folder / "logs"
        logs.mkdir()
        trial = Trial(
            folder=folder,
            seconds=self._options.seconds,
            limit_s=self._options.limit_s,
            batch_factor=setting.batch_factor,
            compiles=setting.compiles,
            has_others=self._outer.world > 1,
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
            return TrialPart(fault=_line(str(error)))
        if finished.code == INTERRUPTED:
            return TrialPart(interrupted=True)
        found = accounts(folder)
        if finished.failure is not None or finished.code:
            message = "" if finished.failure is None else finished.failure.message
            return TrialPart(fault=_why(logs, message))
        if fault := self._unusable(setting, found):
            return TrialPart(fault=fault)
        return self._part(setting, found, window, before)

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

    def _part(
        self,
        setting: TrialSetting,
        found: tuple[TrialAccount, ...],
        window: Window | None,
        before: Sequence[NodeDevice],
    ) -> TrialPart:
        energy = busy = None
        if window is not None:
            read = window.between(found[0].begin_s, found[0].end_s)
            if origin_of(read.meters) is RunOrigin.MEASURED:
                energy = sum(reading.energy_j for reading in read.meters)
            busy = read.utilization.get("accelerator0")
        used = max(account.device_used_bytes for account in found)
        if used:
            taken = min(device.memory_bytes - device.free_bytes for device in before)
            memory = (used - taken) / setting.processes
        else:
            memory = max(account.memory_bytes for account in found)
        # One launcher of a host speaks for its meters.
        energy = 0.0 if self._outer.local_rank else energy
        return TrialPart(accounts=found, energy_j=energy, busy=busy, memory_bytes=memory)

    def _row(self, setting: TrialSetting, parts: Sequence[TrialPart]) -> TrialRow:
        if faults := [part.fault for part in parts if part.fault]:
            # Where others were ended with it, the one that failed knows why.
            return TrialRow(setting=setting, fault=min(faults, key=lambda why: why == _NO_REASON))
        found = [account for part in parts for account in part.accounts]
        # The ranks take the same steps; the slowest clock is that of all.
        step_s = max(account.seconds / account.steps for account in found)
        if self._options.samples is None:
            samples = sum(account.samples / account.steps for account in found)
        else:
            samples = self._options.samples(setting)
        read = [part.energy_j for part in parts if part.energy_j is not None]
        energy = sum(read) / (samples * found[0].steps) if len(read) == len(parts) else None
        devices = max(len(found) // setting.processes, 1)
        return TrialRow(
            setting=setting,
            step_s=step_s,
            rate=samples / step_s,
            samples=samples,
            energy_j=energy,
            data_share=sum(account.data_s / account.seconds for account in found) / len(found),
            memory_bytes=max(part.memory_bytes for part in parts),
            workers=sum(account.workers for account in found) // devices,
            busy=parts[0].busy,
        )


def least_limits(limits: Sequence[RampLimits]) -> RampLimits:
    """Return the limits common to all hosts."""
    names = [each.name for each in fields(RampLimits)]
    return RampLimits(**{name: min(getattr(each, name) for each in limits) for name in names})


def _silent(line: str) -> None:
    del line


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
