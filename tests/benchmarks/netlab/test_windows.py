"""Fixed windows through queues, against what can be written down."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.netlab.windows import Way, window_rates

#: Links: of hosts 0 to 3 to their switch, then from it to them.
RATE = np.full(8, 10.0)


def between(source: int, target: int) -> Way:
    """Return the way from host to host through one switch."""
    return Way(data=(source, 4 + target), acknowledgements=(target, 4 + source))


@pytest.mark.parametrize("senders", [2, 3])
def test_a_connection_waits_for_acknowledgements_behind_data(senders: int) -> None:
    """Windows of all senders wait at host 0, and so do acknowledgements of what it sends."""
    ways = (*(between(1 + k, 0) for k in range(senders)), between(0, 1))
    rates, is_held = window_rates(ways, RATE)

    assert rates == pytest.approx([10.0 / senders] * (senders + 1), rel=0.02)
    assert is_held.tolist() == [True] * senders + [False]


def test_connections_both_ways_fill_their_links() -> None:
    """Half of each window waits at either end, and neither link is ever empty."""
    rates, _ = window_rates((between(0, 1), between(1, 0)), RATE)

    assert rates == pytest.approx([10.0, 10.0], rel=0.02)


def test_a_way_through_two_queues_gets_half_of_one_through_one() -> None:
    """A parking lot: a third and two thirds, not the halves of max-min."""
    ways = (
        Way(data=(0, 1), acknowledgements=()),
        Way(data=(0,), acknowledgements=()),
        Way(data=(1,), acknowledgements=()),
    )
    rates, is_held = window_rates(ways, RATE)

    assert rates == pytest.approx([10 / 3, 20 / 3, 20 / 3], rel=0.02)
    assert is_held.all()
