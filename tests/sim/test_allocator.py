"""Models of caching allocators: PyTorch's rules on small sequences, and bounds on any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import UnknownNameError
from wattree.sim.allocator import ALLOCATORS, CachingAllocator, allocator_policy

MIB = 2**20


def caching(**options: float) -> CachingAllocator:
    """Return an allocator with PyTorch's defaults."""
    return CachingAllocator(allocator_policy("caching"), **options)


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        # From 10 MiB on the segment is the request's, and what does not exceed 1 MiB stays on it.
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
        (32 * MIB, 32 * MIB, 32 * MIB),
    ],
)
def test_a_first_tensor_takes_a_segment_by_its_size(
    size: int, allocated: int, reserved: int
) -> None:
    """512 B blocks; segments of 2 MiB, 20 MiB, or the size in steps of 2 MiB (PyTorch)."""
    allocator = caching()

    allocator.take(size)

    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_what_was_given_back_is_handed_out_again() -> None:
    """The best fit among free blocks, not the first."""
    allocator = caching()
    large, small = allocator.take(64 * MIB), allocator.take(32 * MIB)
    allocator.give(large)
    allocator.give(small)

    again = allocator.take(31.5 * MIB)

    assert again.size == 32 * MIB  # half a MiB is not worth a split
    assert allocator.reserved == 96 * MIB


def test_free_neighbours_merge_within_a_segment_only() -> None:
    """Two halves of one segment serve the whole, two segments do not."""
    one, two = caching(), caching()
    whole = one.take(64 * MIB)
    one.give(whole)
    halves = [one.take(32 * MIB) for _ in range(2)]
    apart = [two.take(32 * MIB) for _ in range(2)]
    for allocator, blocks in ((one, halves), (two, apart)):
        for block in blocks:
            allocator.give(block)
        allocator.take(64 * MIB)

    assert one.reserved == 64 * MIB
    assert two.reserved == 128 * MIB  # fragmentation: half of it fits no one


def test_a_segment_that_grows_has_no_walls() -> None:
    """`expandable_segments`: the same two halves do serve the whole."""
    allocator = CachingAllocator(allocator_policy("expandable"))
    for block in [allocator.take(40 * MIB) for _ in range(2)]:
        allocator.give(block)

    allocator.take(80 * MIB)

    assert allocator.reserved == 80 * MIB


def test_streams_share_no_blocks() -> None:
    """What the gathering stream frees is not for the computing one."""
    allocator = caching()
    allocator.give(allocator.take(64 * MIB, "gather"))

    allocator.take(64 * MIB, "compute")

    assert allocator.reserved == 128 * MIB


def test_cached_segments_are_given_back_before_memory_runs_out() -> None:
    """Two halves in the cache, and room for no more: they go, and the whole comes."""
    allocator = caching(capacity=64 * MIB)
    for block in [allocator.take(32 * MIB) for _ in range(2)]:
        allocator.give(block)

    allocator.take(64 * MIB)

    assert (allocator.reserved, allocator.retries) == (64 * MIB, 1)


def test_an_unknown_allocator_is_refused() -> None:
    """With the known ones."""
    with pytest.raises(UnknownNameError, match="bfc, caching, expandable"):
        allocator_policy("jemalloc")


steps = st.lists(
    st.tuples(st.booleans(), st.integers(1, 40 * MIB), st.sampled_from(["", "gather"])),
    max_size=120,
)


@given(name=st.sampled_from(sorted(ALLOCATORS)), steps=steps, tight=st.booleans())
def test_no_allocator_holds_less_than_its_tensors(
    name: str, steps: list[tuple[bool, int, str]], *, tight: bool
) -> None:
    """No memory is allocated twice, and after all frees the whole cache is free."""
    policy = allocator_policy(name)
    allocator = CachingAllocator(policy, capacity=200 * MIB if tight else float("inf"))
    held = []
    tensors = most = 0
    for takes, size, stream in steps:
        if takes or not held:
            block = allocator.take(size, stream)
            assert block.size >= size
            held.append((block, size))
            tensors += size
        else:
            block, freed = held.pop(size % len(held))
            allocator.give(block)
            tensors -= freed
        most = max(most, tensors)
        assert tensors <= allocator.allocated == sum(block.size for block, _ in held)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved
    for block, _ in held:
        allocator.give(block)

    assert allocator.allocated == 0
    assert most <= allocator.peak_allocated <= allocator.peak_reserved
    free = sum(size for pool in allocator.pools for size, _ in pool.free)
    assert free == allocator.reserved
