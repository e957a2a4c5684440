"""`wattree train`: a job's strategy for real."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from wattree.cli.auto_train import tuned_request, without
from wattree.cli.job_file import PIPED, print_warnings, read_job
from wattree.cli.launch import AUTO, finish, note, processes_option
from wattree.cli.output import deliver, tell
from wattree.cli.request import request_command
from wattree.cli.train_colocated import launch_processes, say_of_mps, share_asked
from wattree.cli.train_request import TrainRequest
from wattree.errors import JobError, OutputError, RunError, WattreeError, check_packages
from wattree.json_text import parsed_object

if TYPE_CHECKING:
    from wattree.job import Job
    from wattree.runtime.launch import Launch
    from wattree.runtime.recipe import Recipe
    from wattree.runtime.train import TrainSettings
    from wattree.runtime.train.compare import PredictionComparison
    from wattree.runtime.train.outcome import Trained

DONE, INTERRUPTED = 0, 130


@request_command
def train(request: TrainRequest) -> None:
    """Train a job with its strategy, or run its forward passes alone.

    Under torchrun, srun or mpirun this process is one rank of the job; otherwise it starts all
    ranks. Runs what wattree plan finds for PyTorch: dp, fsdp, tp, cp and pp with any sharding. With
    several processes per device, a launcher's rank starts those of its device, as wattree launch
    does. Exit code 130 if it was interrupted, after a checkpoint was written.

    Example: wattree train examples/phantom-laptop.yaml --compare
    """
    check_packages("torch", needed_for="wattree train", extra="torch")
    if request.quiet:  # before PyTorch is loaded, here and in the ranks
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from wattree.runtime.colocation import colocation_from
    from wattree.runtime.colocation.training import colocated, planned
    from wattree.runtime.launch import launch_from
    from wattree.runtime.recipe import recipe_of

    launch, inner = launch_from(os.environ), colocation_from(os.environ)
    is_first = launch is None or (launch.rank == 0 and not launch.store and inner is None)
    arguments = list(request.context.obj or sys.argv[1:])
    loaded = _job(request, warn=is_first)
    if request.processes == AUTO and inner is None:
        request = tuned_request(request, loaded, arguments)
        assert request.processes is not None
        arguments = without(arguments, "--processes-per-device", "-q")
        arguments += ["-q", request.processes]
    processes, rule = share_asked(loaded, processes_option(request.processes), request.rule)
    trained, recipe = colocated(loaded, recipe_of(loaded), processes, rule)
    plan = planned(loaded, recipe, rule)
    trained = replace(trained, strategy=plan.strategy)
    _check_calibration(request, warn=is_first)
    settings = request.settings()
    if request.against:
        _check_alone(request, launch, recipe)
    if is_first:
        _make_folder(request.out)
        given = (request.by_mps, request.thread_percentage, request.memory_limit)
        say_of_mps(recipe.processes_per_device, *given)
    if request.against:
        _side_by_side(arguments, _rivals(request, trained, recipe), recipe.options.ranks)
    elif recipe.processes_per_device > 1 and inner is None:
        launchers = 1 if launch is None else launch.world
        launch_processes(request, arguments, plan, recipe, rule=rule, launchers=launchers)
    elif launch is None and recipe.options.ranks > 1:
        _start_ranks(recipe.options.ranks, arguments)
    else:
        _train_here(request, trained, plan, recipe, launch, settings=settings)


def _job(request: TrainRequest, *, warn: bool) -> Job:
    """Return the job as options change it; ranks but the first do not repeat its warnings.

    Raises:
        JobError: It is no file, or describes no possible job.
    """
    import wattree
    from wattree.job.workload import refuse_workload
    from wattree.predict.left_open import with_left_open
    from wattree.runtime.recipe import with_preset, with_run_precision

    if request.job == PIPED:
        raise JobError("JOB", ["found '-', expected a file: every rank reads it"])
    loaded = read_job(request.job) if warn else wattree.load_job(request.job)
    refuse_workload(loaded, "train", forward=True)
    loaded, words = with_run_precision(loaded)
    if words and warn and not request.silent:
        note(words)
    if request.silent:  # one of several runs: checkpoints would be of all of them
        loaded = replace(loaded, training=replace(loaded.training, checkpoint=None))
    return with_left_open(loaded) if request.preset is None else with_preset(loaded, request.preset)


def _check_calibration(request: TrainRequest, *, warn: bool) -> None:
    """Refuse constants that cannot be read before anything is trained."""
    if request.calibration is None:
        return
    from wattree.cost import load_calibration

    load_calibration(request.calibration)
    if warn and not request.compare:
        tell("wattree: warning: --calibration has no effect without --compare")


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
    """Run the job's ranks as processes of this machine, and report the first failure.

    Raises:
        RunError: A rank failed of something that its user can mend.
        Exit: With the exit code of the ranks otherwise.
    """
    from wattree.runtime.launch import own_command, run_ranks

    finish(run_ranks(own_command(arguments), ranks, environment=os.environ, say=note))


def _check_alone(request: TrainRequest, launch: Launch | None, recipe: Recipe) -> None:
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
    places = (request.out, request.json_path, request.trace_path)
    if request.compare or any(place is not None for place in places):
        raise RunError(
            "--against", ["shows several runs; --out, --json, --trace and --compare are of one"]
        )


def _rivals(request: TrainRequest, job: Job, recipe: Recipe) -> dict[str, str | None]:
    """Return the preset of each run by its name; None for that of the job.

    Raises:
        WattreeError: One of them cannot be trained; nothing has been yet.
    """
    from wattree.runtime.recipe import recipe_of, with_preset

    rivals = {str(recipe.kind): request.preset} | {each: each for each in request.against or ()}
    for rival in request.against or ():
        recipe_of(with_preset(job, rival))
    return rivals


def _side_by_side(arguments: list[str], rivals: Mapping[str, str | None], ranks: int) -> None:
    """Train with one preset after the other and show what came of each."""
    from wattree.report.train_text import show_rivals
    from wattree.temporary import temporary_folder

    plain = without(arguments, "--against", "--preset", "--out")
    found = {}
    with temporary_folder("against") as folder:
        for number, (name, rival) in enumerate(rivals.items()):
            tell(f"wattree: training {name}")
            folder_of_trial = Path(folder) / str(number)
            folder_of_trial.mkdir()
            command_line = [
                *plain,
                "--out",
                str(folder_of_trial),
                *(["--preset", rival] if rival else []),
            ]
            _start_ranks(ranks, [*command_line, "--silent"])
            found[name] = parsed_object((folder_of_trial / "result.json").read_bytes())
    deliver(lambda: found, None, lambda console: show_rivals(found, console))


def _check_world(launch: Launch, recipe: Recipe, job: Job) -> None:
    """Refuse as many ranks as the job does not have.

    Raises:
        RunError: A launcher started more or fewer.
    """
    ranks = recipe.options.ranks
    if launch.world == ranks:
        return
    wide = {axis: degree for axis, degree in recipe.options.degrees.items() if degree > 1}
    degrees = " × ".join(f"{axis} {degree}" for axis, degree in wide.items()) or "dp 1"
    raise RunError(
        job.source,
        [
            f"strategy: has {ranks} ranks ({degrees}), but {launch.launcher} started "
            f"{launch.world}; start {ranks}, change the degrees, "
            "or call wattree train without a launcher, which starts as many as there are"
        ],
    )


def _train_here(
    request: TrainRequest,
    job: Job,
    plan: Job,
    recipe: Recipe,
    launch: Launch | None,
    *,
    settings: TrainSettings,
) -> None:
    """Train as one rank; the rank with the result writes and shows it.

    Args:
        launch: Which rank this is; None for the only one.

    Raises:
        Exit: The run was interrupted.
    """
    from wattree.runtime.launch import Launch
    from wattree.runtime.train.guard import guarded, leave
    from wattree.runtime.train.rank import RankEnd, train_rank
    from wattree.runtime.train.stop import watched_stop

    place = launch or Launch(rank=0, world=1, local_rank=0, local_world=1)
    _check_world(place, recipe, job)

    def deliver(trained: Trained) -> None:
        deliver_trained(request, replace(trained, job=plan))

    # Until the process ends: a rank that has done its part and then heard a signal would look like
    # one that was killed, and rank 0 would not come to write the result.
    with watched_stop() as stop:

        def run() -> RankEnd:
            return train_rank(job, recipe, place, settings, deliver=deliver, stop=stop)

        interrupted = guarded(place, run).interrupted
        if place.world > 1:
            leave(INTERRUPTED if interrupted else DONE)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def deliver_trained(request: TrainRequest, found: Trained) -> None:
    """Write and show a training result; it is shown even if its prediction fails."""
    from wattree.runtime.train.compare import compared

    _save_job(request, found)
    comparison = None
    if request.compare:
        try:
            comparison = compared(
                found,
                calibration=request.calibration,
                on_processor=request.device.value == "cpu",
            )
        except WattreeError as error:
            tell(f"wattree: --compare: the job cannot be simulated: {error}")
    if not request.silent:
        _show(request, found, comparison)


def _save_job(request: TrainRequest, found: Trained) -> None:
    """Leave run, result and job in the folder that was named."""
    if request.out is None:
        return
    out = request.out
    from wattree.files import write_atomic
    from wattree.report.json_output import write_json
    from wattree.runtime.saved_job import job_text
    from wattree.trace import write_run

    write_run(found.run, out / "run.json")
    write_json(found.result.as_json(), out / "result.json", standard_output=sys.stdout)
    write_atomic(out / "job.yaml", job_text(request.job, found.job, request.preset))


def _show(request: TrainRequest, found: Trained, comparison: PredictionComparison | None) -> None:
    from wattree.report.train_text import show_trained

    if request.trace_path is not None:
        from wattree.report.perfetto import write_trace

        write_trace(request.trace_path, found.trace)
    value = found.result.as_json()
    if comparison is not None:
        value["comparison"] = comparison.as_json()
        print_warnings(request.job, comparison.warnings)
    deliver(
        lambda: value,
        request.json_path,
        lambda console: show_trained(found.result, found.run, comparison, console),
    )
