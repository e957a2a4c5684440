"""The devices of this node: NVIDIA's accelerators by `nvidia-smi`, or shares of its processor.

References:
    NVIDIA, `nvidia-smi(1)`, sections "SELECTIVE QUERY OPTIONS" and "GPU Attributes".
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattree.errors import HardwareError
from wattree.hardware.mps import mps_clients
from wattree.runtime.colocation.cores import allowed_cores, cores_near, numa_of, read_text
from wattree.runtime.colocation.processes import output_of

_QUERY = (
    *("index", "uuid", "name", "pci.bus_id", "compute_cap", "compute_mode"),
    *("mig.mode.current", "memory.total", "memory.free"),
)
_TIMEOUT_S = 30.0
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevice:
    """A device of this node.

    Attributes:
        kind: `cuda` or `cpu`.
        uuid: What names it wherever it is numbered; of a processor empty.
        index: Number among the devices of the node.
        memory_bytes, free_bytes: Of it, in all and not in use; of a processor its share of the
            host's. [B]
        mode: Compute mode, as `nvidia-smi` writes it; `Default` elsewhere.
        capability: Compute capability; (0, 0) where there is none.
        is_divided: Whether it is divided into instances (MIG).
        cores: Processor cores near it that may be used, in order.
        numa: Its memory domain; None where that is not known.
    """

    kind: str
    uuid: str = ""
    name: str = ""
    index: int = 0
    memory_bytes: float = 0.0
    free_bytes: float = 0.0
    mode: str = "Default"
    capability: tuple[int, int] = (0, 0)
    is_divided: bool = False
    cores: tuple[int, ...] = ()
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Output of `nvidia-smi`.

    Attributes:
        devices: All accelerators of the node.
        cuda: Newest CUDA version that the driver knows; (0, 0) where it does not say.
        fault: Why there are none; empty where there are.
    """

    devices: tuple[NodeDevice, ...] = ()
    cuda: tuple[int, int] = (0, 0)
    fault: str = ""


def driver(environment: Mapping[str, str]) -> Driver:
    """Return the accelerators of this node, as the driver's own tool lists them.

    Args:
        environment: Of the tool; `PATH` says where it is.
    """
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if tool is None:
        return Driver(fault="there is no nvidia-smi: no driver of NVIDIA")
    query = [tool, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    listed, fault = output_of(query, environment, timeout_s=_TIMEOUT_S)
    allowed = allowed_cores()
    devices = tuple(
        _device([word.strip() for word in line.split(",")], allowed)
        for line in listed.splitlines()
        if line.count(",") == len(_QUERY) - 1
    )
    if fault or not devices:
        return Driver(fault=f"nvidia-smi lists none ({fault or listed.strip()[:200] or 'nothing'})")
    # "CUDA Version: 12.4" of its first lines; newer ones say whose version that is.
    version = re.search(
        r"CUDA (?:\w+ )?Version\s*:\s*([0-9]+)\.([0-9]+)",
        output_of([tool], environment, timeout_s=_TIMEOUT_S)[0],
    )
    cuda = (int(version[1]), int(version[2])) if version else (0, 0)
    return Driver(devices=devices, cuda=cuda)


def visible(
    devices: Sequence[NodeDevice], environment: Mapping[str, str]
) -> tuple[NodeDevice, ...]:
    """Return the devices selected by `CUDA_VISIBLE_DEVICES`, in its order.

    As CUDA reads it: numbers or beginnings of UUIDs, and nothing after the first one that is none.

    Raises:
        HardwareError: It names an instance of a divided device.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(devices)
    found: list[NodeDevice] = []
    for word in (part.strip() for part in text.split(",")):
        if word.startswith("MIG"):
            raise HardwareError(
                f"CUDA_VISIBLE_DEVICES: found {word}, an instance of a divided device; expected "
                "whole devices: processes of one job cannot share instances"
            )
        match = next((device for device in devices if _is_called(device, word)), None)
        if match is None:
            break
        if match not in found:
            found.append(match)
    return tuple(found)


def accelerators(environment: Mapping[str, str]) -> Driver:
    """Return the accelerators that this process may use, with the driver's notes on others."""
    every = driver(environment)
    left = visible(every.devices, environment)
    if every.devices and not left:
        text = environment.get("CUDA_VISIBLE_DEVICES", "")
        return Driver(cuda=every.cuda, fault=f"CUDA_VISIBLE_DEVICES={text!r} hides all of them")
    return Driver(devices=left, cuda=every.cuda, fault=every.fault)


def processors(count: int) -> tuple[NodeDevice, ...]:
    """Return the processor of this host as `count` equal devices."""
    memory, free = _host_memory()
    return tuple(
        NodeDevice(
            kind="cpu",
            name="CPU",
            index=index,
            memory_bytes=memory / count,
            free_bytes=free / count,
            cores=allowed_cores(),
        )
        for index in range(count)
    )


def clients_limit(device: NodeDevice, cuda: tuple[int, int]) -> int:
    """Return the maximum number of MPS clients of a device.

    Args:
        cuda: Version that the driver knows; (0, 0) counts as an old one.
    """
    former = "pascal" if device.capability < (7, 0) else "volta"
    return mps_clients(former if device.capability < (7, 5) else "", cuda)


def _device(words: Sequence[str], allowed: tuple[int, ...]) -> NodeDevice:
    index, uuid, name, bus, capability, mode, mig, total, free = words
    major, _, minor = capability.partition(".")
    return NodeDevice(
        kind="cuda",
        uuid=uuid,
        name=name,
        index=int(index),
        memory_bytes=_number(total) * _MIB,
        free_bytes=_number(free) * _MIB,
        mode=mode,
        capability=(int(_number(major)), int(_number(minor))),
        is_divided=mig == "Enabled",
        cores=cores_near(bus, allowed),
        numa=numa_of(bus),
    )


def _number(text: str) -> float:
    """Return a number; 0 for `[N/A]`, printed for values that a device does not have."""
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else 0.0


def _is_called(device: NodeDevice, word: str) -> bool:
    if word.isdigit():
        return device.index == int(word)
    return word.startswith("GPU-") and device.uuid.startswith(word)


def _host_memory() -> tuple[float, float]:
    """Return the total and the available memory of this host. [B]

    Less where a control group allows less.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    total = float(page * os.sysconf("SC_PHYS_PAGES"))
    found = re.search(r"MemAvailable:\s*([0-9]+) kB", read_text(Path("/proc/meminfo")))
    free = float(found[1]) * 1024 if found else total
    group = Path("/sys/fs/cgroup")
    limit, used = (
        read_text(group / "memory.max").strip(),
        read_text(group / "memory.current").strip(),
    )
    if limit.isdigit() and used.isdigit():
        total = min(total, float(limit))
        free = min(free, float(limit) - float(used))
    return total, max(free, 0.0)
