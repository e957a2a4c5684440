"""Shards cover a width, and the order of peers names each once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.errors import StrategyError
from wattree.runtime import peers_of
from wattree.runtime.shards import shard_offsets, shard_widths


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_shards_add_up_and_differ_by_at_most_one(width: int, size: int) -> None:
    """Every feature has one owner, and no rank waits long for another."""
    if width < size:
        with pytest.raises(StrategyError):
            shard_widths(width, size)
        return
    widths = shard_widths(width, size)

    assert sum(widths) == shard_offsets(widths)[-1] == width
    assert max(widths) - min(widths) == (width % size > 0)
    assert sorted(widths, reverse=True) == list(widths)


@given(st.integers(1, 300), st.data())
def test_peers_are_all_others(size: int, data: st.DataObject) -> None:
    """One block moves at most: the last rank's, into the place of the own one."""
    rank = data.draw(st.integers(0, size - 1))
    peers = peers_of(rank, size)

    assert sorted((*peers, rank)) == list(range(size))
    assert sum(place != peer for place, peer in enumerate(peers)) == (rank < size - 1)
