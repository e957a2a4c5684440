"""Block costs with several processes per device: one process while the others run.

The graph of a step is that of one process on each device. Where others share its device, a block
takes as long as the closed queue says (`wattree.cost.colocation`): the host's time for its launches
that no kernel hides is think time, kernels are the demand. FLOP and memory traffic count all
processes, as they are what the device does; memory and messages stay those of one.

All processes of a device go through a step together, as they end it together, so a block meets the
same block of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.cost.colocation import alternating, barrier_s, capacity_of_fill
from wattree.cost.sharing import DeviceSharing, element_fill, matmul_fill
from wattree.graph import OperatorKind
from wattree.hardware import Cluster
from wattree.hardware.mps import sharing_misfit
from wattree.lowering.program import ComputeInstruction, LocalSize, Scale, matmul_shape
from wattree.strategy import MPS, AxisRole, Strategy

#: Query positions that a thread block of a fused attention kernel takes (Dao, "FlashAttention-2",
#: 2023, section 3.2: blocks of 64 or 128).
_QUERIES = 128.0


class SharedWork(NamedTuple):
    """Queueing terms of one process that shares its device, per phase of a block, `(n,)` each.

    Attributes:
        think_s: Host time that no kernel of the process hides. [s]
        demand_s: Its kernels, alone. [s]
        residence_s: The same with the other processes: kernels and queueing. [s]
        filled_s: Kernels, weighted by the share of the device that they fill. [s]
        variance_s2: Of its time, which the barrier at the end of a step waits for. [s^2]
    """

    think_s: Floats
    demand_s: Floats
    residence_s: Floats
    filled_s: Floats
    variance_s2: Floats

    @property
    def stretch(self) -> Floats:
        """Return the factor by which kernel times grow to fill the time of the block."""
        span = self.think_s + self.residence_s
        return np.asarray(span / np.maximum(self.demand_s, 1e-300))

    def plus(self, other: SharedWork) -> SharedWork:
        """Return the sum of two."""
        return SharedWork(*map(np.add, self, other))

    def times(self, count: float) -> SharedWork:
        """Return the terms of `count` micro-batches."""
        return SharedWork(*(each * count for each in self))


def shared_work(
    think_s: Floats, demand_s: Floats, filled_s: Floats, kernels: Floats, sharing: DeviceSharing
) -> SharedWork:
    """Return the queueing terms of one of the processes that share a device.

    Args:
        think_s, demand_s, filled_s: As of `SharedWork`. `(n,)`
        kernels: Kernels separated by the think time. `(n,)`
    """
    fill = filled_s / np.maximum(demand_s, 1e-300)
    found = alternating(
        think_s,
        demand_s,
        processes=sharing.processes,
        capacity=capacity_of_fill(fill) if sharing.overlaps else 1.0,
        contention=sharing.contention,
    )
    return SharedWork(
        think_s=think_s,
        demand_s=demand_s,
        residence_s=found.residence_s,
        filled_s=filled_s,
        variance_s2=found.variance_s2(think_s, kernels),
    )


def step_fill(step: ComputeInstruction, scale: Scale, sharing: DeviceSharing) -> Floats:
    """Return the share of the device's units that the kernels of a step fill, in (0, 1]."""
    if step.matmul is not None:
        return matmul_fill(*matmul_shape(step, scale), sharing.units)
    if step.kind is OperatorKind.ATTENTION:
        queries = np.ceil(scale.value(step.queries) / _QUERIES)
        blocks = scale.value(step.batch) * scale.value(step.heads) * queries
        return np.asarray(np.minimum(blocks / sharing.units, 1.0))
    return element_fill(_most(step.traffic, scale), sharing)


def _most(sizes: Sequence[LocalSize], scale: Scale) -> Floats:
    found = np.zeros_like(scale.micro_batch)
    for size in sizes:
        found = np.maximum(found, scale.value(size))
    return found


def step_barrier_s(work: SharedWork, processes: int) -> Floats:
    """Return how long a process waits for the last of its device at the end of a step. [s]"""
    return barrier_s(work.variance_s2, processes=processes)


def colocation_misfits(strategy: Strategy, cluster: Cluster) -> dict[str, str]:
    """Return path → why several processes cannot share each device."""
    colocation = strategy.colocation
    if not colocation.is_several:
        return {}
    several = f"together with processes_per_device {colocation.processes}"
    whole = f"{several}, whose processes are whole replicas"
    found = {
        f"strategy.mesh.{axis}": f"found {strategy.mesh.degree(axis)} {whole}; expected 1: use dp"
        for axis, role in strategy.roles.items()
        if role is not AxisRole.DATA and strategy.mesh.degree(axis) > 1
    }
    nodes = strategy.tree.nodes.items()
    for pattern, node in nodes:
        stored = (node.memory.parameters, node.memory.gradients, node.memory.optimizer)
        if any(stored):
            found[f"strategy.tree.{pattern!r}.memory"] = f"found shards {whole}; replicate them"
        if node.sync_batch_norm:
            found[f"strategy.tree.{pattern!r}.sync_batch_norm"] = f"found {whole}; leave it out"
    if strategy.single_process:
        found["strategy.single_process"] = f"found {whole}; leave one of them out"
    if strategy.traffic.offload.tiers:
        found["strategy.offload"] = f"found {whole} that would wait for one host; leave it out"
    device, mps = cluster.pools[0].node.device, colocation.sharing == MPS
    if misfit := sharing_misfit(device, colocation.processes, mps=mps):
        found["strategy.processes_per_device"] = misfit
    if cluster.is_mixed:
        found["cluster.pools"] = f"found different nodes {several}; expected nodes of one kind"
    return found
