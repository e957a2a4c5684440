"""A caching allocator of device memory: allocates and frees blocks for tensors.

Freed blocks are cached and reused, best fit first; blocks that no request fits into are lost
to fragmentation. One policy for each allocator in use:

- PyTorch's caching allocator [1]: requests are rounded up to 512 B. Those of at most 1 MiB are cut
  from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones get a segment of
  their size, rounded up to 2 MiB. A cached block is split if at least 512 B (small pool) or more
  than 1 MiB (large pool) remain; free neighbours in a segment merge; streams share no blocks.
- The same with `expandable_segments:True` [1, 2]: one segment per stream and pool, which grows by
  pages of 2 MiB (small pool) and 20 MiB (large pool), so blocks are always split.
- The best-fit allocator with coalescing of TensorFlow and JAX [3]: requests are rounded up to
  256 B and cut from one region. JAX takes three quarters of the device for it beforehand [4];
  what is counted here is how far into that region the tensors reach.

Streams are distinguished, but a block that another stream still reads is not held back (PyTorch's
`record_stream`). Where a request would go beyond the device's memory, whole segments that no one
uses (of one that grows: its free end) are given back first, as PyTorch does before it gives up.

References:
    [1] PyTorch, c10/cuda/CUDACachingAllocator.cpp: `kMinBlockSize`, `kSmallSize`, `kSmallBuffer`,
        `kLargeBuffer`, `kMinLargeAlloc`, `kRoundLarge`, `should_split`, `get_allocation_size`.
    [2] PyTorch, "CUDA semantics", memory management: `PYTORCH_CUDA_ALLOC_CONF`.
    [3] TensorFlow / OpenXLA, framework/bfc_allocator: `kMinAllocationBits` = 8, `SplitChunk`.
    [4] JAX, "GPU memory allocation": `XLA_PYTHON_CLIENT_MEM_FRACTION` = 0.75.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from wattree.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """How one pool requests and splits segments. [B]

    Attributes:
        segment: Size of a segment for requests below `whole_from`; the page of one that grows.
        whole_from: Requests from here on get a segment of their own size.
        round_whole: That size is rounded up to a multiple of this.
        least_rest: A block is split if at least this much remains.
        grows: There is one segment, which grows by pages, instead of many.
    """

    segment: int
    whole_from: int
    round_whole: int
    least_rest: int
    grows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPolicy:
    """Policies of one allocator.

    Attributes:
        rounding: Requests are rounded up to a multiple of this. [B]
        small_up_to: Largest request of the small pool. [B]
        streams: Streams have pools of their own.
    """

    rounding: int
    small_up_to: int
    small: PoolPolicy
    large: PoolPolicy
    streams: bool = True


_MIB = 2**20
_SMALL = PoolPolicy(segment=2 * _MIB, whole_from=1 << 62, round_whole=1, least_rest=512)
_REGION = PoolPolicy(segment=256, whole_from=1 << 62, round_whole=1, least_rest=256, grows=True)

#: By the word that a software family uses for it.
ALLOCATORS: Mapping[str, AllocatorPolicy] = {
    "caching": AllocatorPolicy(
        rounding=512,
        small_up_to=_MIB,
        small=_SMALL,
        large=PoolPolicy(
            segment=20 * _MIB, whole_from=10 * _MIB, round_whole=2 * _MIB, least_rest=_MIB + 1
        ),
    ),
    "expandable": AllocatorPolicy(
        rounding=512,
        small_up_to=_MIB,
        small=PoolPolicy(
            segment=2 * _MIB, whole_from=1 << 62, round_whole=1, least_rest=512, grows=True
        ),
        large=PoolPolicy(
            segment=20 * _MIB, whole_from=1 << 62, round_whole=1, least_rest=512, grows=True
        ),
    ),
    "bfc": AllocatorPolicy(
        rounding=256, small_up_to=-1, small=_REGION, large=_REGION, streams=False
    ),
}


def allocator_policy(name: str) -> AllocatorPolicy:
    """Return the allocator named `name`; raise `UnknownNameError` if there is none."""
    if name not in ALLOCATORS:
        raise UnknownNameError(kind="allocator", name=name, known=ALLOCATORS)
    return ALLOCATORS[name]


@dataclass(slots=True, eq=False)
class _Block:
    """A contiguous part of a segment. [B]"""

    size: int
    order: int  # among blocks: equal sizes are reused oldest first
    pool: _Pool
    free: bool = False
    before: _Block | None = None
    after: _Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.order


@dataclass(slots=True, eq=False)
class _Pool:
    """The blocks of one kind of request."""

    policy: PoolPolicy
    free: list[tuple[int, int]] = field(default_factory=list)  # ascending
    blocks: dict[int, _Block] = field(default_factory=dict)  # free ones, by order
    last: _Block | None = None  # of a segment that grows

    def put(self, block: _Block) -> None:
        block.free = True
        insort(self.free, block.key)
        self.blocks[block.order] = block

    def remove(self, block: _Block) -> None:
        block.free = False
        del self.free[bisect_left(self.free, block.key)]
        del self.blocks[block.order]

    def best_fit(self, size: int) -> _Block | None:
        at = bisect_left(self.free, (size, -1))
        return self.blocks[self.free[at][1]] if at < len(self.free) else None


@dataclass(slots=True)
class CachingAllocator:
    """State of a caching allocator. [B]

    Attributes:
        allocated: Held by tensors now, each rounded up.
        capacity: What the device has for it; beyond that it first gives back what it can.
        reserved: Taken from the device.
        peak_allocated, peak_reserved: Highest of each so far.
        retries: Requests before which segments had to be given back.
    """

    policy: AllocatorPolicy
    capacity: float = math.inf
    allocated: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    retries: int = 0
    _pools: dict[Hashable, _Pool] = field(default_factory=dict)
    _orders: int = 0

    @property
    def pools(self) -> tuple[_Pool, ...]:
        """The pools that have been used so far."""
        return tuple(self._pools.values())

    def take(self, size_bytes: float, stream: Hashable = 0) -> _Block:
        """Return a block for a tensor that `stream` allocates."""
        rounding = self.policy.rounding
        size = max(rounding, -(-int(size_bytes) // rounding) * rounding)
        small = size <= self.policy.small_up_to
        pool = self._pool(stream if self.policy.streams else 0, small=small)
        block = pool.best_fit(size)
        if block is not None:
            pool.remove(block)
        else:
            block = self._grown(pool, size) if pool.policy.grows else self._segment(pool, size)
        if block.size - size >= pool.policy.least_rest:
            self._split(block, size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def give(self, block: _Block) -> None:
        """Free a block and merge it with free neighbours."""
        self.allocated -= block.size
        pool = block.pool
        for other in (block.before, block.after):
            if other is not None and other.free:
                pool.remove(other)
                self._merge(block, other)
        pool.put(block)

    def _pool(self, stream: Hashable, *, small: bool) -> _Pool:
        key = stream, small
        if key not in self._pools:
            self._pools[key] = _Pool(self.policy.small if small else self.policy.large)
        return self._pools[key]

    def _new(self, pool: _Pool, size: int) -> _Block:
        self._orders += 1
        return _Block(size, self._orders, pool)

    def _segment(self, pool: _Pool, size: int) -> _Block:
        policy = pool.policy
        whole = -(-size // policy.round_whole) * policy.round_whole
        block = self._new(pool, policy.segment if size < policy.whole_from else whole)
        self._reserve(block.size)
        return block

    def _reserve(self, size: int) -> None:
        """Reserve memory on the device; release cached memory first if the device is full."""
        if self.reserved + size > self.capacity:
            given = sum(self._give_back(pool) for pool in self._pools.values())
            self.reserved -= given
            self.retries += given > 0
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    @staticmethod
    def _give_back(pool: _Pool) -> int:
        """Release the unused memory of a pool; return its size. [B]"""
        unused = [
            block
            for block in pool.blocks.values()
            if block.after is None and (pool.policy.grows or block.before is None)
        ]
        for block in unused:
            pool.remove(block)
            if block.before is not None:
                block.before.after = None
            if pool.last is block:
                pool.last = block.before
        return sum(block.size for block in unused)

    def _grown(self, pool: _Pool, size: int) -> _Block:
        """Return a block at the end of the pool's segment; the segment grows as needed."""
        page, last = pool.policy.segment, pool.last
        block = last if last is not None and last.free else self._new(pool, 0)
        if block is last:
            pool.remove(block)
        elif last is not None:
            block.before, last.after = last, block
        more = -(-(size - block.size) // page) * page
        pool.last = block
        self._reserve(more)
        block.size += more
        return block

    def _split(self, block: _Block, size: int) -> None:
        pool = block.pool
        rest = self._new(pool, block.size - size)
        block.size = size
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.after = rest
        if pool.last is block:
            pool.last = rest
        pool.put(rest)

    @staticmethod
    def _merge(block: _Block, other: _Block) -> None:
        """Merge a block with a neighbour that was removed from the free list."""
        block.size += other.size
        if other is block.before:
            block.before = other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        if block.pool.last is other:
            block.pool.last = block
