"""What a job rests on that its user may not have: software, devices, the training loop."""

from __future__ import annotations

import math

from wattree.accounts import constant_classes as names
from wattree.accounts.constant_classes import constants_of
from wattree.accounts.interval import DEVIATIONS, own_observations
from wattree.accounts.job_facts import facts_of
from wattree.accounts.known import LEVELS, EvidenceClass, measured_of
from wattree.cost import AUTO_SOFTWARE
from wattree.cost.other_software import family_named
from wattree.job import WorkloadKind
from wattree.lowering.setting import Setting
from wattree.lowering.split_rules import has_attention
from wattree.strategy import ContextExchange, StrategyOptions

#: Level of a device's constants → whose constants stand in for its own.
_STAND_INS = {"architecture": "its architecture", "pooled": "all devices"}


def unmeasured(setting: Setting) -> tuple[str, ...]:
    """Return one sentence for each part of a job that no run has measured."""
    return (*unmeasured_devices(setting), *unmeasured_loop(setting), *_hidden_context(setting))


def software_note(setting: Setting) -> str:
    """Return whose defaults and constants count, and what it takes to choose others."""
    note = f"defaults and measured constants of the software '{setting.software.name}'"
    job = setting.job
    if job.software_name and family_named(job.software_name) == setting.software.name:
        note += f", which '{job.software_name}' counts as"
    if job.workload is WorkloadKind.TRAIN and job.software == AUTO_SOFTWARE:
        note += (
            ", as the job names no software; set 'software' to yours: with small models, the step "
            "of other software takes up to 4 times as long"
        )
    return note


def unmeasured_devices(setting: Setting) -> tuple[str, ...]:
    """Return one sentence for each device of a job without measured runs, of it or of its die.

    Models of tokens and others count apart. Most of the step is taken to rest on products, of
    networks on convolutions.
    """
    found = {}
    for pool in setting.job.cluster.pools:
        device = pool.node.device
        facts = facts_of(setting, device, pool.devices)
        measured = measured_of(setting.calibration.residuals, facts.kind)
        rate = names.CONVOLUTION if facts.kind == "network" else names.PRODUCTS
        known = facts.known(measured, {rate: 1.0}, constants_of(setting, device))
        if (others := _STAND_INS.get(known.level)) is not None:
            words = f"no measured runs of models of this kind; predicted by constants of {others}"
            found[device.name] = f"{device.name}: {words}"
    return tuple(found.values())


def unmeasured_loop(setting: Setting) -> tuple[str, ...]:
    """Return one sentence if users write the training loop, and none of theirs was measured."""
    job, residuals = setting.job, setting.calibration.residuals
    device = job.cluster.pools[0].node.device
    facts = facts_of(setting, device, job.cluster.devices)
    stated = job.software != AUTO_SOFTWARE and facts.scripted
    trains = job.workload is WorkloadKind.TRAIN
    if not (trains and stated) or own_observations(setting, facts):
        return ()
    script = EvidenceClass(kind=facts.kind, level=LEVELS[0], software="measured", scripted=True)
    factor = math.exp(DEVIATIONS * script.slower(residuals.spreads))
    return (
        f"the loop keeps its devices busy; with '{setting.software.name}', one published step in "
        f"ten takes more than {factor:.1f} times as long (loading, logs, padding): calibrate with "
        "a step of yours",
    )


def _hidden_context(setting: Setting) -> tuple[str, ...]:
    """Return what the default way of context parallelism hides, where a job has it."""
    options = setting.job.strategy
    if not isinstance(options, StrategyOptions) or options.cp == 1:
        return ()
    is_hidden = options.parallelism.context == ContextExchange.OVERLAPPED
    if not is_hidden or not has_attention(setting.model):
        return ()
    return (
        "context overlapped: other ranks' keys and values arrive behind attention as far as it "
        "lasts, which no software does exactly; name yours (strategy.context: gather, ring, "
        "ulysses)",
    )
