"""Connects launchers: the port of the first one, and the connections to it.

On one host the port is that of the loopback interface. Whoever else connects, says anything but
what a launcher of this job says, or says nothing, is dropped and noted; nothing it sends is parsed.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from wattree.errors import HandshakeError, RunError
from wattree.runtime.launch.environment import Launch
from wattree.runtime.launch.handshake import HANDSHAKE_S, Credentials, shake_hands
from wattree.runtime.launch.secret import SECRET

LOOPBACK = "127.0.0.1"
#: Connections that may be in a handshake at once; of more the oldest is dropped.
_MOST = 256
#: Most lines printed about dropped connections.
_NOTES = 16
_LOOK_EVERY_S = 0.1
#: After a refusal it is tried again: another job may have the port and end. [s]
_AGAIN_S = 1.0

Say = Callable[[str], None]


class Door:
    """The port of the first launcher, until all have connected. Each handshake has a thread.

    Args:
        say: Takes a line for the user.

    Attributes:
        come: Number of a launcher → its connection.
    """

    def __init__(self, listener: socket.socket, credentials: Credentials, say: Say) -> None:
        self._listener, self._credentials, self._say = listener, credentials, say
        self._waiting: list[socket.socket] = []
        self._faults: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._noted: set[str] = set()
        self._turn, self._is_open = threading.Lock(), True
        self.come: dict[int, socket.socket] = {}
        listener.settimeout(_LOOK_EVERY_S)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all unauthenticated connections."""
        with self._turn:
            self._is_open = False
            for link in self._waiting:
                _shut(link)

    def look(self) -> None:
        """Take the next connection, and print why others were dropped."""
        try:
            link, address = self._listener.accept()
        except OSError as error:  # none in time, it left, or no descriptor is free
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                self._drop_oldest(1)
                time.sleep(_LOOK_EVERY_S)  # without one, `accept` waits for nothing
        else:
            self._admit(link, str(address[0]))
        while not self._faults.empty():
            note = f"dropped a connection from {self._faults.get()}"
            if note not in self._noted and len(self._noted) <= _NOTES:
                self._noted.add(note)
                few = len(self._noted) <= _NOTES
                self._say(note if few else "dropped connections: no longer reported")

    def _admit(self, link: socket.socket, whom: str) -> None:
        self._drop_oldest(_MOST)
        with self._turn:
            self._waiting.append(link)
        try:
            threading.Thread(target=self._hear, args=(link, whom), daemon=True).start()
        except RuntimeError:
            with self._turn:
                self._waiting.remove(link)
            link.close()
            self._faults.put(f"{whom}: this host starts no more threads")

    def _drop_oldest(self, many: int) -> None:
        """End the oldest unauthenticated connection if there are so many."""
        with self._turn:
            if len(self._waiting) >= many:
                _shut(self._waiting[0])

    def _hear(self, link: socket.socket, whom: str) -> None:
        number, reason = 0, "it left"
        try:
            number = shake_hands(link, self._credentials, 0)
        except HandshakeError as error:
            reason = error.reason
        except TimeoutError:
            reason = f"it did not greet within {HANDSHAKE_S:g} s"
        except OSError:
            pass
        left: socket.socket | None = link
        with self._turn:
            self._waiting.remove(link)
            if number and self._is_open:  # it may have lost a connection, and come again
                left, self.come[number] = self.come.get(number), link
        if not number:
            self._faults.put(f"{whom}: {reason}")
        if left is not None:
            left.close()


def _shut(link: socket.socket) -> None:
    """End a connection; a thread that waits for it notices."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


def is_one_host(launch: Launch) -> bool:
    """Return whether all launchers of a job are on this host."""
    return launch.world == launch.local_world or launch.address in {LOOPBACK, "localhost"}


def gathered(
    launch: Launch, ports: range, credentials: Credentials, *, until_s: float, say: Say
) -> dict[int, socket.socket]:
    """Return the connections of all other launchers, by number.

    Raises:
        RunError: Not all came, or no port is free.
    """
    listener = _listener(ports, is_local=is_one_host(launch))
    with listener, Door(listener, credentials, say) as door:
        while missing := set(range(1, launch.world)) - set(door.come):
            if time.monotonic() > until_s:
                raise _missed(launch, sorted(missing), listener)
            door.look()
        return door.come


def _missed(launch: Launch, missing: list[int], listener: socket.socket) -> RunError:
    shown = ", ".join(map(str, missing[:8])) + (" …" if missing[8:] else "")
    port = listener.getsockname()[1]
    return RunError(
        "launchers",
        [
            f"launcher {shown} of {launch.world} did not come to port {port} in time; is it "
            f"reached from all hosts, and is {SECRET} the same on them?"
        ],
    )


def _listener(ports: range, *, is_local: bool) -> socket.socket:
    both = not is_local and socket.has_dualstack_ipv6()
    for port in ports:
        with contextlib.suppress(OSError):
            return socket.create_server(
                (LOOPBACK if is_local else "", port),
                family=socket.AF_INET6 if both else socket.AF_INET,
                dualstack_ipv6=both,
                backlog=1024,
            )
    raise RunError(
        "launchers",
        [f"no port from {ports[0]} to {ports[-1]} is free here; set MASTER_PORT to another"],
    )


def connected(
    launch: Launch, ports: range, credentials: Credentials, *, until_s: float, say: Say
) -> socket.socket:
    """Return the connection to the first launcher.

    Raises:
        RunError: It is not reached, or refuses this one.
    """
    addresses = [launch.address]
    if is_one_host(launch) and launch.address != LOOPBACK:
        addresses.append(LOOPBACK)  # a host's own name may stand for another interface
    faults: dict[str, str] = {}
    while time.monotonic() < until_s:
        before = len(faults)
        for where in ((address, port) for address in addresses for port in ports):
            try:
                return _called(where, launch.rank, credentials)
            except HandshakeError as error:
                faults[f"{where[0]}:{where[1]}"] = error.reason
            except OSError:
                pass
        for where_said, reason in list(faults.items())[before:]:
            say(f"launcher {launch.rank} keeps looking: at {where_said} {reason}")
        time.sleep(_AGAIN_S if faults else _LOOK_EVERY_S)
    raise RunError("launchers", list(_unreached(launch, ports, faults)))


def _unreached(launch: Launch, ports: range, faults: dict[str, str]) -> Iterator[str]:
    yield (
        f"launcher {launch.rank} of {launch.world} did not reach the first one at "
        f"{launch.address}, ports {ports[0]} to {ports[-1]}; do all run the same command, and "
        "do hosts reach each other?"
    )
    yield from (f"{where}: {reason}" for where, reason in faults.items())


def _called(where: tuple[str, int], number: int, credentials: Credentials) -> socket.socket:
    """Return a connection on which the first launcher has authenticated itself."""
    link = socket.create_connection(where, timeout=HANDSHAKE_S)
    try:
        shake_hands(link, credentials, number)
    except BaseException:
        link.close()
        raise
    return link
