"""Peers that are missing, hang or come with other shapes: a message within bounded time."""

from __future__ import annotations

import re
import time

import pytest

pytest.importorskip("torch")

from tests.distributed.ranks import RankError, run_ranks

pytestmark = pytest.mark.slow

#: More than the group's patience and the start of two processes, less than a rank hangs. [s]
BOUND_S = 250.0
DOING = "(receiving from|sending to|exchanging with)"
AT = rf"CommunicationError: rank \d of 2, layer 'mlp.up': {DOING} rank \d"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("hangs", "took more than 3 s: the other rank hangs, or runs another layer"),
        ("ends", "failed: the other rank has ended; see its own message"),
        ("other rows", "took more than 3 s: .* other shapes"),
    ],
)
def test_a_missing_peer_is_told_with_rank_and_layer(case: str, reason: str) -> None:
    """No hang, and no message of the library underneath."""
    begin_s = time.monotonic()

    with pytest.raises(RankError) as caught:
        run_ranks(2, "tests/runtime/faults.py:missing", {"how": case}, limit_s=2 * BOUND_S)

    assert time.monotonic() - begin_s < BOUND_S
    # Of two that wait in vain, the one whose time is over first ends the other.
    assert re.search(f"{AT} {reason}", "\n".join(caught.value.errors.values()))
