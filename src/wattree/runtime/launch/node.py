"""The devices of a launcher on its node, and how processes share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattree.errors import RunError
from wattree.runtime.colocation.devices import Driver, NodeDevice, accelerators, processors
from wattree.runtime.colocation.mps import CONTROL, control_program
from wattree.runtime.colocation.refuse import check_devices, check_memory, check_processors
from wattree.runtime.launch.options import LaunchOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """Devices of a launcher, and how processes share them.

    Attributes:
        devices: In order.
        control: Program of the MPS daemon; None: processes share by time slices, or one has the
            device alone, or it is a processor.
        notes: Lines for the user: what was fallen back to, what has no effect.
    """

    devices: tuple[NodeDevice, ...]
    control: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`cuda` or `cpu`."""
        return self.devices[0].kind


def equipment(options: LaunchOptions, environment: Mapping[str, str]) -> Equipment:
    """Return the equipment of this node.

    Raises:
        RunError: Devices, MPS or memory that were asked for are not there, or do not fit.
    """
    notes: list[str] = []
    found = None if options.device == "cpu" else accelerators(environment)
    if found is not None and not found.devices and options.device == "cuda":
        raise RunError(
            "--device",
            [f"found no accelerator ({found.fault}); expected one; --device cpu uses processors"],
        )
    if found is None or not found.devices:
        devices = processors(options.devices or 1)
        check_processors(devices, options.processes)
        if options.with_mps:
            raise RunError("--with-mps", [_no_accelerator(found)])
        if found is not None:
            notes.append(f"no accelerator here ({found.fault}): processes share the processor")
        notes += _without_effect(options)
        control = None
    else:
        devices = _chosen(found.devices, options)
        control = _control(options, environment, notes)
        check_devices(devices, options.processes, cuda=found.cuda, with_mps=control is not None)
    if options.memory_per_process_bytes is not None:
        check_memory(devices, options.processes, options.memory_per_process_bytes)
    return Equipment(devices=devices, control=control, notes=tuple(notes))


def _chosen(devices: tuple[NodeDevice, ...], options: LaunchOptions) -> tuple[NodeDevice, ...]:
    wanted = options.devices
    if wanted is not None and wanted > len(devices):
        raise RunError(
            "--devices", [f"found {wanted}, but this host has {len(devices)} that may be used"]
        )
    return devices[:wanted]


def _control(
    options: LaunchOptions, environment: Mapping[str, str], notes: list[str]
) -> Path | None:
    """Return the program of MPS where processes are to share devices by it."""
    limits = options.thread_percentage is not None or options.memory_limit_bytes is not None
    if options.processes == 1:
        if options.with_mps or limits:
            notes.append("warning: options of MPS have no effect with one process per device")
        return None
    if options.with_mps is False:
        notes.append("without MPS: processes take turns on a device, their kernels never overlap")
        if limits:
            notes.append("warning: --thread-percentage and --memory-limit have no effect then")
        return None
    control = control_program(environment)
    missing = (
        f"{CONTROL} is not installed here; it comes with the driver (package nvidia-compute-utils "
        "or nvidia-cuda-mps of some distributions)"
    )
    if control is None and (options.with_mps or limits):
        raise RunError("--with-mps", [f"{missing}; --without-mps shares devices by time slices"])
    if control is None:
        notes.append(
            f"warning: {missing}: processes take turns on a device instead, their kernels never "
            "overlap; --without-mps accepts this, --with-mps refuses it"
        )
    return control


def _no_accelerator(found: Driver | None) -> str:
    """Return why MPS cannot share the devices, and the remedy."""
    if found is None:
        return (
            "found a processor (--device cpu, or the job's own device), but MPS shares "
            "accelerators; leave --with-mps out"
        )
    return (
        f"found no accelerator ({found.fault}), which MPS shares; leave --with-mps out to "
        "share the processor"
    )


def _without_effect(options: LaunchOptions) -> list[str]:
    """Return a warning for options that have no effect on a processor."""
    given = {
        "--thread-percentage": options.thread_percentage is not None,
        "--memory-limit": options.memory_limit_bytes is not None,
    }
    named = ", ".join(name for name, is_given in given.items() if is_given)
    return [f"warning: {named} has no effect on a processor"] if named else []
