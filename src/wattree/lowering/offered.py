"""Features of training software for one model on the devices of a cluster."""

from __future__ import annotations

from wattree.capture.families import library_lacks
from wattree.graph import SCAN, ModelGraph
from wattree.job import Job
from wattree.job.offers import (
    BASE_INT8,
    BIASED_EXPERTS,
    COMPILED,
    EXPERTS,
    HYBRIDS,
    Offer,
    left_to_software,
    offer_of,
)
from wattree.job.usual import USUAL_STRATEGIES
from wattree.lowering.idle import has_experts
from wattree.lowering.usual_model import splits_latent
from wattree.strategy import StrategyOptions


def model_offer(software: str, model: ModelGraph, job: Job, *, compiled: bool) -> Offer | None:
    """Return the features of a software family for a model; None where no limitation is known.

    Args:
        job: Its precision and its devices count.
    """
    offer = offer_of(software)
    if offer is None:
        return None
    conditions = {str(job.precision), *(pool.node.device.kind for pool in job.cluster.pools)}
    conditions |= {COMPILED} if compiled else set()
    if has_experts(model):
        conditions.add(EXPERTS)
        conditions |= {BIASED_EXPERTS} if _has_biased_experts(model) else set()
    if has_scans(model):
        conditions.add(HYBRIDS)
    if _base(job) == "int8":
        conditions.add(BASE_INT8)
    return offer.narrowed(
        architecture=model.architecture, absent=library_lacks(model), conditions=conditions
    )


def unoffered(job: Job, model: ModelGraph, *, compiled: bool) -> tuple[str, ...]:
    """Return a warning for each part of a strategy that the job's software lacks for its model.

    What it lacks for all models was noted as the job was read.
    """
    options, offer = job.strategy, model_offer(job.software, model, job, compiled=compiled)
    if offer is None or not isinstance(options, StrategyOptions):
        return ()
    lacks = offer.lacks(
        options,
        left=left_to_software(job.left_open),
        global_batch=job.data.global_batch,
        layers=model.layers,
    )
    who = f"is not offered by {offer.software} {offer.version}"
    base = f" with a base in {_base(job)}" if _base(job) else ""
    found = [
        f"strategy: {each} {who} for {model.name}{base} ({offer.source})"
        for each in lacks
        if not any(f"strategy: {each} {who}" in line for line in job.warnings)
    ]
    hides = options.traffic.overlap_tensor or job.traits.get("overlap_tensor")
    usual = USUAL_STRATEGIES.get(job.software)
    why = usual.no_latent_overlap if usual is not None and hides else ""
    if why and splits_latent(options.changed(overlap_tensor=None), model):
        found.append(f"strategy.overlap_tensor: true {who}: {why}")
    return tuple(f"{words}; predicted all the same" for words in found)


def _base(job: Job) -> str:
    return "" if job.model.lora is None else job.model.lora.base


def has_scans(model: ModelGraph) -> bool:
    """Return whether a model has state-space layers."""
    return any(operator.function == SCAN for operator in model.operators)


def _has_biased_experts(model: ModelGraph) -> bool:
    return any(
        parameter.name.endswith(".bias")
        for operator in model.operators
        if "experts" in operator.path
        for parameter in operator.parameters
    )
