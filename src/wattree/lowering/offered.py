"""Features of training software for one model on the devices of a cluster."""

from __future__ import annotations

from wattree.capture.families import library_lacks
from wattree.graph import SCAN, ModelGraph
from wattree.hardware import Cluster
from wattree.job.offers import (
    BIASED_EXPERTS,
    COMPILED,
    EXPERTS,
    HYBRIDS,
    Offer,
    offer_of,
)
from wattree.lowering.idle import has_experts


def model_offer(
    software: str, model: ModelGraph, cluster: Cluster, *, compiled: bool
) -> Offer | None:
    """Return the features of a software family for a model; None where no limitation is known."""
    offer = offer_of(software)
    if offer is None:
        return None
    conditions = {pool.node.device.kind for pool in cluster.pools}
    conditions |= {COMPILED} if compiled else set()
    if has_experts(model):
        conditions.add(EXPERTS)
        conditions |= {BIASED_EXPERTS} if _has_biased_experts(model) else set()
    if has_scans(model):
        conditions.add(HYBRIDS)
    return offer.narrowed(
        architecture=model.architecture, absent=library_lacks(model), conditions=conditions
    )


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
