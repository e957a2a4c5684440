"""Communication between launchers of one job, on one or several hosts.

The first launcher listens; the others connect to it and stay connected. So each learns what all
said, a launcher that is killed is noticed by its connection, and what failed first ends all.
After the handshakes (`door`) there are no threads: a launcher looks at its connections whenever it
looks at its processes.

Only those that know the secret of the run take part (`handshake`); a connection that says
what no launcher says counts as one whose launcher is gone.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wattree.errors import RunError
from wattree.json_text import parsed_object
from wattree.runtime.launch.door import Say, connected, gathered
from wattree.runtime.launch.environment import Launch
from wattree.runtime.launch.handshake import Credentials
from wattree.runtime.launch.spawn import Failure
from wattree.trace.plain import from_plain

#: Longer lines are refused before they are parsed. [B]
LONGEST_LINE = 1 << 22
#: What a failure says at most, in characters: an error and its traceback.
_LONGEST_TEXT = 1 << 16
_KEYS = {"value", "failure", "verdict", "done"}


#: Ports tried from the first on: another program may have one of them.
_PORTS = 8
#: A failure waits so long for an earlier one on another host. [s]
_SETTLE_S = 0.4
#: A launcher waits so long for the verdict of the first one. [s]
_VERDICT_S = 3.0
_LOOK_EVERY_S = 0.02
#: What is said of values that cannot be a launcher's.
NO_LAUNCHER = "sent an unknown message; install the same Wattree on all hosts"
#: Seconds of silence, between questions, and questions, after which a host counts as gone.
_ALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3}


@dataclass(slots=True)
class _Peer:
    """The other end of a connection."""

    number: int
    link: socket.socket
    rest: bytes = b""
    values: list[Any] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    verdict: Failure | None = None
    is_done: bool = False
    is_gone: bool = False

    def send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # whoever is gone is noticed when read from
            self.link.setblocking(True)
            self.link.settimeout(_VERDICT_S)
            self.link.sendall(line_of(message))

    def read(self) -> bool:
        """Read available data without blocking; return whether the other end has closed."""
        self.link.setblocking(False)
        try:
            while part := self.link.recv(1 << 16):
                self.rest += part
                if len(self.rest) > LONGEST_LINE:
                    break
            self.is_gone = True  # it closed the connection, or talks nonsense
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            try:
                self._take(message_of(line))
            except ValueError:  # no launcher says such a thing
                self.is_gone = True
                break
        return self.is_gone

    def _take(self, message: Mapping[str, Any]) -> None:
        if "value" in message:
            self.values.append(message["value"])
        if "failure" in message:
            self.failures.append(message["failure"])
        if "verdict" in message:
            self.verdict = message["verdict"]
        self.is_done = self.is_done or "done" in message


class LauncherMeeting:
    """The launchers of a job, as one of them sees them; it may be alone.

    Args:
        number: Of this launcher, from 0; 0 listens.
        peers: On launcher 0 all others, by number; on others launcher 0 alone.
        timeout_s: How long launchers wait for each other. [s]

    Attributes:
        names: Launcher → what messages call it, once that is known.
        verdict: What failed first anywhere; None while nothing is known to have failed.
    """

    def __init__(
        self,
        number: int = 0,
        peers: tuple[_Peer, ...] = (),
        *,
        timeout_s: float = 180.0,
    ) -> None:
        self.number, self._peers, self._timeout_s = number, peers, timeout_s
        self._pending: list[Failure] = []
        self._since_s: float | None = None
        self.names: dict[int, str] = {}
        self.verdict: Failure | None = None

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all launchers, by number.

        Args:
            value: Of this one; plain values.

        Raises:
            RunError: One failed, or did not come in time.
        """
        if not self._peers:
            return [value]
        if self.number:
            self._peers[0].send({"value": value})
            self._await(lambda: bool(self._peers[0].values), "the first launcher")
            found = self._peers[0].values.pop(0)
            if not isinstance(found, list):
                raise RunError("launchers", [f"launcher 0: {NO_LAUNCHER}"])
            return found
        self._await(lambda: all(peer.values for peer in self._peers), "all launchers")
        values = [value, *(peer.values.pop(0) for peer in self._peers)]
        for peer in self._peers:
            peer.send({"value": values})
        return values

    def check(self) -> Failure | None:
        """Return the first failure of any host once it is known, after sending it to the others."""
        self._read()
        if self.verdict is None and self._pending and self.number == 0:
            assert self._since_s is not None
            if time.monotonic() - self._since_s >= _SETTLE_S:
                self._decide()
        return self.verdict

    def failed(self, failure: Failure) -> Failure:
        """Send a failure of this launcher's ranks; return the first failure of all launchers."""
        if self.verdict is not None:
            return self.verdict
        failure = replace(failure, launcher=self.number)
        if not self._peers:
            return failure
        if self.number:
            self._peers[0].send({"failure": failure})
        else:
            self._note(failure)
        until_s = time.monotonic() + _VERDICT_S
        while self.check() is None and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
        return self.verdict or failure

    def done(self) -> Failure | None:
        """Wait until the ranks of all launchers are done; return the first failure, if any."""
        if self.number:
            self._peers[0].send({"done": True})
        while self._peers and self.check() is None:
            if all(peer.is_done for peer in self._peers):
                break
            time.sleep(_LOOK_EVERY_S)
        if self.number == 0 and self.verdict is None:
            for peer in self._peers:
                peer.send({"done": True})
        return self.verdict

    def close(self) -> None:
        """Leave."""
        for peer in self._peers:
            peer.link.close()
        self._peers = ()

    def _await(self, is_there: Callable[[], bool], whom: str) -> None:
        until_s = time.monotonic() + self._timeout_s
        while not is_there():
            failure = self.check()
            if is_there():  # the last word of one that is gone since
                return
            if failure is not None:
                raise RunError("launchers", [failure.message])
            if time.monotonic() > until_s:
                raise RunError(
                    "launchers", [f"waited {self._timeout_s:g} s for {whom}; did all start?"]
                )
            time.sleep(_LOOK_EVERY_S)

    def _read(self) -> None:
        for peer in self._peers:
            if peer.is_gone:
                continue
            is_gone = peer.read()
            for failure in peer.failures:
                self._note(failure)
            peer.failures.clear()
            self.verdict = self.verdict or peer.verdict
            if is_gone and not peer.is_done:
                who = self.names.get(peer.number, f"launcher {peer.number}")
                message = f"{who} is gone: it was killed, or its host is, and so its ranks are"
                self._note(
                    Failure(
                        rank=-1, code=1, message=message, at_s=time.time(), launcher=self.number
                    )
                )

    def _note(self, failure: Failure) -> None:
        self._pending.append(failure)
        self._since_s = self._since_s or time.monotonic()
        if self.number and self.verdict is None and self._peers[0].is_gone:
            self.verdict = failure  # no one else can decide

    def _decide(self) -> None:
        self.verdict = min(self._pending, key=lambda failure: (failure.is_echo, failure.at_s))
        for peer in self._peers:
            peer.send({"verdict": self.verdict})


def meet(
    launch: Launch, *, purpose: str, timeout_s: float, secret: bytes, say: Say
) -> LauncherMeeting:
    """Return the meeting of all launchers that an outer launcher started.

    Args:
        purpose: What tells this meeting from others of the same launchers, which use the same
            ports: one that is early for the next must not be taken for one that comes again.
        timeout_s: How long to wait for all. [s]
        say: Takes lines for the user: who was dropped, and why.

    Raises:
        RunError: Not all came, or no port is free.
    """
    # torchrun's agent listens on the port itself that it names.
    first = launch.port + 1
    ports = range(first, first + _PORTS)
    job = f"{launch.launcher} {launch.port} {launch.world} {purpose}"
    credentials = Credentials(secret=secret, job=job, world=launch.world)
    until_s = time.monotonic() + timeout_s
    if launch.rank:
        peers = [_Peer(0, connected(launch, ports, credentials, until_s=until_s, say=say))]
    else:
        links = gathered(launch, ports, credentials, until_s=until_s, say=say)
        peers = [_Peer(number, links[number]) for number in sorted(links)]
    for peer in peers:
        _keep_alive(peer.link)
    return LauncherMeeting(launch.rank, tuple(peers), timeout_s=timeout_s)


def _keep_alive(link: socket.socket) -> None:
    """Have the system ask whether the other host is still there."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def line_of(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line; failures in it become plain values."""
    plain = {
        key: asdict(value) if isinstance(value, Failure) else value
        for key, value in message.items()
    }
    return json.dumps(plain).encode() + b"\n"


def message_of(line: bytes) -> dict[str, Any]:
    """Return the content of a line: keys of `_KEYS`, failures as exceptions.

    Raises:
        ValueError: No launcher says such a thing.
    """
    found = parsed_object(line, limit_bytes=LONGEST_LINE)
    if not found or not set(found) <= _KEYS:
        raise ValueError("not a message")
    for key in ("failure", "verdict"):
        if key in found:
            found[key] = _failure_of(found[key])
    return found


def _failure_of(record: object) -> Failure:
    """Return a failure of plain values, each of which has its own type and range."""
    found = from_plain(Failure, record, [])
    if found is None:
        raise ValueError("not a failure")
    if not 0 <= found.code < 1 << 31 or math.isnan(found.at_s):
        raise ValueError("code or time of a failure")
    return replace(found, message=found.message[:_LONGEST_TEXT])
