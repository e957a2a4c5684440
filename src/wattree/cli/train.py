"""`wattree train`: a job's strategy for real."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattree.cli.auto_train import best_processes, without
from wattree.cli.job_file import read_job
from wattree.cli.launch import (
    AUTO,
    MemoryLimit,
    Rule,
    ThreadPercentage,
    WithMps,
    WithoutMps,
    finish,
    mps_option,
    note,
    processes_option,
)
from wattree.cli.output import (
    Calibration,
    JobPath,
    JsonPath,
    check_outputs,
    check_trace_path,
    deliver,
    quantity_option,
    trace_option,
)
from wattree.cli.train_colocated import launch_processes, say_of_mps, share_asked
from wattree.cli.train_result import deliver_trained
from wattree.errors import MissingExtraError, OutputError, RunError

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.runtime.launch import Launch
    from wattree.runtime.recipe import Recipe
    from wattree.runtime.train import TrainSettings
    from wattree.runtime.train.outcome import Trained
    from wattree.runtime.train.rank import RankEnd

__all__ = ["train"]

INTERRUPTED = 130


class Device(StrEnum):
    """Where ranks compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def train(  # noqa: PLR0917 - typer passes options by name
    context: typer.Context,
    job: JobPath,
    json_path: JsonPath = None,
    trace_path: Annotated[Path | None, trace_option("the last steps of every rank")] = None,
    calibration: Calibration = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the run (run.json), the result (result.json) and the job (job.yaml).",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Simulate the same job and print predicted beside measured."
        ),
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Train with this preset in place of the job's, with its ranks and degrees.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PRESET",
            help="Train again with this preset and show both side by side; may be repeated.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where ranks compute; auto: on the kind of device the job names.")
    ] = Device.AUTO,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew where there is a checkpoint to go on from.")
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long ranks wait for each other before they give up."
        ),
    ] = "180 s",
    meter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Read this kind of meter alone; may be repeated.",
            show_default=False,
        ),
    ] = None,
    tdp: Annotated[
        str | None,
        typer.Option(
            metavar="POWER",
            help="Rated power of all processors, for the estimate where there is no meter.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            "--processes-per-device",
            "-q",
            metavar="Q",
            help="Replicas on each device, which share it; auto: as many as trials find best.",
            show_default="the job's strategy.processes_per_device",
        ),
    ] = None,
    batch_rule: Annotated[
        Rule | None,
        typer.Option(
            help="Whether the processes of a device divide its batch, or have one each and a "
            "learning rate scaled to it.",
            show_default="the job's strategy.batch_rule",
        ),
    ] = None,
    with_mps: WithMps = False,
    without_mps: WithoutMps = False,
    thread_percentage: ThreadPercentage = None,
    memory_limit: MemoryLimit = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    silent: Annotated[bool, typer.Option("--silent", hidden=True)] = False,
) -> None:
    """Train a job with its strategy, on this machine or in the ranks of a launcher.

    Under torchrun, srun or mpirun this is one rank of the job. Otherwise the ranks of the job are
    started here. Runs presets ddp, tensor, megatron and phantom, each also with dp. Exit code 130
    if it was interrupted, after a checkpoint was written. With several processes per device a
    launcher's rank starts those of its device, as wattree launch does.

    Example: wattree train examples/phantom-laptop.yaml --compare
    """
    check_outputs(json_path, trace_path, source=job)
    check_trace_path(trace_path)
    by_mps = mps_option(with_mps=with_mps, without_mps=without_mps)
    _need_torch()
    from wattree.runtime.colocation import colocation_from
    from wattree.runtime.colocation.training import colocated, planned
    from wattree.runtime.launch import Launch, launch_from
    from wattree.runtime.recipe import recipe_of, with_preset
    from wattree.runtime.train import TrainSettings
    from wattree.runtime.train.guard import guarded

    launch = launch_from(os.environ)
    inner = colocation_from(os.environ)
    is_first = launch is None or (launch.rank == 0 and not launch.store and inner is None)
    loaded = _read(job, warn=is_first)
    if silent:  # one of several runs: checkpoints would be of all of them
        loaded = replace(loaded, training=replace(loaded.training, checkpoint=None))
    if preset is not None:
        loaded = with_preset(loaded, preset)
    arguments = list(context.obj or sys.argv[1:])
    if processes == AUTO and inner is None:
        found = best_processes(
            job,
            loaded,
            arguments,
            None if batch_rule is None else batch_rule.value,
            device=device.value,
            with_mps=by_mps,
            thread_percentage=thread_percentage,
        )
        processes, thread_percentage = str(found.processes), found.thread_percentage
        by_mps = found.with_mps
        arguments = [*without(arguments, "--processes-per-device", "-q"), "-q", processes]
    share = share_asked(loaded, processes_option(processes), batch_rule)
    plan, (loaded, recipe) = loaded, colocated(loaded, recipe_of(loaded), *share)
    plan = planned(plan, recipe, share[1])
    loaded = replace(loaded, strategy=plan.strategy)
    _check_calibration(calibration, compare=compare, warn=is_first)
    timeout_s = quantity_option("--timeout", timeout, "s")
    assert timeout_s is not None
    settings = TrainSettings(
        out=None if out is None else out.absolute(),
        device=device.value,
        fresh=fresh,
        timeout_s=timeout_s,
        meters=tuple(meter or ()),
        tdp_w=quantity_option("--tdp", tdp, "w"),
        quiet=quiet,
    )
    if is_first:
        _make_folder(out)
        say_of_mps(recipe.processes_per_device, by_mps, thread_percentage, memory_limit)
    if against:
        _check_alone(launch, recipe, json_path, trace_path)
        rivals = {str(recipe.kind): preset} | {rival: rival for rival in against}
        for rival in against:
            recipe_of(with_preset(loaded, rival))  # refused before anything is trained
        _side_by_side(arguments, rivals, recipe.ranks)
        return
    if recipe.processes_per_device > 1 and inner is None:
        launch_processes(
            arguments,
            plan,
            recipe,
            share[1],
            device=device.value,
            launchers=1 if launch is None else launch.world,
            with_mps=by_mps,
            thread_percentage=thread_percentage,
            memory_limit=memory_limit,
            timeout_s=timeout_s,
        )
        return
    if launch is None and recipe.ranks > 1:
        _start_ranks(recipe.ranks, arguments)
        return
    launch = launch or Launch(rank=0, world=1, local_rank=0, local_world=1)
    _check_world(launch, recipe, loaded)
    end = guarded(
        launch,
        lambda: _run_rank(
            loaded,
            recipe,
            launch,
            settings,
            lambda found: deliver_trained(
                replace(found, job=plan),
                job,
                calibration,
                compare=compare,
                silent=silent,
                preset=preset,
                out=out,
                json_path=json_path,
                trace_path=trace_path,
            ),
        ),
    )
    if end.interrupted:
        raise typer.Exit(INTERRUPTED)


def _need_torch() -> None:
    """Refuse before anything is started where PyTorch is missing.

    Raises:
        MissingExtraError: It is.
    """
    if find_spec("torch") is None:
        raise MissingExtraError(needed_for="wattree train", package="torch", extra="torch")


def _read(path: Path, *, warn: bool) -> Job:
    """Return the job; ranks but the first do not repeat its warnings."""
    import wattree

    return read_job(path) if warn else wattree.load_job(path)


def _check_calibration(path: Path | None, *, compare: bool, warn: bool) -> None:
    """Refuse constants that cannot be read before anything is trained."""
    if path is None:
        return
    from wattree.cost import load_calibration

    load_calibration(path)
    if warn and not compare:
        typer.echo("wattree: warning: --calibration has no effect without --compare", err=True)


def _make_folder(out: Path | None) -> None:
    """Make the folder that results go to.

    Raises:
        OutputError: It cannot be made.
    """
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{out}: cannot be made ({error.strerror}); expected a folder for results"
        ) from error


def _start_ranks(ranks: int, arguments: Sequence[str]) -> None:
    """Run the job's ranks as processes of this machine, and tell what the first failed of.

    Raises:
        RunError: A rank failed of something that its user can mend.
        Exit: With the exit code of the ranks otherwise.
    """
    from wattree.runtime.launch import own_command, run_ranks

    finish(run_ranks(own_command(arguments), ranks, environment=os.environ, say=note))


def _check_alone(launch: Launch | None, recipe: Recipe, *outputs: Path | None) -> None:
    """Refuse `--against` where it cannot start the runs itself, or has one place for several.

    Raises:
        RunError: It cannot.
    """
    if launch is not None:
        raise RunError(
            "--against", [f"starts several runs itself; leave it out under {launch.launcher}"]
        )
    if recipe.processes_per_device > 1:
        raise RunError("--against", ["compares strategies with one process per device"])
    if any(output is not None for output in outputs):
        raise RunError("--against", ["shows several runs; --json and --trace are of one"])


def _side_by_side(arguments: list[str], rivals: Mapping[str, str | None], ranks: int) -> None:
    """Train with one preset after the other and show what came of each."""
    import json
    import tempfile

    from wattree.report.train_text import show_rivals

    plain = without(arguments, "--against", "--preset", "--out", "--compare")
    found = {}
    with tempfile.TemporaryDirectory(prefix="wattree-against-") as folder:
        for number, (name, rival) in enumerate(rivals.items()):
            typer.echo(f"wattree: training {name}", err=True)
            kept = Path(folder) / str(number)
            kept.mkdir()
            told = [*plain, "--out", str(kept), *(["--preset", rival] if rival else [])]
            _start_ranks(ranks, [*told, "--silent"])
            found[name] = json.loads((kept / "result.json").read_text(encoding="utf-8"))
    deliver(found, None, lambda console: show_rivals(found, console))


def _check_world(launch: Launch, recipe: Recipe, job: Job) -> None:
    """Refuse as many ranks as the job does not have.

    Raises:
        RunError: A launcher started more or fewer.
    """
    if launch.world == recipe.ranks:
        return
    raise RunError(
        job.source,
        [
            f"strategy: has {recipe.ranks} ranks (dp {recipe.dp} × tp {recipe.tp}), but "
            f"{launch.launcher} started {launch.world}; start {recipe.ranks}, change the degrees, "
            "or call wattree train without a launcher, which starts as many as there are"
        ],
    )


def _run_rank(
    job: Job,
    recipe: Recipe,
    launch: Launch,
    settings: TrainSettings,
    deliver_it: Callable[[Trained], None],
) -> RankEnd:
    from wattree.runtime.train.rank import train_rank

    end = train_rank(job, recipe, launch, settings)
    if end.trained is not None:
        deliver_it(end.trained)
    return end
