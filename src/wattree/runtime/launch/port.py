"""Reserves a rendezvous port until the ranks bind it.

References:
    `socket(7)`, `SO_REUSEADDR`: on Linux sockets that both allow it may have one port while none of
    them listens; `ip(7)`: a port that is not named is one that no socket has.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port while the block runs; yield its number.

    Ranks need seconds until one of them listens there. A port that was only found free may be given
    to another job by then, or to a connection. This one is taken, by a socket that does not listen:
    a process that names the port and allows its reuse, as stores of torch do, may listen too.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":  # other systems let no second socket listen
            holder.close()
        yield port
