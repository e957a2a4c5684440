"""Features of training software for one model on the devices of a cluster."""

from __future__ import annotations

from wattree.capture.families import library_lacks
from wattree.graph import ModelGraph
from wattree.hardware import Cluster
from wattree.job.offers import BIASED_EXPERTS, COMPILED, EXPERTS, Offer, offer_of
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
    return offer.narrowed(
        architecture=model.architecture, absent=library_lacks(model), conditions=conditions
    )


def _has_biased_experts(model: ModelGraph) -> bool:
    return any(
        parameter.name.endswith(".bias")
        for operator in model.operators
        if "experts" in operator.path
        for parameter in operator.parameters
    )
