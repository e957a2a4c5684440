"""Connects launchers: the port of the first one, and the connections to it.

On one host the port is that of the loopback interface. Whoever else connects, says anything but
what a launcher of this job says, or says nothing, is dropped and noted; nothing it sends is parsed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from wattree.errors import HandshakeError, RunError
from wattree.runtime.launch.environment import Launch
from wattree.runtime.launch.handshake import (
    LINE_BYTES,
    Credentials,
    Reception,
    fresh_nonce,
    greeted,
    greeting,
)
from wattree.runtime.launch.secret import SECRET

LOOPBACK = "127.0.0.1"
#: Whoever connected has so long for the whole handshake. [s]
_HANDSHAKE_S = 5.0
#: Connections that may be in a handshake at once; of more the oldest is dropped.
_MOST = 256
#: Most lines printed about dropped connections.
_NOTES = 16
_LOOK_EVERY_S = 0.1
#: After a refusal it is tried again: another job may have the port and end. [s]
_AGAIN_S = 1.0

Say = Callable[[str], None]


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection that is not authenticated yet."""

    link: socket.socket
    whom: str
    until_s: float
    reception: Reception


class Door:
    """The port of the first launcher, until all have connected.

    Args:
        say: Takes a line for the user.

    Attributes:
        come: Number of a launcher → its connection.
    """

    def __init__(self, listener: socket.socket, credentials: Credentials, say: Say) -> None:
        self._listener, self._credentials, self._say = listener, credentials, say
        self._callers: list[_Caller] = []
        self._noted: set[str] = set()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self.come: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all unauthenticated connections."""
        for caller in self._callers:
            caller.link.close()
        self._selector.close()

    def look(self, timeout_s: float = _LOOK_EVERY_S) -> None:
        """Read the received data."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._admit()
            elif key.data in self._callers:  # it may have been dropped a moment ago
                self._hear(key.data)
        now_s = time.monotonic()
        for caller in [caller for caller in self._callers if now_s > caller.until_s]:
            self._drop(caller, f"it did not greet within {_HANDSHAKE_S:g} s")

    def _admit(self) -> None:
        try:
            link, address = self._listener.accept()
        except OSError:  # it left again, or there are no descriptors left
            if self._callers:
                self._drop(self._callers[0], "too many connections")
            return
        if len(self._callers) >= _MOST:
            self._drop(self._callers[0], "too many connections")
        link.setblocking(False)
        reception = Reception(self._credentials)
        caller = _Caller(link, str(address[0]), time.monotonic() + _HANDSHAKE_S, reception)
        self._callers.append(caller)
        self._selector.register(link, selectors.EVENT_READ, caller)

    def _hear(self, caller: _Caller) -> None:
        try:
            caller.link.sendall(caller.reception.take(caller.link.recv(LINE_BYTES + 1)))
        except HandshakeError as error:
            with contextlib.suppress(OSError):
                caller.link.sendall(error.reply)
            self._drop(caller, error.reason)
            return
        except OSError:
            self._drop(caller, "it left")
            return
        number = caller.reception.number
        if number is None:
            return
        self._forget(caller)
        if number in self.come:  # it lost its connection and came again
            self.come[number].close()
        self.come[number] = caller.link

    def _drop(self, caller: _Caller, reason: str) -> None:
        self._forget(caller)
        caller.link.close()
        note = f"dropped a connection from {caller.whom}: {reason}"
        if note in self._noted or len(self._noted) > _NOTES:
            return
        self._noted.add(note)
        self._say(note if len(self._noted) <= _NOTES else "dropped connections: no longer reported")

    def _forget(self, caller: _Caller) -> None:
        self._callers.remove(caller)
        self._selector.unregister(caller.link)


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
        while len(door.come) < launch.world - 1:
            if time.monotonic() > until_s:
                raise _missed(
                    launch, sorted(set(range(1, launch.world)) - set(door.come)), listener
                )
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
) -> tuple[socket.socket, bytes]:
    """Return the connection to the first launcher, and its message after the welcome.

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


def _called(
    where: tuple[str, int], number: int, credentials: Credentials
) -> tuple[socket.socket, bytes]:
    """Return a connection on which the first launcher has authenticated itself."""
    link = socket.create_connection(where, timeout=_HANDSHAKE_S)
    try:
        until_s, nonce = time.monotonic() + _HANDSHAKE_S, fresh_nonce()
        link.sendall(greeting(nonce))
        line, rest = _line(link, b"", until_s)
        nonces = (nonce, greeted(line))
        link.sendall(b"%d %s\n" % (number, credentials.proof("caller", nonces, number)))
        line, rest = _line(link, rest, until_s)
        credentials.check_welcome(line, nonces, number)
    except BaseException:
        link.close()
        raise
    return link, rest


def _line(link: socket.socket, begun: bytes, until_s: float) -> tuple[bytes, bytes]:
    """Return one line of the handshake, and the bytes after it."""
    found = begun
    while b"\n" not in found:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        link.settimeout(left_s)
        part = link.recv(LINE_BYTES)
        if not part:
            raise ConnectionError
        found += part
        if b"\n" not in found and len(found) > LINE_BYTES:
            raise HandshakeError("it is no launcher of Wattree")
    line, _, rest = found.partition(b"\n")
    return line, rest
