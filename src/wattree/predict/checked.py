"""Check a job and list its facts and assumptions, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattree.accounts.unmeasured import software_note, unmeasured
from wattree.cost import load_calibration
from wattree.graph import ModelGraph
from wattree.job import Job, WorkloadKind
from wattree.lowering.idle import idle_choices
from wattree.lowering.model import check_recomputation
from wattree.lowering.placed import PlacedJob, checked_parts
from wattree.lowering.setting import Setting
from wattree.predict.generation import workload_setting
from wattree.strategy import StrategyOptions, options_in_words
from wattree.strategy.presets import strategy_of
from wattree.units import NUMBER_WORDS, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedJob:
    """A job that passed all checks.

    Attributes:
        facts: Stated facts, name → text.
        assumed: Assumed defaults, one sentence each.
        warnings: Settings without effect, uncertain facts, and anything the software cannot run.
    """

    facts: Mapping[str, str]
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]


def checked(job: Job) -> CheckedJob:
    """Return the facts and assumptions of a job.

    Raises:
        WattreeError: Model, strategy, batch and cluster do not fit; every misfit is listed.
    """
    setting = workload_setting(job, load_calibration())
    whole, model = setting.job, setting.model
    strategy = whole.strategy
    words = "auto: `plan` finds one"
    if isinstance(strategy, StrategyOptions):
        words = options_in_words(strategy)
        strategy = strategy_of(strategy, model=model, global_batch=whole.data.global_batch)
    elif not isinstance(strategy, str):
        words = "a tree written by hand"
    if not isinstance(strategy, str):
        check_recomputation(strategy, model)
        checked_parts(PlacedJob.of(setting, strategy), whole.cluster)
    memory = dict.fromkeys(
        f"{pool.node.device.memory_bytes / 2**30:.0f} GiB" for pool in whole.cluster.pools
    )
    facts = {
        "model": f"{model.name}, {_parameters(model)} parameters, {counted(model.layers, 'layer')}",
        "cluster": f"{whole.cluster.label}, {counted(whole.cluster.devices, 'device')}, "
        f"{' or '.join(memory)} each",
        **({"fabric": whole.cluster.fabric.name} if whole.cluster.nodes > 1 else {}),
        **_work(setting),
        "strategy": words,
        **_numbers(whole),
        "software": f"{setting.software.name}: {setting.software.title}",
    }
    warnings = (*whole.warnings, *idle_choices(whole, model), *setting.warnings)
    assumed = (software_note(setting), *unmeasured(setting), *whole.assumed)
    return CheckedJob(facts=facts, assumed=assumed, warnings=warnings)


def _parameters(model: ModelGraph) -> str:
    """Return the number of parameters, and how many of them are trained if not all are."""
    own, trained = (_count(n) for n in (model.parameters, model.trainable_parameters))
    rest = model.parameters - model.trainable_parameters
    if not rest or not model.trainable_parameters:
        return own
    return f"{own} ({trained} trained)" if own != trained else f"{own} ({_count(rest)} frozen)"


def _count(number: int) -> str:
    if number < 10**7:
        return f"{number:,}"
    word, scale = next(each for each in NUMBER_WORDS if number >= 0.9995 * each[1])
    return f"{number / scale:.3g} {word}"


def _work(setting: Setting) -> dict[str, str]:
    """Return a description of the samples of a step, or of the generated tokens."""
    data = setting.job.data
    batch, length = data.global_batch, data.sequence_length
    if setting.job.workload is WorkloadKind.GENERATE:
        generated = data.generate_length
        return {
            "generation": f"{counted(batch, 'sequence')}, {counted(length, 'token')} of prompt, "
            f"{generated:,} generated"
        }
    tokens = f", {counted(batch * length, 'token')}" if setting.has_tokens else ""
    return {"step": f"{counted(batch, 'sample')}{tokens}"}


def _numbers(job: Job) -> dict[str, str]:
    """Return the number format, and the optimizer of the trained parameters."""
    if job.workload is WorkloadKind.TRAIN:
        return {"training": f"{job.precision}, {job.optimizer}"}
    return {"workload": f"{job.workload}, {job.precision}, nothing is trained"}
