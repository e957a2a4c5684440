"""The input pipeline of first-stage ranks: times of reads, workers and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.cost.loading import Loader, part_times_s, storage_bytes_per_s
from wattree.errors import StrategyError
from wattree.hardware import Cluster, Node
from wattree.lowering.topology import LinkUse, MeshTopology
from wattree.strategy import Schedule
from wattree.units import format_bytes

#: Input batches on the device: the one in use, and (out of pinned memory) the one that comes.
BUFFERS = {True: 2, False: 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Input pipeline of the ranks of one pool.

    Attributes:
        loader: Configuration of the data loader.
        node: Node type of the pool.
        samples: Of one micro-batch and rank, of one process where several share its device.
        on_node: Loaders on the fullest node of the pool.
        everywhere: Loaders of the job.
        ranks: Ranks that one loader serves. Each simulates its share of what the loader uses of
            storage, host and links.
        simulates_links: Its transfers share links with others; else they take the time that they
            have when all ranks load.
    """

    loader: Loader
    node: Node
    samples: float
    on_node: int
    everywhere: int
    ranks: int = 1
    simulates_links: bool = True

    @property
    def core_s(self) -> float:
        """Return the core time of one micro-batch for one rank, all processes of its device. [s]"""
        return self.device_samples * self.loader.core_s / self.ranks

    @property
    def device_samples(self) -> float:
        """Return the samples of one micro-batch of all processes of a device."""
        return self.samples * self.loader.processes

    def times_s(self, micro_batches: float = 1.0) -> Mapping[str, float]:
        """Return the time of each part for `micro_batches` micro-batches of every loader. [s]"""
        parts = part_times_s(
            self.loader,
            self.node,
            np.array([self.samples * micro_batches]),
            on_node=np.array([float(self.on_node)]),
            everywhere=np.array([float(self.everywhere)]),
            serves=np.array([float(self.ranks)]),
        )
        return {name: float(value[0]) for name, value in parts.items()}

    @property
    def device_bytes(self) -> float:
        """Return the device memory of input batches, those in use included. [B]"""
        return BUFFERS[self.loader.copies_ahead] * self.samples * self.loader.tensor_bytes

    @property
    def host_bytes(self) -> float:
        """Return the host memory of batches prefetched by the loaders of a device. [B]"""
        return self.loader.batches_ahead * self.device_samples * self.loader.held_bytes


def loading_stages(schedule: Schedule, stages: int) -> tuple[int, ...]:
    """Return the pipeline stages that load samples."""
    return tuple(sorted({route[0].stage for route in schedule.placed(stages).routes}))


def loading_of(
    loader: Loader,
    topology: MeshTopology,
    schedule: Schedule,
    samples: float,
    *,
    each_serves: int = 1,
) -> tuple[Loading, ...]:
    """Return the input pipeline of the ranks of each pool.

    Args:
        loader: How every rank that begins the model gets its data.
        samples: Of one micro-batch and rank.
        each_serves: Ranks of a tensor-parallel group that one of them loads for.
    """
    stages = loading_stages(schedule, topology.mesh.pipeline)
    ranks = np.concatenate([topology.stage_ranks(stage) for stage in stages])
    node, pool = _nodes_of(topology, ranks), topology.pool_of(ranks)
    found = []
    for number, each in enumerate(topology.cluster.pools):
        counts = np.bincount(node[pool == number])
        found.append(
            Loading(
                loader=loader,
                node=each.node,
                samples=samples,
                on_node=max(int(counts.max(initial=0)) // each_serves, 1),
                everywhere=len(ranks) // each_serves,
                ranks=each_serves,
                simulates_links=not topology.cluster.is_mixed,
            )
        )
    return tuple(found)


def _nodes_of(topology: MeshTopology, ranks: Integers) -> Integers:
    devices = topology.device_of(ranks)
    if topology.cluster.is_mixed:
        return topology.places.node[devices]
    return devices // topology.cluster.node.devices


def storage_links(loader: Loader, cluster: Cluster, devices: Integers) -> tuple[LinkUse, ...]:
    """Return the links from storage: one per node, or one shared by all nodes.

    Args:
        cluster: Of equal nodes.
        devices: Device of each rank.
    """
    node = devices // cluster.node.devices
    return (
        LinkUse(
            name="storage",
            load="storage_bytes",
            of_rank=np.zeros_like(node) if loader.storage_shared else node,
            bandwidth_bytes_per_s=storage_bytes_per_s(loader, cluster.node),
            one_way=True,
        ),
    )


def check_host_memory(loading: Sequence[Loading]) -> None:
    """Raise a StrategyError if prefetched batches do not fit in a node's memory."""
    for each in loading:
        held, capacity = each.on_node * each.host_bytes, each.node.host.memory_bytes
        if held > capacity:
            raise StrategyError(
                {
                    "data.loader.prefetch": f"{each.loader.workers} workers of {each.on_node} "
                    f"loaders make {each.loader.prefetch} micro-batches each ahead: "
                    f"{format_bytes(held)} of host memory on a {each.node.name}, which has "
                    f"{format_bytes(capacity)}; use fewer workers or a lower prefetch"
                }
            )
