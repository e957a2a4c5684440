"""Files of a profile: the calibration, and the machine as a device and a node of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from wattree.cost import SHIPPED_BASE, Constant, constant_lines
from wattree.energy import core_w
from wattree.files import write_atomic
from wattree.kinds import schema_line
from wattree.measure.profile.families import Findings
from wattree.measure.profile.machine import Machine

#: CPUs fall to this share of their full power at rest: see `energy.loading`.
_REST_SHARE = 0.19
#: Bounds that files of hardware keep. [B/s]
_LEAST_LINK = 1e8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFiles:
    """Paths of the files of a named profile.

    Attributes:
        measurements: Every measurement, a line each.
        device: The device; of none that the catalog has.
        node: The machine, for `cluster.node` of a job.
    """

    calibration: Path
    measurements: Path
    device: Path
    node: Path


def files_of(out: Path) -> ProfileFiles:
    """Return the paths of the files next to `out`."""
    stem = out.name.removesuffix(".yaml").removesuffix(".yml")
    return ProfileFiles(
        calibration=out,
        measurements=out.with_name(f"{stem}.measurements.jsonl"),
        device=out.with_name(f"{stem}.device.yaml"),
        node=out.with_name(f"{stem}.node.yaml"),
    )


def write_profile(files: ProfileFiles, machine: Machine, findings: Findings) -> tuple[Path, ...]:
    """Write the files of a profile atomically, and return them.

    Raises:
        OutputError: A file cannot be written.
    """
    written = [files.calibration, files.node]
    write_atomic(files.calibration, _calibration(machine, findings))
    if not machine.in_catalog:
        write_atomic(files.device, _device(machine, findings))
        written.insert(1, files.device)
    write_atomic(files.node, _node(files, machine, findings))
    return tuple(written)


def full_names(machine: Machine, constants: Mapping[str, Constant]) -> dict[str, Constant]:
    """Return the constants by their names in a calibration."""
    whole = ("family.", "general.", "pooled.")
    return {
        (item if item.startswith(whole) else f"device.{machine.device}.{item}"): constant
        for item, constant in constants.items()
    }


def _calibration(machine: Machine, findings: Findings) -> str:
    lines = [
        schema_line("calibration"),
        f"# Constants of {machine.title}, measured by `wattree profile`.",
        "# They hold for this device and PyTorch; what is not here is as it ships.",
        f"base: {SHIPPED_BASE}",
        "",
        "profile:",
        f"  device: {machine.device}",
        f"  date: '{date.today().isoformat()}'",  # noqa: DTZ011 - of the user's calendar
        f"  software: {machine.software}",
        f"  sample_s: {findings.collate_s:.4g}  # of making a batch, without its bytes",
        "  held_out:  # mean absolute error on points that a fit never saw",
    ]
    lines += [
        f"    {fit.family}: {fit.error if fit.held_out is None else fit.held_out:.4f}"
        for fit in findings.fits
    ]
    lines += ["", *constant_lines(full_names(machine, findings.constants))]
    return "\n".join(lines) + "\n"


def _device(machine: Machine, findings: Findings) -> str:
    cores = machine.cores / machine.ranks
    rated_w = max(cores * core_w() / (1.0 - _REST_SHARE), 1.0)
    peaks = {name: max(rate, 1e9) for name, rate in findings.peak_flop_per_s.items()}
    fp32 = peaks.get("fp32", max(peaks.values()))
    share = "estimate: its share of the machine's cores at the median of known processors"
    rows = [
        schema_line("device"),
        f"name: {machine.device}",
        f'title: "{machine.title}"',
        f"vendor: {machine.vendor}",
        f"kind: {machine.kind}",
        f"architecture: {machine.architecture}",
        *_sources(machine),
        _row("memory", f"{machine.memory_bytes / 2**20:.0f} MiB", "system"),
        _row("memory_bandwidth", f"{findings.memory_bytes_per_s / 1e9:.4g} GB/s", "profile"),
        "matrix_peak: # best product that was timed",
        *(
            f"  {_row(name, f'{rate / 1e9:.5g} GFLOP/s', 'profile')}"
            for name, rate in peaks.items()
        ),
        _row("vector_peak", f"{fp32 / 1e9:.5g} GFLOP/s", "estimate: that of products"),
        _row("compute_units", machine.threads, "system"),
        _row("host_link", f"{_link(findings.copy_bytes_per_s)} GB/s", "profile"),
        _row("tdp", f"{rated_w:.4g} W", share),
        _row("idle", f"{_REST_SHARE * rated_w:.4g} W", share),
    ]
    return "\n".join(rows) + "\n"


def _node(files: ProfileFiles, machine: Machine, findings: Findings) -> str:
    bus, alpha = findings.bus_bytes_per_s, findings.alpha_s
    measured = "profile" if bus is not None else "estimate: one rank was measured; a copy in memory"
    port = findings.memory_bytes_per_s / 2 if bus is None else bus
    late_s = 1e-5 if alpha is None else alpha
    between = "estimate: as between processes of this machine; give your network's"
    device = machine.device if machine.in_catalog else f"./{files.device.name}"
    own = "estimate: counted with the processors" if machine.kind == "cpu" else "estimate: unknown"
    rows = [
        schema_line("node"),
        f"name: {machine.device}-node",
        f'title: "{machine.title}"',
        f"device: {device}",
        "fabric: datacenter-ethernet",
        *_sources(machine),
        _row("devices", machine.ranks, "system"),
        "scale_up: # between ranks of this machine",
        "  kind: switch",
        f"  {_row('bandwidth', f'{_link(port)} GB/s', measured)}",
        f"  {_row('latency', f'{late_s * 1e6:.4g} us', measured)}",
        f"  {_row('domain_devices', machine.ranks, 'system')}",
        f"  {_row('in_network_reduction', 'false', 'estimate: processes add for themselves')}",
        _row("nics", 1, between),
        _row("nic_bandwidth", f"{port * machine.ranks / 1e9:.4g} GB/s", between),
        _row("nic_latency", f"{late_s * 1e6:.4g} us", between),
        "host:",
        f"  {_row('cpu_cores', machine.cores, 'system')}",
        f"  {_row('memory', f'{machine.host_bytes / 2**20:.0f} MiB', 'system')}",
        "  " + _row("storage_read", "1 GB/s", "estimate: not measured; give your storage's"),
        f"  {_row('idle', '0 W', own)}",
        f"  {_row('busy', '0 W', own)}",
        "price: null",
    ]
    return "\n".join(rows) + "\n"


def _sources(machine: Machine) -> Iterable[str]:
    today = date.today().isoformat()  # noqa: DTZ011 - of the user's calendar
    return (
        "sources:",
        f'  profile: "measured by wattree profile, {today}, {machine.software}"',
        f'  system: "what the operating system says, {today}"',
    )


def _row(key: str, value: object, source: str) -> str:
    shown = value if isinstance(value, int) or value == "false" else f'"{value}"'
    cited = source if source in {"profile", "system"} else f'"{source}"'
    return f"{key}: {{value: {shown}, source: {cited}}}"


def _link(bytes_per_s: float) -> str:
    """Return a rate as GB/s, at least the minimum of hardware files; shares compensate for it."""
    return f"{max(bytes_per_s, _LEAST_LINK) / 1e9:.5g}"
