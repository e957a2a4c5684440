"""`wattree replay`: a trace of the Chakra schema, by whomever, simulated."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattree.cli.output import (
    Calibration,
    JsonPath,
    announce_compilation,
    check_outputs,
    check_trace_path,
    deliver,
    trace_option,
)
from wattree.cli.simulate import Sharing
from wattree.errors import WattreeError

if TYPE_CHECKING:
    from wattree.interchange import Platform

__all__ = ["replay"]


class Compute(StrEnum):
    """Where the times of computations come from."""

    RECORDED = "recorded"
    ROOFLINE = "roofline"


def replay(  # noqa: PLR0917 - typer passes options by name
    traces: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of the files PREFIX.RANK.et; DIR/PREFIX if it holds several.",
            show_default=False,
        ),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NODE[:N]",
            help="Play it on N nodes of a kind; without it, with the times it was written with.",
            show_default=False,
        ),
    ] = None,
    compute: Annotated[
        Compute,
        typer.Option(help="Times of computations on the cluster, where both are known."),
    ] = Compute.RECORDED,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="Number format of matrix work, for the roofline.")
    ] = "bf16",
    software: Annotated[
        str, typer.Option(metavar="NAME", help="Software family whose calibration applies.")
    ] = "megatron-core",
    groups: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="File of process groups; comm_group.json in the folder if not given.",
            show_default=False,
        ),
    ] = None,
    dims: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Ranks along each network dimension, innermost first, for involved_dim.",
            show_default=False,
        ),
    ] = None,
    json_path: JsonPath = None,
    trace_path: Annotated[Path | None, trace_option("streams, flows, link load, power")] = None,
    calibration: Calibration = None,
    sharing: Annotated[
        Sharing, typer.Option(help="How transfers in flight share a link.")
    ] = Sharing.MAX_MIN,
) -> None:
    """Simulate Chakra traces, written by Wattree or by others.

    Exit code 2 if the files are no whole trace, or nodes wait for each other.

    Example: wattree replay traces --cluster dgx-h100:2 --trace timeline.json
    """
    from wattree import interchange

    check_outputs(json_path, trace_path, source=traces)
    check_trace_path(trace_path)
    platform = _platform(
        cluster, compute=compute, precision=precision, software=software, calibration=calibration
    )
    announce_compilation()
    done = interchange.replay(
        traces, platform=platform, groups=groups, dims=_dims(dims), sharing=sharing.value
    )
    if trace_path is not None:
        from wattree.report.perfetto import write_trace

        power = None if done.energy is None else {"cluster": done.energy.curve}
        write_trace(trace_path, done.trace, power=power)
    from wattree.report.interchange_text import show_replay

    deliver(done.as_json(), json_path, lambda console: show_replay(done, console))


def _platform(
    cluster: str | None,
    *,
    compute: Compute,
    precision: str,
    software: str,
    calibration: Path | None,
) -> Platform | None:
    """Return what the options name; None without a cluster.

    Raises:
        WattreeError: The number of nodes is none, or the roofline has no cluster.
    """
    if cluster is None:
        if compute is Compute.ROOFLINE:
            raise WattreeError("--compute roofline: needs a cluster to reckon for (--cluster NODE)")
        return None
    from wattree.hardware import Cluster, load_fabric, load_node, load_site
    from wattree.hardware.load import default_fabric_name
    from wattree.interchange import Platform

    name, colon, count = cluster.rpartition(":")
    if not colon:
        name, count = cluster, "1"
    if not count.isascii() or not count.isdigit() or not 0 < int(count) < 10**6:
        raise WattreeError(
            f"--cluster: found {count!r} nodes in '{cluster}', expected NODE or NODE:N, N from 1"
        )
    source = Path(name) if name.endswith((".yaml", ".yml")) else name
    return Platform(
        cluster=Cluster(
            node=load_node(source),
            nodes=int(count),
            fabric=load_fabric(default_fabric_name(source)),
            site=load_site("world-average"),
        ),
        software=software,
        precision=precision,
        roofline=compute is Compute.ROOFLINE,
        calibration=calibration,
    )


def _dims(text: str | None) -> tuple[int, ...]:
    """Return the numbers in a list such as `4,2`.

    Raises:
        WattreeError: It is no such list.
    """
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 10**6 for word in words):
        raise WattreeError(f"--dims: found '{text}', expected numbers from 1 such as 4,2")
    return tuple(map(int, words))
