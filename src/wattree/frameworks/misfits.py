"""Settings of a job that a framework cannot express, by key of the job."""

from __future__ import annotations

from dataclasses import replace

from wattree.cost.families import software_family
from wattree.frameworks.framework import (
    FRAMEWORKS,
    ConcreteJob,
    Framework,
    Written,
    written_frameworks,
)
from wattree.frameworks.launch import BUCKETS
from wattree.hardware import Precision
from wattree.job.offers import foreign_device
from wattree.job.problems import ranges
from wattree.job.usual import USUAL_STRATEGIES, usual_traits
from wattree.lowering.idle import has_experts
from wattree.lowering.offered import model_offer
from wattree.lowering.usual_model import splits_latent
from wattree.strategy.options import KNOBS

#: Keys that each writer looks at itself.
_OF_WRITERS = frozenset(
    {
        *("dp", "fsdp", "tp", "cp", "pp", "ep", "micro_batch", "sharding", "recompute"),
        *("schedule", "virtual_stages", "sequence_parallel", "context"),
    }
)


#: Formats that are predicted at the rate of another one, but do not run without their own.
_OWN = (Precision.BF16, Precision.FP16, Precision.MXFP8)


def misfits(framework: Framework, concrete: ConcreteJob, written: Written) -> dict[str, str]:
    """Return key → why the framework cannot express it.

    Args:
        written: What its writer made of the job, with the misfits that only it knows.
    """
    found = _strategy_misfits(framework, concrete) | _training_misfits(framework, concrete)
    found |= _trait_misfits(framework, concrete)
    if (count := concrete.job.model.arguments.get("predictions")) and not framework.predicts:
        found["model.arguments"] = f"{framework.title} has no setting for predictions {count}"
    if (length := concrete.job.data.document_length) is not None:
        why = "has no setting for the length of documents: it is that of your data"
        found["data.document_length"] = f"found {length}, but {framework.title} {why}"
    return found | dict(written.misfits)


def _strategy_misfits(framework: Framework, concrete: ConcreteJob) -> dict[str, str]:
    options, found = concrete.options, {}
    for key in options.chosen():
        if key not in framework.knobs | _OF_WRITERS:
            value = str(options.value(key)).lower()
            found[f"strategy.{key}"] = f"{framework.title} has no setting for {key} {value}"
    for name, part in BUCKETS.items():
        if getattr(options.traffic, name) is not None and name not in framework.knobs:
            found["strategy.bucket"] = f"{framework.title} has no setting for buckets of {part}"
    if options.cp > 1 and options.parallelism.context == KNOBS["context"].default:
        found["strategy.context"] = (
            "'overlapped' is the limit that no program reaches; choose gather, ring or ulysses"
        )
    job, compiled = concrete.job, concrete.compiled
    offer = model_offer(framework.software[0], concrete.model, job, compiled=compiled)
    if offer is None:
        return found
    batch, layers = job.data.global_batch, concrete.model.layers
    for each in offer.lacks(options, global_batch=batch, layers=layers):
        key = each.split(" ", 1)[0]
        model = f" for {concrete.model.name}" if key in {*offer.needs, *offer.missing} else ""
        found.setdefault(f"strategy.{key}", f"{each} is not offered by {framework.versions}{model}")
    return found


def _trait_misfits(framework: Framework, concrete: ConcreteJob) -> dict[str, str]:
    family = software_family(concrete.software.name)
    experts = has_experts(concrete.model)
    latent = splits_latent(concrete.options, concrete.model)
    bare = replace(concrete.job, traits={})
    usual = [
        usual_traits(bare, software, has_experts=experts, splits_latent=latent)
        for software in (framework.software[0], bare.software)
        if software in USUAL_STRATEGIES
    ]
    return {
        f"traits.{name}": (
            f"found {str(value).lower()}, which is not written for {framework.title}; without it "
            f"the job is that of {framework.versions}"
        )
        for name, value in concrete.job.traits.items()
        if name != "compiled"
        and value not in framework.traits.get(name, ())
        and value not in (getattr(family, name), *(each[name][0] for each in usual if name in each))
    }


def _training_misfits(framework: Framework, concrete: ConcreteJob) -> dict[str, str]:
    job, found = concrete.job, {}
    if job.precision not in framework.precisions:
        found["precision"] = f"found {job.precision}, expected {_one_of(framework.precisions)}"
    elif job.precision in _OWN and job.precision not in job.cluster.node.device.peak_flop_per_s:
        device = job.cluster.node.device
        own = ", ".join(each for each in framework.precisions if each in device.peak_flop_per_s)
        found["precision"] = f"found {job.precision}, which {device.name} lacks; it has {own}"
    if job.optimizer not in framework.optimizers:
        found["optimizer"] = f"found {job.optimizer}, expected {_one_of(framework.optimizers)}"
    if job.model.freeze or (job.model.lora is not None and not framework.adapts):
        parts = "frozen parts" if job.model.freeze else "adapters"
        found["model"] = f"found {parts}, expected a model of which all is trained"
        if not job.model.freeze:
            names = (name for name in written_frameworks() if FRAMEWORKS[name].adapts)
            found["model"] += f"; adapters are exported to {', '.join(names)}"
    if job.cluster.is_mixed:
        found["cluster.pools"] = "found nodes of different kinds, expected nodes of one kind"
    if place := _place_misfit(concrete):
        found["place"] = place
    if foreign := foreign_device(framework.software[0], job.cluster):
        found["cluster.node"] = foreign
    if job.neighbours:
        found["neighbours"] = "found other jobs, expected the job alone"
    return found


def _place_misfit(concrete: ConcreteJob) -> str:
    """Return why launchers, which number ranks host by host, put them on other devices."""
    ranks, per_node = concrete.options.ranks, concrete.job.cluster.node.devices
    devices = concrete.job.devices
    if devices is None:
        expected = f"expected a multiple of the node's {per_node} devices"
        return f"found {ranks} ranks, {expected}" if ranks > per_node and ranks % per_node else ""
    taken, hosts = devices[:ranks], concrete.hosts
    if list(taken) == sorted(taken) and all(each == hosts[0] for each in hosts):
        return ""
    return f"found devices {ranges(taken)}, expected the same devices of each node, in order"


def _one_of(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
