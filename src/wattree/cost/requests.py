"""Algorithms and protocols that a job requests, by kind of collective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wattree.cost.algorithms import ALGORITHMS, Protocol
from wattree.cost.algorithms.choose import nccl_capability
from wattree.cost.algorithms.registry import KINDS, KINDS_OF
from wattree.hardware import Cluster, Node

#: The calibrated closed form; and what NCCL would take for each call.
AUTO_COLLECTIVES, NCCL = "auto", "nccl"
#: The sums of the fabric's switches.
SHARP = "sharp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Requested algorithm and protocol of one kind of collective.

    Attributes:
        algorithm: `auto`, `nccl`, or a name in `ALGORITHMS`.
        protocol: NCCL's; None for links as they are, or, with `nccl`, for its own choice.
    """

    algorithm: str = AUTO_COLLECTIVES
    protocol: Protocol | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequests:
    """All requests of a job.

    Attributes:
        by_kind: Kind → request; others are `auto`.
    """

    by_kind: Mapping[str, Request] = field(default_factory=dict)

    def of(self, kind: str) -> Request:
        """Return the request for a kind."""
        return self.by_kind.get(kind, _DEFAULT)

    def misfits(self, cluster: Cluster) -> Iterator[tuple[str, str]]:
        """Yield kind and fault of each request that no group of the cluster can satisfy."""
        for kind, request in self.by_kind.items():
            fault = _misfit(kind, request, cluster)
            if fault is not None:
                yield kind, fault


_DEFAULT = Request()


def algorithm_names() -> tuple[str, ...]:
    """Return the valid names of a request."""
    return (AUTO_COLLECTIVES, NCCL, *ALGORITHMS)


def kinds_of(algorithm: str) -> tuple[str, ...]:
    """Return the kinds of a job's collectives that an algorithm supports.

    An algorithm of another package is asked itself.
    """
    return KINDS_OF.get(algorithm, KINDS)


def crosses(cluster: Cluster) -> bool:
    """Return whether a cluster's devices need its fabric to reach each other."""
    return len(cluster.pools) > 1 or cluster.pool.domains > 1


def _misfit(kind: str, request: Request, cluster: Cluster) -> str | None:
    """Return why a request cannot be satisfied, or None."""
    if kind not in kinds_of(request.algorithm):
        fitting = [other for other in algorithm_names() if kind in kinds_of(other)]
        return (
            f"algorithm '{request.algorithm}' has no {kind}; expected one of {', '.join(fitting)}"
        )
    fabric = cluster.fabric
    if request.algorithm == SHARP and crosses(cluster) and not fabric.adding_switches:
        return (
            "algorithm 'sharp' needs switches that add (InfiniBand from HDR on, or adding_switches "
            f"in a fabric's file), found fabric {fabric.name}; use ring, tree or halving-doubling"
        )
    for pool in cluster.pools:
        fault = _protocol_misfit(request, pool.node) or _links_misfit(request.algorithm, pool.node)
        if fault is not None:
            return fault
    return None


def _protocol_misfit(request: Request, node: Node) -> str | None:
    name, protocol = request.algorithm, request.protocol
    if (name == NCCL or protocol is not None) and nccl_capability(node.device) is None:
        what = "algorithm 'nccl'" if name == NCCL else f"protocol '{protocol}'"
        return (
            f"{what} needs NVIDIA devices from Pascal on, found {node.device.name}; name an "
            "algorithm without a protocol"
        )
    if name == AUTO_COLLECTIVES and protocol is not None:
        return f"protocol '{protocol}' with algorithm 'auto'; expected an algorithm or 'nccl' too"
    if protocol is Protocol.LL128 and node.scale_up.kind == "pcie":
        return f"protocol 'll128' needs NVLink, found PCIe in {node.name}; use ll or simple"
    return None


def _links_misfit(name: str, node: Node) -> str | None:
    scale_up = node.scale_up
    adds = scale_up.in_network_reduction and scale_up.kind == "switch"
    if name == "nvls" and not adds:
        return (
            f"algorithm 'nvls' needs switches that add, which {node.name} has not; use ring, tree "
            "or halving-doubling"
        )
    if name == "torus" and scale_up.kind not in {"torus", "ring"}:
        return (
            f"algorithm 'torus' needs devices on a ring or torus, found kind '{scale_up.kind}' in "
            f"{node.name}; use ring or direct"
        )
    return None
