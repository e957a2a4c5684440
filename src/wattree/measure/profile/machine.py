"""Describe this machine: processors, memory, accelerators, and load from other programs."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattree.errors import RunError, install_command
from wattree.units import counted

#: Precisions of GPUs by compute capability (CUDA C++ Programming Guide, "Arithmetic Instructions").
_GPU_PRECISIONS = ((8, ("bf16", "tf32", "fp16", "fp32")), (7, ("fp16", "fp32")), (0, ("fp32",)))

_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as it is measured: its number of ranks, each on a device.

    Attributes:
        title: Of the device, as the system names it.
        device: Name for constants: that of the catalog where it has one.
        in_catalog: Whether the catalog has it.
        kind: `cpu` or `gpu`.
        architecture: Family and model of the processor, or the compute capability.
        ranks: Processes at work at once, each a device of the node.
        threads: Of each for computing.
        cores: Processors that the process may use.
        memory_bytes: Of one rank's device. [B]
        host_bytes: Of the machine. [B]
        precisions: That products are measured at, the most usual one first.
        software: Version of the framework.
    """

    title: str
    device: str
    in_catalog: bool
    kind: str
    vendor: str
    architecture: str
    ranks: int
    threads: int
    cores: int
    memory_bytes: float
    host_bytes: float
    precisions: tuple[str, ...]
    software: str

    @property
    def accelerator(self) -> bool:
        """Whether devices are GPUs."""
        return self.kind == "gpu"

    @property
    def share(self) -> float:
        """Number of computing threads per core when all ranks compute."""
        return max(self.ranks * self.threads / self.cores, 1.0)

    def as_json(self) -> dict[str, Any]:
        """Return the machine in plain types."""
        return {**asdict(self), "precisions": list(self.precisions)}


def describe_machine(*, ranks: int | None, threads: int | None) -> Machine:
    """Return a description of this machine.

    Args:
        ranks: Processes at work at once; None for one on each GPU, or on each two cores at most.
        threads: Of each; None for the cores over the ranks, one at least.

    Raises:
        RunError: PyTorch is not installed, or there are fewer GPUs than ranks.
    """
    try:
        import torch
    except ImportError as error:
        raise RunError(
            "wattree profile",
            [f"needs PyTorch to run what it measures: {install_command('torch')}"],
        ) from error
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if torch.cuda.is_available():
        return _with_gpus(torch, ranks=ranks, threads=threads, cores=cores, host_bytes=host)
    ranks = ranks or min(cores, 2)
    threads = threads or max(cores // ranks, 1)
    info = _cpu_info()
    title = info.get("model name") or platform.processor() or platform.machine()
    bf16 = {"avx512_bf16", "amx_bf16", "bf16"} & set(info.get("flags", "").split())
    return Machine(
        title=f"{title}, {counted(threads, 'thread')} a rank, "
        f"{counted(ranks, 'rank')} on {counted(cores, 'core')}",
        device=f"{_slug(title)}-{ranks}x{threads}-on-{cores}",
        in_catalog=False,
        kind="cpu",
        vendor=_VENDORS.get(info.get("vendor_id", ""), _slug(platform.machine())),
        architecture=f"{_slug(platform.machine())}-{info.get('cpu family', '0')}"
        f"-{info.get('model', '0')}",
        ranks=ranks,
        threads=threads,
        cores=cores,
        memory_bytes=host / ranks,
        host_bytes=host,
        precisions=("fp32", "bf16") if bf16 else ("fp32",),
        software=f"PyTorch {torch.__version__}",
    )


def _with_gpus(
    torch: Any, *, ranks: int | None, threads: int | None, cores: int, host_bytes: float
) -> Machine:
    count = torch.cuda.device_count()
    if ranks is not None and ranks > count:
        raise RunError("--ranks", [f"found {ranks}, expected at most {count}: a GPU for each rank"])
    ranks = ranks or count
    properties = torch.cuda.get_device_properties(0)
    name = _catalog_name(properties.name)
    major = properties.major
    precisions = next(found for least, found in _GPU_PRECISIONS if major >= least)
    return Machine(
        title=properties.name,
        device=name or _slug(properties.name),
        in_catalog=name is not None,
        kind="gpu",
        vendor="amd" if torch.version.hip else "nvidia",
        architecture=f"sm-{major}{properties.minor}",
        ranks=ranks,
        threads=threads or max(cores // ranks, 1),
        cores=cores,
        memory_bytes=float(properties.total_memory),
        host_bytes=host_bytes,
        precisions=precisions,
        software=f"PyTorch {torch.__version__}",
    )


def _catalog_name(title: str) -> str | None:
    from wattree.errors import UnknownNameError
    from wattree.hardware.names import canonical_name

    try:
        return canonical_name("device", title)
    except UnknownNameError:
        return None


def _cpu_info() -> Mapping[str, str]:
    """Return the first processor's lines of `/proc/cpuinfo`; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    lines = text.partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def machine_busy_s() -> float | None:
    """Return the processor time of all programs since boot. [s]"""
    try:
        text = Path("/proc/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    ticks = [int(word) for word in text.splitlines()[0].split()[1:]]
    idle = ticks[3] + ticks[4]  # waiting for storage is no work
    return (sum(ticks[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def busy_cores(seconds: float = 0.5) -> float:
    """Return how many cores other programs currently use."""
    before = machine_busy_s()
    if before is None:
        return 0.0
    began = time.perf_counter()
    time.sleep(seconds)
    after = machine_busy_s()
    assert after is not None
    return max(after - before, 0.0) / (time.perf_counter() - began)


def _slug(text: str) -> str:
    plain = re.sub(r"\((r|tm)\)|cpu|processor|@.*", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:40] or "cpu"
