"""Small messages between all pairs of a group at once, by gloo's all-to-all.

It takes a third of the processor time of as many sends and receives, of which most goes into waking
threads. It is not for large messages: notes "ready to receive" share a connection with data of the
other direction, and now and then wait behind all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Most of what goes from one rank to another. [B]
_MOST_BYTES = 64 * 1024


def is_small(out: Mapping[int, Tensor]) -> bool:
    """Return whether messages, all of one size, are better exchanged at once."""
    one = next(iter(out.values()))
    return one.device.type == "cpu" and one.nbytes <= _MOST_BYTES


def start_at_once(
    process_group: Any,
    size: int,
    out: Mapping[int, Tensor],
    into: Mapping[int, Tensor],
    finish: Callable[[], Tensor],
) -> tuple[Any, Callable[[], Tensor]]:
    """Start the exchange.

    Args:
        process_group: Of torch.distributed.
        out: Peer → what it is sent; all of one size, on all ranks.
        into: Peer → where what it sends belongs.

    Returns:
        A handle of torch.distributed, and what gives the result when that is done.
    """
    peers = sorted(out)
    count = out[peers[0]].numel()
    sending = torch.cat([out[peer].reshape(-1) for peer in peers])
    receiving = torch.empty_like(sending)
    splits = [count if peer in out else 0 for peer in range(size)]
    handle = dist.all_to_all_single(
        receiving, sending, splits, splits, group=process_group, async_op=True
    )

    def settled() -> Tensor:
        for peer, received in zip(peers, receiving.split(count), strict=True):
            into[peer].copy_(received.view_as(into[peer]))
        return finish()

    return handle, settled
