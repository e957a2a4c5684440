"""Options of `wattree launch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattree.errors import RunError
from wattree.runtime.colocation.environment import BATCH_RULES, REDUCTIONS
from wattree.runtime.launch.spawn import GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How processes are started.

    Attributes:
        processes: On each device, `q`.
        device: `cuda`, `cpu`, or `auto`: accelerators where there are some.
        devices: Of a launcher: how many of its accelerators to use, in how many the processor is
            divided; None: all, and one.
        reduce: One of `REDUCTIONS`.
        batch_rule: One of `BATCH_RULES`.
        with_mps: Whether processes share a device by MPS; None: where it is installed.
        thread_percentage: Most multiprocessors that a process may fill; None: all. [%]
        memory_limit_bytes: Most device memory of a process under MPS; None: no limit. [B]
        memory_per_process_bytes: What a process takes; None: nothing is known. [B]
        loader_workers: Of each device, divided among its processes; None: nothing is said.
        pins: Whether processes keep to cores near their device.
        patches: Whether an unmodified DDP script gains the reduction.
        logs: Folder for what each rank prints; None: they print where the launcher does.
        timeout_s: How long launchers wait for each other. [s]
        grace_s: How long processes have to end by themselves once they are asked to stop. [s]

    Raises:
        RunError: Numbers or names that cannot be; all of them.
    """

    processes: int = 1
    device: str = "auto"
    devices: int | None = None
    reduce: str = REDUCTIONS[0]
    batch_rule: str = BATCH_RULES[0]
    with_mps: bool | None = None
    thread_percentage: float | None = None
    memory_limit_bytes: float | None = None
    memory_per_process_bytes: float | None = None
    loader_workers: int | None = None
    pins: bool = True
    patches: bool = True
    logs: Path | None = None
    timeout_s: float = 180.0
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        problems = []
        if self.processes < 1:
            problems.append(f"--processes-per-device: found {self.processes}, expected 1 or more")
        if self.devices is not None and self.devices < 1:
            problems.append(f"--devices: found {self.devices}, expected 1 or more")
        if self.loader_workers is not None and self.loader_workers < 0:
            problems.append(f"--loader-workers: found {self.loader_workers}, expected 0 or more")
        share = self.thread_percentage
        if share is not None and not 0 < share <= 100:
            problems.append(f"--thread-percentage: found {share:g}, expected above 0, at most 100")
        for option, found, known in (
            ("--reduce", self.reduce, REDUCTIONS),
            ("--batch-rule", self.batch_rule, BATCH_RULES),
            ("--device", self.device, ("auto", "cpu", "cuda")),
        ):
            if found not in known:
                problems.append(f"{option}: found '{found}', expected one of {', '.join(known)}")
        if problems:
            raise RunError("options", problems)
