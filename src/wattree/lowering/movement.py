"""Data movement of one job, resolved from its strategy and software defaults.

Both the executor's compiler and the closed form use these choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Software
from wattree.lowering.program import Scale
from wattree.lowering.storage import Storage
from wattree.lowering.streams import Stream
from wattree.lowering.tiers import Tier
from wattree.strategy import Offload, Prefetch, Strategy, StrategyOptions, Traffic

#: PyTorch DDP's default bucket (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb).
DEFAULT_BUCKET_BYTES = 25.0 * 2**20
#: Replicas below which buckets that grow with them do not (Megatron-Core).
_LEAST_REPLICAS = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Which communication runs alongside computation, and how far ahead of it.

    Attributes:
        in_line: Kinds of communication on the computation's own stream.
        gradients: They are reduced as backward makes them, not at the end of the step.
        parameters: Updated parameters are gathered during the next forward.
        pipeline: Compute goes on during transfers between stages.
        tensor: Collectives over `tp` overlap the matmuls that they feed or drain.
        tensor_pieces: Pieces of such a matmul; None: as the calibration says.
        forward_ahead, backward_ahead: A gather starts when all but this many blocks before it
            are done.
        after_reductions: In backward also when what the block before reduces is.
        reshard_after_forward: Gathered parameters are dropped between forward and backward.
    """

    in_line: frozenset[str]
    gradients: bool
    parameters: bool
    pipeline: bool
    tensor: bool
    tensor_pieces: int | None
    forward_ahead: int
    backward_ahead: int
    after_reductions: bool
    reshard_after_forward: bool

    @property
    def hides_gradients(self) -> bool:
        """Return whether gradient reductions overlap computation."""
        return self.gradients and "gradients" not in self.in_line

    @property
    def hides_updates(self) -> bool:
        """Return whether gathers of parameters that a sharded optimizer updated are overlapped."""
        return self.parameters and "parameters" not in self.in_line

    @property
    def hides_forward_gathers(self) -> bool:
        """Return whether gathers of sharded parameters overlap computation in forward."""
        return self.forward_ahead > 1 and "parameters" not in self.in_line

    @property
    def hides_backward_gathers(self) -> bool:
        """Return whether gathers of sharded parameters overlap computation in backward."""
        return self.backward_ahead > 1 and "parameters" not in self.in_line

    @property
    def gathered_copies(self) -> int:
        """Return how many blocks have gathered parameters at once, without those that stay so."""
        if not self.reshard_after_forward:
            return 0
        if "parameters" in self.in_line:
            return 1
        return max(self.forward_ahead, self.backward_ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """Data movement that runs alongside the computation of one job.

    Attributes:
        overlap: Which communication runs alongside computation.
        bucket_bytes: Gradients reduced together. [B]
        parameter_bucket_bytes: Updated parameters gathered together; 0 for block by block. [B]
        early_updates: A bucket is updated when it is reduced, not all of them at the end.
        offload: Data stored outside of the devices, and copied.
        accumulates: Where gradients add up that the host updates with (`Software`).
        tier2_offload: Data in expanded memory, which the device reads and writes in place.
        tiers: The memories in use.
        memory_bytes_per_s: Of the device, for updates. [B/s]
        tier2_bytes_per_s: The same of what is all in expanded memory. [B/s]
        update_traffic_bytes: Parameters, state of them beyond the usual [B] → what their update
            moves through memory. [B]
        update_products_s: FLOP of an update's products of matrices → time. [s]
        update_working_bytes: What an update on the device needs meanwhile, per parameter. [B]
        gradient_bytes, parameter_bytes: Stored, per element. [B]
        single_process: Samples and parameters come from the first rank before forward, gradients
            go there after backward.
        sample_bytes: Of all replicas together, where one process scatters them. [B]
        replica_axes: All axes of the mesh, over which it does; none for one rank.
    """

    overlap: Overlap
    bucket_bytes: float
    parameter_bucket_bytes: float
    early_updates: bool
    offload: Offload
    accumulates: str = "device"
    tiers: Mapping[str, Tier]
    memory_bytes_per_s: float
    update_traffic_bytes: Callable[[float, float], float]
    update_products_s: Callable[[float], float]
    update_working_bytes: float
    gradient_bytes: float
    parameter_bytes: float
    tier2_offload: Offload
    tier2_bytes_per_s: float
    single_process: bool = False
    sample_bytes: float = 0.0
    replica_axes: tuple[str, ...] = ()

    @property
    def lookahead(self) -> int:
        """Over how many blocks something waits at most."""
        overlap = self.overlap
        return max(overlap.forward_ahead, overlap.backward_ahead, self.offload.prefetch + 1, 2)

    def passing_gradients(self, storage: Storage) -> float:
        """Return the gradients of a block that come in backward and go with their last use. [B]"""
        if self.early_updates or self.offload.optimizer is not None:
            return float(storage.gradients[0])
        return float(storage.gradients[0] - storage.lasting_gradients[0])

    def sends_often(self, storage: Storage) -> bool:
        """Return whether a block's gradients leave the device after each micro-batch."""
        if self.offload.optimizer is None or self.accumulates == "device":
            return False
        # DeepSpeed on one rank is ZeRO-2 of one, whose shard is the whole.
        is_alone = self.accumulates == "both" and not self.replica_axes
        return is_alone or any(group.stored_as_shards for group in storage.sync)

    def stream(self, kind: str, own: int) -> int:
        """Return the stream of a kind of `IN_LINE`, which has one of its own unless in line."""
        return Stream.COMPUTE if kind in self.overlap.in_line else own

    def device_parameters(self, storage: Storage) -> float:
        """Return the bytes of a block's parameters that stay on the device. [B]"""
        elsewhere = self.offload.parameters or self.tier2_offload.parameters
        return 0.0 if elsewhere else float(storage.parameters[0])

    def device_optimizer(self, storage: Storage) -> float:
        """Return the bytes of a block's optimizer state that stay on the device. [B]"""
        elsewhere = self.offload.optimizer or self.tier2_offload.optimizer
        return 0.0 if elsewhere else float(storage.optimizer[0])


def resolved_overlap(choices: Strategy | StrategyOptions, software: Software) -> Overlap:
    """Return the overlap that the strategy chooses, or else the software default."""
    traffic, in_line = choices.traffic, frozenset(choices.traffic.in_line)
    parameters = _chosen(choices.traffic.overlap_parameters, software.overlap_parameters)
    prefetch = traffic.prefetch
    if prefetch is None:
        depth = 1 if parameters else 0
        prefetch = Prefetch(forward=depth, backward=depth)
    # In line, or updated at once, gradients leave where they are made.
    gradients = (
        _chosen(choices.traffic.overlap_gradients, software.overlap_gradients)
        or "gradients" in in_line
        or traffic.overlap_optimizer
    )
    return Overlap(
        in_line=in_line,
        gradients=gradients and not choices.single_process,
        parameters=parameters,
        pipeline=_chosen(traffic.overlap_pipeline, software.overlap_pipeline)
        and "pipeline" not in in_line,
        tensor=_chosen(choices.traffic.overlap_tensor, software.overlap_tensor),
        tensor_pieces=choices.traffic.tensor_pieces,
        forward_ahead=prefetch.ahead(prefetch.forward),
        backward_ahead=prefetch.ahead(prefetch.backward),
        after_reductions=prefetch.after_reductions,
        reshard_after_forward=traffic.reshard_after_forward,
    )


def resolved_traffic(traffic: Traffic, software: Software, *, pipelined: bool) -> Traffic:
    """Return the traffic where the software's pipelines reduce sharded gradients once.

    Args:
        pipelined: There is a pipeline whose stages shard gradients.
    """
    once = pipelined and software.pipelines_reduce_once
    if not once or traffic.reduce_every_micro_batch:
        return traffic
    overlaps = bool(traffic.overlap_gradients)
    return replace(traffic, reduce_every_micro_batch=False, overlap_gradients=overlaps)


def bucket_bytes(traffic: Traffic, software: Software, scale: Scale) -> Floats:
    """Return the size of gradient buckets, `(n,)`: larger for more replicas, if they go by rings.

    So each part of a ring is large against the time of its step. [B]
    """
    replicas = scale.degree((*scale.batch_axes, *scale.context_axes))
    if fixed := traffic.gradient_bucket_bytes:
        return np.full_like(replicas, fixed)
    if not software.bucket_replica_elements:
        return np.full_like(replicas, software.zero_bucket_bytes or DEFAULT_BUCKET_BYTES)
    of_replica = software.bucket_replica_elements * software.reduce_bytes
    return np.asarray(np.maximum(replicas, _LEAST_REPLICAS) * of_replica)


def parameter_bucket_bytes(traffic: Traffic, software: Software, scale: Scale) -> Floats:
    """Return the size of buckets of updated parameters, `(n,)`; 0 for block by block. [B]

    Megatron gathers parameters in the buckets of their gradients (`_ParamAndGradBucketGroup`);
    DeepSpeed's `allgather_bucket_size` has the default of its `reduce_bucket_size`.
    """
    gradients = bucket_bytes(traffic, software, scale)
    if fixed := traffic.parameter_bucket_bytes:
        return np.full_like(gradients, fixed)
    if not software.bucket_replica_elements:
        gradients = np.full_like(gradients, software.zero_bucket_bytes)
    return gradients * software.gather_bytes / software.reduce_bytes


def _chosen(choice: bool | None, default: bool) -> bool:  # noqa: FBT001 - choice and default
    return default if choice is None else choice
