"""`wattree replay`: simulation of a Chakra trace from any tool."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from wattree.cli.output import (
    Calibration,
    JsonPath,
    MutualSlowdown,
    Sharing,
    SharingOption,
    announce_waits,
    check_is_file,
    check_outputs,
    counts_option,
    deliver,
    trace_option,
)
from wattree.cli.request import argument, asked, choice, request_command
from wattree.errors import HardwareError, JobError, UnknownNameError, WattreeError
from wattree.units import whole_number

if TYPE_CHECKING:
    from wattree.hardware import Cluster
    from wattree.interchange import Platform


_PRECISION, _SOFTWARE = "bf16", "megatron-core"


class Compute(StrEnum):
    """Where the times of computations come from."""

    RECORDED = "recorded"
    ROOFLINE = "roofline"


def platform_of(
    cluster: str | None,
    *,
    compute: Compute,
    precision: str,
    software: str,
    calibration: Path | None,
) -> Platform | None:
    """Return the platform of the options; None without a cluster.

    Raises:
        WattreeError: The number of nodes is none, the software is unknown, or what needs a cluster
            has none.
    """
    if cluster is None:
        if compute is Compute.ROOFLINE:
            raise WattreeError("--compute roofline: needs a cluster (--cluster NODE)")
        for name, given, usual in (
            ("precision", precision, _PRECISION),
            ("software", software, _SOFTWARE),
        ):
            if given != usual:
                raise WattreeError(f"--{name} {given}: needs a cluster (--cluster NODE)")
        return None
    from wattree.cost.other_software import family_named
    from wattree.interchange import Platform

    return Platform(
        cluster=_cluster(cluster),
        software=family_named(software, where="--software"),
        precision=precision,
        roofline=compute is Compute.ROOFLINE,
        calibration=calibration,
    )


def _cluster(text: str) -> Cluster:
    """Return the nodes in a text such as `dgx-h100:2`, on their own fabric.

    Raises:
        WattreeError: It names no node, no number of them, or nodes that cannot be joined.
    """
    from wattree.hardware import Cluster, load_fabric, load_node, load_site
    from wattree.hardware.load import default_fabric_name

    name, colon, count = text.rpartition(":")
    if not colon:
        name, count = text, "1"
    nodes = whole_number(count, digits=6)
    if not nodes:
        raise WattreeError(
            f"--cluster: found {count!r:.40} nodes in '{text:.80}', "
            "expected NODE or NODE:N, N from 1"
        )
    source = Path(name) if name.endswith((".yaml", ".yml")) else name
    try:
        node = load_node(source)
        return Cluster(
            node=node,
            nodes=nodes,
            fabric=load_fabric(default_fabric_name(source)),
            site=load_site("world-average", nodes=[node]),
        )
    except HardwareError as error:
        raise JobError("--cluster", list(error.misfits.values()) or list(error.lines)) from error
    except UnknownNameError as error:
        raise WattreeError(f"--cluster: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """Arguments and options of `wattree replay`."""

    traces: Path = argument(
        "DIR", "Folder of the files PREFIX.RANK.et; DIR/PREFIX if it holds several."
    )
    cluster: str | None = asked(
        "NODE[:N]", "Simulate the trace on N such nodes; by default, its own times are used."
    )
    compute: Compute = choice(
        "Times of computations on the cluster, where both are known.", value=Compute.RECORDED
    )
    precision: str = asked(
        "NAME", "Number format of matrix work, for the roofline.", value=_PRECISION, shown=True
    )
    software: str = asked(
        "NAME", "Software family whose calibration applies.", value=_SOFTWARE, shown=True
    )
    groups: Path | None = asked(
        "PATH", "File of process groups; comm_group.json in the folder if not given."
    )
    dims: str | None = asked(
        "A,B,…", "Ranks along each network dimension, innermost first, for involved_dim."
    )
    json_path: JsonPath = None
    trace_path: Path | None = trace_option("streams, flows, link load, power")
    calibration: Calibration = None
    sharing: SharingOption = Sharing.MAX_MIN
    mutual_slowdown: MutualSlowdown = True


@request_command
def replay(request: ReplayRequest) -> None:
    """Simulate Chakra traces, written by Wattree or by others.

    Exit code 2 if the trace is incomplete or contains a cycle.

    Example: wattree replay traces --cluster dgx-h100:2 --trace timeline.json
    """
    from wattree import interchange

    check_outputs(request.json_path, request.trace_path, source=request.traces)
    check_is_file("--trace", request.trace_path)
    platform = platform_of(
        request.cluster,
        compute=request.compute,
        precision=request.precision,
        software=request.software,
        calibration=request.calibration,
    )
    announce_waits()
    done = interchange.replay(
        request.traces,
        platform=platform,
        groups=request.groups,
        dims=() if request.dims is None else counts_option("--dims", request.dims, "4,2"),
        sharing=request.sharing.value,
        mutual_slowdown=request.mutual_slowdown,
    )
    if request.trace_path is not None:
        from wattree.report.perfetto import write_trace

        power = None if done.energy is None else {"cluster": done.energy.curve}
        write_trace(request.trace_path, done.trace, power=power)
    from wattree.report.interchange_text import show_replay

    deliver(done.as_json, request.json_path, lambda console: show_replay(done, console))
