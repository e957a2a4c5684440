"""Groups of ranks on clusters, and what their collectives take."""

from __future__ import annotations

import numpy as np

from wattree.cost import GroupShape, LinkRates
from wattree.cost.algorithms import (
    Protocol,
)
from wattree.cost.algorithms.layout import GroupLayout
from wattree.cost.algorithms.registry import KINDS
from wattree.cost.collective_model import CollectiveCost, CollectiveModel
from wattree.cost.requests import CollectiveRequests, Request
from wattree.hardware import Cluster

__all__ = ["SIZE", "Spans", "asked", "cost", "ideal", "layout_of", "shape_of"]

SIZE = 64e6

Spans = tuple[tuple[int, int], ...]


def ideal(place: Cluster) -> LinkRates:
    """Return links that reach their datasheet's rates, without latency."""
    node = place.node
    port = node.scale_up.bandwidth_bytes_per_s
    return LinkRates(
        scale_up_bytes_per_s=port,
        scale_up_reduce_bytes_per_s=port,
        adapter_bytes_per_s=node.nics * node.nic_bandwidth_bytes_per_s / node.devices,
        alpha_s=0.0,
        alpha_network_s=0.0,
    )


def asked(algorithm: str, protocol: Protocol | None = None) -> CollectiveRequests:
    """Return the same request for every kind."""
    request = Request(algorithm=algorithm, protocol=protocol)
    return CollectiveRequests(by_kind=dict.fromkeys(KINDS, request))


def shape_of(
    place: Cluster, spans: Spans, *, filled: int | None = None, mesh: Spans = ()
) -> GroupShape:
    """Return the shape of one kind of groups, as the compiler would give it."""
    layout = layout_of(place, spans)
    domains = len(np.unique(layout.offsets // place.domain_devices))
    one = np.ones(1)
    return GroupShape(
        ranks=one * layout.ranks,
        inside=one * max(layout.ranks / domains, 1.0),
        spans=tuple((one * degree, one * stride) for degree, stride in spans),
        filled=one * (filled or place.domain_devices),
        mesh=tuple((one * degree, one * stride) for degree, stride in mesh),
    )


def layout_of(place: Cluster, spans: Spans) -> GroupLayout:
    """Return the layout of groups on all devices."""
    return GroupLayout(
        spans=spans,
        domain=place.domain_devices,
        leaf=place.node.devices * place.fabric.leaf_nodes,
        filled=place.domain_devices,
    )


def cost(
    place: Cluster, kind: str, spans: Spans, requests: CollectiveRequests | None = None
) -> CollectiveCost:
    """Return what the model says of one size."""
    model = CollectiveModel(cluster=place, requests=requests or CollectiveRequests(), refuses=True)
    return model.cost(kind, np.array([SIZE]), shape_of(place, spans), ideal(place))
