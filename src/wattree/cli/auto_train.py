"""`wattree train --processes-per-device auto`: trials are short runs of the same command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wattree.cli.auto import tuned
from wattree.cli.train_colocated import device_of, share_asked
from wattree.temporary import temporary_folder

if TYPE_CHECKING:
    from wattree.cli.train_request import TrainRequest
    from wattree.job import Job
    from wattree.runtime.tune import TrialSetting

#: Options of a run that its trials do not have: files, and what is done after it.
_OF_RUNS = ("--processes-per-device", "-q", "--out", "--json", "--trace", "--calibration")
_FLAGS = ("--compare", "--fresh", "--quiet")


def tuned_request(request: TrainRequest, job: Job, arguments: Sequence[str]) -> TrainRequest:
    """Return a request with the best number of processes from short trials; print their results.

    Args:
        request: Of the run, with `auto` processes.

    Raises:
        RunError: The first trial fails, or there can be none here.
        StrategyError: Replicas of the job are several devices.
    """
    from wattree.runtime.colocation.training import colocated
    from wattree.runtime.launch import own_command
    from wattree.runtime.launch.options import LaunchOptions
    from wattree.runtime.patches import PARTS, UNPATCHED
    from wattree.runtime.recipe import recipe_of
    from wattree.runtime.tune.measured import TrialOptions

    recipe = recipe_of(job)
    _, rule = share_asked(job, 1, request.rule)
    # Whether there can be several at all; fixed-per-process asks nothing of the batch.
    colocated(job, recipe, 2, "fixed-per-process")
    launch = LaunchOptions(
        device=device_of(request, job),
        devices=recipe.options.dp,
        batch_rule=rule,
        with_mps=request.by_mps,
        thread_percentage=request.thread_percentage,
    )
    kept = without(without(arguments, *_OF_RUNS), *_FLAGS, has_value=False)
    with temporary_folder("auto") as folder:

        def command(setting: TrialSetting) -> list[str]:
            words = list(kept)
            if setting.batch_factor > 1:
                larger = Path(folder) / f"batch-{setting.batch_factor}.yaml"
                larger.write_text(_larger(request.job, job, setting.batch_factor), encoding="utf-8")
                words[words.index(str(request.job))] = str(larger)
            flags = ["-q", str(setting.processes), "--silent", "--quiet", "--fresh"]
            return own_command([*words, *flags])

        def samples(setting: TrialSetting) -> float:
            own = setting.processes if rule == "fixed-per-process" else 1
            return float(job.data.global_batch * setting.batch_factor * own)

        found = tuned(
            command,
            TrialOptions(launch=launch, samples=samples),
            # `wattree train` shares the batch and averages gradients itself.
            environment={UNPATCHED: ",".join(PARTS)},
        )
    return replace(
        request,
        processes=str(found.processes),
        thread_percentage=found.thread_percentage,
        with_mps=bool(found.with_mps),
        without_mps=found.with_mps is False,
    )


def without(arguments: Sequence[str], *options: str, has_value: bool = True) -> list[str]:
    """Return arguments without some options and their values; `--compare` never has one.

    Args:
        arguments: Words of a command line.
        options: As they are written in full, or by their letter.
        has_value: Whether a word that belongs to it follows each.
    """
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in options:
            skip = has_value and word != "--compare"
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            kept.append(word)
    return kept


def _larger(path: Path, job: Job, factor: int) -> str:
    """Return a job file with so many times the batch, in micro-batches so much larger."""
    from wattree.files import yaml_of
    from wattree.job.written import yaml_text
    from wattree.runtime.saved_job import job_text

    mapping = yaml_of(job_text(path, job, None), str(path))
    mapping["data"]["global_batch"] = job.data.global_batch * factor
    strategy = mapping.get("strategy")
    if isinstance(strategy, dict) and isinstance(strategy.get("micro_batch"), int):
        strategy["micro_batch"] *= factor
    return yaml_text(mapping)
