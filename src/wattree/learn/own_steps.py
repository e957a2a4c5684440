"""Measured steps of a user's own runs, with their jobs; contradictory runs are rejected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from wattree.accounts import constant_classes as names
from wattree.accounts.pool_use import faster_than_peak
from wattree.errors import RunError, UnitError, WattreeError
from wattree.files import exists, is_folder, read_yaml
from wattree.hardware import Precision
from wattree.job import Job, load_job
from wattree.kineto.ranks import read_ranks
from wattree.learn.measured_steps import CLASSES, measured_ranks, refuse_other_devices
from wattree.learn.traced_work import TracedWork, contradictions, traced_work
from wattree.lowering.setting import Setting
from wattree.strategy import StrategyOptions
from wattree.trace import Result
from wattree.trace.run import WAITED_FOR_CORE, Activity, Run, RunOrigin
from wattree.trace.run_file import read_run
from wattree.units import format_time, parse_quantity

#: Key of a file that lists several runs, and those of an entry.
LIST_KEY = "runs"
_MEASURED_KEYS = ("step_time", "run", "trace")
_ENTRY_KEYS = ("job", *_MEASURED_KEYS)
_MOST_RUNS = 100
#: Counts of a run and of its job are the same figures, written once more.
_SAME = 1e-3
#: Executed FLOP, where a run counts those, are up to so many times the model's.
_EXECUTED = 1.4
#: Runs of one job on one machine differ by some percent; by so much something else was run.
_APART = 1.25
#: What a step may be above or below its prediction before the job is not what was run: small steps
#: on a processor that others use took 21 times as long as with all of its cores.
_MOST = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """One measured step time.

    Attributes:
        step_s: Measured. [s]
        source: Where the figure is from, for messages.
        run: File of the run; None where only a time was given.
        ran: The job that `wattree train` ran, where it stands with the run.
        classes_s: Class of a trace → its time of the step; None where no trace was given. [s]
        slowed: Whether a profiler slowed the host while a device computed.
        work: What the traces show of it.
        stages_s: Stage of a run → what a step takes of it; empty where they were not timed. [s]
    """

    job: Job
    step_s: float
    source: str
    run: Run | None = None
    ran: Job | None = None
    classes_s: Mapping[str, float] | None = None
    slowed: bool = False
    work: TracedWork = field(default_factory=TracedWork)
    stages_s: Mapping[str, float] = field(default_factory=dict)


def own_steps(
    path: Path,
    *,
    step_times: Sequence[str] = (),
    runs: Sequence[Path] = (),
    traces: Sequence[Path] = (),
) -> tuple[OwnStep, ...]:
    """Return the measured steps that a command's arguments name.

    Args:
        path: Of the job, or of a file that lists runs.
        step_times: Of the job, as a user writes them.
        runs: Files, or folders with `run.json`, of runs of the job.
        traces: Of the ranks of one run of the job.

    Raises:
        JobError: A job or the list cannot be read.
        RunError: A measurement is missing, or is none; every fault is listed.
        UnitError: A step time is no time.
    """
    entries = _entries(path)
    if entries is None:
        job = load_job(path)
        found = [_of_time(job, each, "--step-time") for each in step_times]
        found += [_of_run(job, each) for each in runs]
        found += [_of_traces(job, traces)] if traces else []
        if not found:
            raise RunError(
                str(path),
                ["nothing was measured; add --step-time '12.3 s', --run run.json or --trace FILE"],
            )
        return tuple(found)
    if step_times or runs or traces:
        raise RunError(
            str(path),
            [f"lists its runs under '{LIST_KEY}'; leave out --step-time, --run and --trace"],
        )
    return tuple(_listed(path, entries))


def _entries(path: Path) -> list[object] | None:
    """Return the runs that a file lists; None if it is a job."""
    found = read_yaml(path)
    if LIST_KEY not in found:
        return None
    entries, problems = found[LIST_KEY], []
    problems += [f"{key}: is unknown; known: {LIST_KEY}" for key in found if key != LIST_KEY]
    if not isinstance(entries, list) or not 0 < len(entries) <= _MOST_RUNS:
        problems.append(f"{LIST_KEY}: expected a list of 1 to {_MOST_RUNS} runs")
    if problems:
        raise RunError(str(path), problems)
    return list(entries)


def _listed(path: Path, entries: Sequence[object]) -> Iterator[OwnStep]:
    problems = [fault for i, each in enumerate(entries) for fault in _entry_faults(i, each)]
    if problems:
        raise RunError(str(path), problems)
    for each in entries:
        assert isinstance(each, dict)
        job = load_job(path.parent / str(each["job"]))
        if "trace" in each:
            yield _of_traces(job, [path.parent / str(one) for one in each["trace"]])
        elif "run" in each:
            yield _of_run(job, path.parent / str(each["run"]))
        else:
            yield _of_time(job, str(each["step_time"]), f"{path}: step_time")


def _entry_faults(number: int, entry: object) -> Iterator[str]:
    where = f"{LIST_KEY}[{number}]"
    if not isinstance(entry, dict):
        yield f"{where}: expected job, and one of {', '.join(_MEASURED_KEYS)}"
        return
    for key in sorted(map(str, entry.keys() - set(_ENTRY_KEYS))):
        yield f"{where}.{key}: is unknown; known: {', '.join(_ENTRY_KEYS)}"
    if not isinstance(entry.get("job"), str):
        yield f"{where}.job: expected the path of a job file"
    if sum(key in entry for key in _MEASURED_KEYS) != 1:
        yield f"{where}: expected one of {', '.join(_MEASURED_KEYS)}"
    if not isinstance(entry.get("trace", []), list):
        yield f"{where}.trace: expected a list of files, one for each rank"


def parsed_step_time(text: str, source: str) -> float:
    """Return a step time as a user writes it. [s]

    Raises:
        UnitError: It is none.
    """
    try:
        return parse_quantity(text, "s")
    except UnitError as error:
        raise UnitError(f"{source}: {error}") from error


def _of_time(job: Job, text: str, source: str) -> OwnStep:
    return OwnStep(job=job, step_s=parsed_step_time(text, source), source=f"{source} {text}")


def _of_run(job: Job, path: Path) -> OwnStep:
    file = path / "run.json" if is_folder(path) else path
    run = read_run(file)
    problems = []
    if run.origin is RunOrigin.SIMULATED:
        problems.append("origin: found 'simulated', expected a run that was measured")
    if run.activity is not Activity.TRAINING:
        problems.append(f"activity: found '{run.activity}', expected 'training'")
    if run.iterations < 1:
        problems.append("iterations: found 0, expected the steps that the run made")
    if problems:
        raise RunError(str(file), problems)
    return OwnStep(
        job=job,
        step_s=run.wall_s / run.iterations,
        source=str(file),
        run=run,
        ran=_trained_job(file.parent),
        stages_s={name: use.exposed_s / run.iterations for name, use in run.stages.items()},
    )


def _trained_job(folder: Path) -> Job | None:
    """Return the job in a folder that `wattree train` wrote; None where the folder is another.

    Nor is one known whose own files, such as that of its node, are elsewhere.
    """
    written = [folder / name for name in ("job.yaml", "result.json")]
    try:
        return load_job(written[0]) if all(map(exists, written)) else None
    except WattreeError:
        return None


def _of_traces(job: Job, paths: Sequence[Path]) -> OwnStep:
    """Return the average step of traced ranks; ranks that others wait for count once."""
    traced = read_ranks(paths)
    refuse_other_devices(job, traced)
    ranks = measured_ranks(traced)
    return OwnStep(
        job=job,
        step_s=float(np.mean([each.step_s for each in ranks])),
        source=", ".join(map(str, paths)),
        classes_s={
            name: float(np.mean([each.classes_s[name] for each in ranks])) for name in CLASSES
        },
        slowed=traced.ranks[0].on_device,
        work=traced_work(traced, ranks),
    )


def doubts(members: Sequence[OwnStep]) -> Iterator[str]:
    """Yield what of the runs of one job says more of a fault than of a machine."""
    job = members[0].job.source
    if all(each.slowed for each in members):
        yield (
            f"{job}: the profiler slows the host, so the trace says nothing of launches and step "
            "overhead; add a step time without it (--step-time)"
        )
    for each in members:
        notes = each.run.notes if each.run is not None else ()
        yield from (f"{each.source}: {note}" for note in notes if note.startswith(WAITED_FOR_CORE))
    times_s = [each.step_s for each in members if not each.slowed]
    if times_s and max(times_s) > _APART * min(times_s):
        least, most = format_time(min(times_s)), format_time(max(times_s))
        yield (
            f"{job}: its step times differ by a factor of {max(times_s) / min(times_s):.3g} "
            f"({least} to {most}); their mean was learned, but one of them is hardly of this job "
            "on this machine"
        )


def refuse_contradictions(step: OwnStep, setting: Setting, predicted: Result) -> None:
    """Reject a measurement that contradicts its job; list every contradiction.

    Raises:
        RunError: The run shows other devices, batch, model or sharding; or the step is faster than
            the peak of its devices allows, or so far from the prediction that it is of something
            else.
    """
    problems = [] if step.run is None else list(_other(step.run, step.job, predicted))
    problems += [] if step.ran is None else _other_strategy(step.ran, step.job)
    shares = {name: part.share for name, part in predicted.interval_parts.items()}
    linear, attention = shares.get(names.PRODUCTS, 0.0), shares.get(names.ATTENTION, 0.0)
    problems += contradictions(step.work, setting, predicted.ranks, linear, attention)
    flop, precision = predicted.model_flop_per_step, Precision(predicted.mfu_precision)
    fault = faster_than_peak(step.step_s, flop, step.job.cluster, predicted.ranks, precision)
    if fault:
        problems.append(f"step time: {fault}")
    elif not 1 / _MOST < step.step_s / predicted.step_time_s < _MOST:
        problems.append(
            f"step time: found {step.step_s:.4g} s, {step.step_s / predicted.step_time_s:.3g} "
            f"times the predicted {predicted.step_time_s:.4g} s; expected a run of this very job "
            f"within a factor of {_MOST:g}: check batch, model and cluster"
        )
    if problems:
        raise RunError(f"{step.source} ({step.job.source})", problems)


def _other(run: Run, job: Job, predicted: Result) -> Iterator[str]:
    """Yield the facts of a run that differ from its job."""
    ranks = run.nodes * (run.ranks_per_node or run.devices_per_node or 1)
    expected = predicted.ranks * _processes(job)
    if ranks != expected:
        yield f"nodes: found {ranks} ranks in all, but the job has {expected}"
    elif (least := job.cluster.nodes_for(predicted.ranks)) > run.nodes:
        yield (
            f"nodes: found {run.nodes}, but the job's ranks are on {least}: the run shared the "
            "devices of fewer nodes, and used no network between them"
        )
    samples, batch = run.work.samples, job.data.global_batch
    if samples is not None and abs(samples - batch) > _SAME * batch:
        yield f"work.samples: found {samples:g}, but the job's global_batch is {batch}"
    flop, needed = run.work.flop, predicted.model_flop_per_step
    if flop and not needed / _EXECUTED < flop < needed * _EXECUTED:
        yield f"work.flop: found {flop:.5g}, but the job's model and batch take {needed:.5g}"


def _other_strategy(ran: Job, job: Job) -> Iterator[str]:
    """Yield the options with which a job was run, where both state others."""
    found, asked = ran.strategy, job.strategy
    if not (isinstance(found, StrategyOptions) and isinstance(asked, StrategyOptions)):
        return
    left = {*ran.left_open, *job.left_open}
    if found.dp != asked.dp and found.dp * found.fsdp == asked.dp * asked.fsdp:
        left |= {"dp", "fsdp", "sharding"}  # as an axis and as a sharding
    for key in sorted((found.chosen().keys() | asked.chosen().keys()) - left):
        if found.value(key) != asked.value(key):
            yield (
                f"strategy.{key}: the run had {found.value(key)}, but the job has "
                f"{asked.value(key)}"
            )


def _processes(job: Job) -> int:
    """Return the training processes on each device."""
    return 1 if isinstance(job.strategy, str) else job.strategy.colocation.processes
