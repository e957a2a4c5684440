"""Pass 6: bytes of parameters, gradients, optimizer state, and of their synchronization."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Software
from wattree.lowering.optimizer_state import UpdateKinds
from wattree.lowering.program import BlockProgram, ParameterGroup, Scale
from wattree.strategy import Offload

#: Of a gradient in fp32, and of one of a matmul in 16 bits. [B]
_FULL_BYTES, _HALF_BYTES = 4.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    """Traffic of one parameter group of one block.

    Attributes:
        gather_axes: Parameters are gathered over these for use (FSDP); empty if whole.
        gather_bytes: The gathered whole. [B]
        scatter_axes: Gradients are reduce-scattered over these.
        reduce_axes: Then (or only) all-reduced over these.
        reduce_bytes: Gradients before reduction. [B]
        update_axes: Updated parameters are gathered over these after the step (ZeRO-1, 2).
        every_micro_batch: Reduced after each micro-batch, not only after the last.
        stored_as_shards: Gradients are stored as shards, not whole.
        gather_copy_bytes: Traffic of what copies parameters out of one tensor once gathered. [B]
        reduce_copy_bytes: Traffic of what copies gradients into one tensor to reduce. [B]
        live_share: How much of the whole is in memory at once.
    """

    gather_axes: tuple[str, ...]
    gather_bytes: Floats
    scatter_axes: tuple[str, ...]
    reduce_axes: tuple[str, ...]
    reduce_bytes: Floats
    update_axes: tuple[str, ...]
    every_micro_batch: bool
    stored_as_shards: bool
    gather_copy_bytes: Floats
    reduce_copy_bytes: Floats
    live_share: float

    @property
    def is_staged(self) -> bool:
        """Return whether gradients are stored as shards, so that whole ones need a buffer."""
        return self.stored_as_shards and bool(self.scatter_axes)


def together(
    sync: Iterable[SyncGroup], axes: Callable[[SyncGroup], Any], size: Callable[[SyncGroup], Any]
) -> dict[Any, Any]:
    """Return axes → sizes of the groups over them, which one collective moves."""
    found: dict[Any, Any] = {}
    for group in sync:
        if any(own := axes(group)):
            found[own] = found[own] + size(group) if own in found else size(group)
    return found


_SYNC_ARRAYS = ("gather_bytes", "reduce_bytes", "gather_copy_bytes", "reduce_copy_bytes")
#: Of tables that wait behind the device; None without any.
_TIER2_ARRAYS = ("tier2", "rows_in", "rows_out", "tier2_elements")
_ARRAYS = (
    *("parameters", "gradients", "lasting_gradients", "optimizer", "updated_elements"),
    *(*_TIER2_ARRAYS, "cache", "update_flop", "wider_state"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The memory of a block's parameters on one rank, arrays over `n` strategies. [B]

    Attributes:
        parameters, gradients, optimizer: Resident bytes.
        lasting_gradients: Of the gradients, what stays from one step to the next.
        updated_elements: Parameters this rank's optimizer updates.
        update_flop: Of products of matrices in an update; None without any.
        wider_state: With them, state of `updated_elements` beyond as much as matrices have. [B]
        tier2: Parameters and optimizer state of tables that wait behind the device.
        rows_in, rows_out: Looked-up rows of those that a micro-batch brings in, and their gradients
            that it sends out.
        tier2_elements: Parameters of those that the host updates.
        cache: Keys and values of all sequences of the rank; None where no tokens are generated.
        weights: Operator and size → its weight, or that of one of its experts, where the software
            keeps a tensor of that shape for gradients.
    """

    parameters: Floats
    gradients: Floats
    lasting_gradients: Floats
    optimizer: Floats
    updated_elements: Floats
    sync: tuple[SyncGroup, ...]
    tier2: Floats | None = None
    rows_in: Floats | None = None
    rows_out: Floats | None = None
    tier2_elements: Floats | None = None
    cache: Floats | None = None
    update_flop: Floats | None = None
    wider_state: Floats | None = None
    weights: Mapping[Hashable, Floats] = field(default_factory=dict)

    def at(self, level: int) -> Storage:
        """Return the figures for ranks of one level."""
        if len(self.parameters) == 1:
            return self
        own = slice(level, level + 1)
        arrays: dict[str, Any] = {
            name: None if (part := getattr(self, name)) is None else part[own] for name in _ARRAYS
        }
        return Storage(
            **arrays,
            weights={key: size[own] for key, size in self.weights.items()},
            sync=tuple(
                replace(group, **{name: getattr(group, name)[own] for name in _SYNC_ARRAYS})
                for group in self.sync
            ),
        )


def block_storage(
    program: BlockProgram,
    scale: Scale,
    software: Software,
    updates: UpdateKinds,
    *,
    reduce_every_micro_batch: bool | None = None,
    samples: float | None = None,
    offload: Offload | None = None,
    reshards: bool = True,
) -> Storage:
    """Return the memory and traffic of the parameters of one block.

    Args:
        offload: Whether tables wait behind the device.
        updates: How the optimizer treats parameters of each kind.
        reduce_every_micro_batch: Gradients leave after each micro-batch, or only after the last,
            until when each rank sums them up whole (`no_sync` of PyTorch's FSDP); None: after each
            if they are sharded.
        samples: Of a step, which touch rows of tables; None: those of a micro-batch.
        reshards: What is gathered is dropped after its use, and not kept from forward to backward.
    """
    zero = np.zeros_like(scale.micro_batch)
    has_tier2 = offload is not None and offload.tables is not None
    has_tier2 = has_tier2 and any(group.touched is not None for group in program.parameters)
    sums = _Taken(*[zero] * len(_Taken._fields))
    sync, updated = [], []
    for group in program.parameters:
        elements = scale.value(group.elements)
        taken = _taken(
            group,
            elements,
            scale,
            software,
            updates.state_bytes(group),
            often=reduce_every_micro_batch,
            samples=samples,
            offload=offload if has_tier2 else None,
        )
        sums = _Taken(*map(np.add, sums, taken))
        updated.append((group, taken.updated_elements, scale.degree(_optimizer_axes(group))))
        alone = reshards and software.gathers_tensors
        often = reduce_every_micro_batch
        sync.append(_sync(group, elements, software, often=often, by_tensor=alone))
    own: dict[str, Any] = sums._asdict()
    if not has_tier2:
        own |= dict.fromkeys(_TIER2_ARRAYS)
    if (first := _first(scale)) is not None:
        own |= {name: own[name] * first for name in ("optimizer", "updated_elements")}
    return Storage(
        **own,
        sync=tuple(sync),
        **updates.work(scale, updated, first),
        cache=_cache_bytes(program, scale, software, samples),
        weights=_placeholders(program, scale, software),
    )


def _placeholders(
    program: BlockProgram, scale: Scale, software: Software
) -> Mapping[Hashable, Floats]:
    """Return operator and weight → its tensor without values, where the software keeps one. [B]"""
    kept = program.weights if software.placeholder_gradients else ()
    return {each: scale.value(each[1]) * software.parameter_bytes for each in kept}


def _cache_bytes(
    program: BlockProgram, scale: Scale, software: Software, samples: float | None
) -> Floats | None:
    """Return the KV cache of a rank's sequences, those of all micro-batches together. [B]"""
    if not program.cache:
        return None
    elements = sum((scale.value(size) for size in program.cache), np.zeros_like(scale.micro_batch))
    batch = scale.micro_batch * scale.degree(scale.batch_axes)
    times = 1.0 if samples is None else samples / batch
    return np.asarray(elements * times * software.cache_bytes)


class _Taken(NamedTuple):
    """The memory of a group of parameters, with the fields of `Storage`."""

    parameters: Floats
    gradients: Floats
    lasting_gradients: Floats
    optimizer: Floats
    updated_elements: Floats
    tier2: Floats
    rows_in: Floats
    rows_out: Floats
    tier2_elements: Floats


def _taken(
    group: ParameterGroup,
    elements: Floats,
    scale: Scale,
    software: Software,
    state_bytes: float,
    *,
    often: bool | None,
    samples: float | None,
    offload: Offload | None,
) -> _Taken:
    """Return the memory of a group with a number of local elements."""
    zero = np.zeros_like(elements)
    parameters, gradients, lasting, optimizer, updated = zero, zero, zero, zero, zero
    tier2, rows_in, rows_out, tier2_elements = zero, zero, zero, zero
    near = 1.0
    state = software.master_bytes + software.master_gradient_bytes + state_bytes
    gathered = bool(group.parameter_axes)
    width = software.stored_bytes(
        trainable=group.trainable, gathered=gathered, quantized=group.stored_bytes
    )
    if offload is not None and group.touched is not None:
        near, missed = offload.cached, 1.0 - offload.hits
        rows = scale.value(group.touched) * missed
        tier2 = (1.0 - near) * elements * (width + state * group.trainable)
        rows_in = rows * width
        if group.trainable:
            rows_out = rows * software.gradient_bytes
    if not group.tied:
        shards = scale.degree(group.parameter_axes)
        parameters = near * width * elements / shards
    if group.trainable and group.tied and not _keeps_gradients(software, scale):
        # Autograd adds up the gradients of a shared parameter when all of them are there.
        gradients = software.gradient_bytes * elements / scale.degree(_gradient_axes(group, often))
    elif group.trainable and not group.tied:
        shards = scale.degree(_optimizer_axes(group))
        touched = _touched(group, elements, scale, software, samples)
        own = touched / scale.degree(_gradient_axes(group, often))
        if (first := _first(scale)) is not None:
            own = own * (1.0 + first)  # the sum in addition to those of its replica
        gradients = software.gradient_bytes * own
        lasting = gradients * _lasts(group, scale, software)
        optimizer = near * state * elements / shards
        here = touched if near == 1.0 or offload is None else touched * offload.hits
        updated, tier2_elements = here / shards, (touched - here) / shards
    return _Taken(
        parameters, gradients, lasting, optimizer, updated, tier2, rows_in, rows_out, tier2_elements
    )


def _lasts(group: ParameterGroup, scale: Scale, software: Software) -> Floats:
    """Return 1 where gradients stay from one step to the next, else 0.

    Where replicas reduce them, memory for them does: PyTorch's DDP makes its buckets once, and what
    FSDP allocates on the stream of its reductions stays reserved for that stream.
    """
    if _keeps_gradients(software, scale):
        return np.ones_like(scale.micro_batch)
    return (scale.degree(group.partial_axes) > 1).astype(np.float64)


def _keeps_gradients(software: Software, scale: Scale) -> bool:
    """Return whether all gradients stay: ranks that own unlike parts do the same tasks."""
    return software.keeps_gradients or scale.load is not None


def _touched(
    group: ParameterGroup,
    elements: Floats,
    scale: Scale,
    software: Software,
    samples: float | None,
) -> Floats:
    """Return the elements that get gradients in a step: all, but of rows that are looked up."""
    sparse = software.sparse_gradients and not group.partial_axes
    if group.touched is None or not sparse:
        return elements
    batch = scale.micro_batch * scale.degree(scale.batch_axes)
    often_each = 1.0 if samples is None else samples / batch
    return np.minimum(elements, often_each * scale.value(group.touched))


def _first(scale: Scale) -> Floats | None:
    """Return 1 for ranks that update and 0 for others, where the first alone updates."""
    return None if scale.load is None else scale.load.first


def _gradient_axes(group: ParameterGroup, often: bool | None) -> tuple[str, ...]:  # noqa: FBT001
    return () if often is False else group.gradient_axes or group.parameter_axes


def _optimizer_axes(group: ParameterGroup) -> tuple[str, ...]:
    return group.optimizer_axes or group.gradient_axes or group.parameter_axes


def _copies(width: float, software: Software) -> tuple[float, float]:
    """Return the traffic of copies of sharded parameters of a width, and of their gradients. [B]

    A copy out of the gathered tensor reads and writes. Gradients, no narrower than 16 bits, are
    cast as they are copied in; a concatenation leaves their width.
    """
    gradient = max(width, _HALF_BYTES)
    return {
        "none": (0.0, 0.0),
        "gradients": (0.0, 2.0 * gradient),
        "both": (2.0 * width, gradient + software.reduce_bytes),
    }[software.shard_copies]


def _sync(
    group: ParameterGroup,
    elements: Floats,
    software: Software,
    *,
    often: bool | None,
    by_tensor: bool,
) -> SyncGroup:
    scatter = _optimizer_axes(group) if group.trainable else ()
    rest = tuple(axis for axis in group.partial_axes if axis not in scatter)
    sharded = bool(group.parameter_axes)
    stored_as_shards = bool(group.gradient_axes) or sharded
    if often is None:
        often = stored_as_shards
    shared = 0.0 * elements if group.owned else elements  # no one else has what a rank owns
    width = group.stored_bytes or software.gather_bytes
    copied_out, copied_in = _copies(width, software) if sharded else (0.0, 0.0)
    return SyncGroup(
        gather_axes=group.parameter_axes,
        gather_bytes=shared * width,
        scatter_axes=scatter,
        reduce_axes=rest if group.trainable else (),
        reduce_bytes=shared * software.reduce_bytes,
        update_axes=() if sharded or not group.trainable else scatter,
        every_micro_batch=often,
        stored_as_shards=stored_as_shards and often,
        gather_copy_bytes=shared * copied_out,
        reduce_copy_bytes=shared * (copied_in * group.trainable),
        live_share=group.largest_share if sharded and by_tensor else 1.0,
    )


def sharded_bytes(sync: Sequence[SyncGroup], like: Floats) -> Floats:
    """Return the gradients of which each rank updates a part, an array as `like` is. [B]"""
    return sum((group.reduce_bytes for group in sync if group.update_axes), np.zeros_like(like))


def postponed_bytes(updated: Floats, software: Software) -> Floats:
    """Return the copies of gradients that ZeRO-3 makes only when it has dropped others. [B]

    It updates its parameters in groups, and has the copies of one of them at a time.
    """
    if not software.zero_group_elements:
        return np.zeros_like(updated)
    return software.master_gradient_bytes * np.maximum(updated - software.zero_group_elements, 0.0)


def buffer_bytes(whole: Floats, updated: Floats, software: Software) -> Floats:
    """Return the memory that a sharded optimizer adds for its communication. [B]

    Tensors of an update follow each other, and each takes the memory of an earlier one that is as
    large: the copy of a rank's own gradients that of the bucket.

    Args:
        whole: Gradients of a rank, of which it updates a part. [B]
    """
    own = updated * software.reduce_bytes
    bucket = np.minimum(whole, software.zero_bucket_bytes)
    found = np.maximum(bucket - own, 0.0)
    if software.zero_gather_bytes:
        gathered = whole / np.maximum(np.floor(whole / software.zero_gather_bytes), 1.0)
        earlier = np.maximum(bucket, updated * _FULL_BYTES)
        found = found + np.where(gathered > earlier, gathered, 0.0)
    return np.asarray(found)
