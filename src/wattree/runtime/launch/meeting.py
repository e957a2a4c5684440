"""Launchers of one job on several hosts, or several of one host: what they tell each other.

The first launcher listens; the others connect to it and stay connected. So each learns what all
said, a launcher that is killed is noticed by its connection, and what failed first ends all.
Nothing here has a thread: a launcher looks at its connections whenever it looks at its processes.

Messages are lines of JSON. Whoever can reach the port can take part, as with any `MASTER_PORT`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wattree.errors import RunError
from wattree.runtime.launch.environment import Launch
from wattree.runtime.launch.spawn import Failure

#: Ports tried from the first on: another program may have one of them.
_PORTS = 8
#: A failure waits so long for an earlier one on another host. [s]
_SETTLE_S = 0.4
#: A launcher waits so long for the verdict of the first one. [s]
_VERDICT_S = 3.0
_LONGEST_LINE = 1 << 22
_LOOK_EVERY_S = 0.02
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
            self.link.sendall(json.dumps(message).encode() + b"\n")

    def read(self) -> bool:
        """Take what has come, at once; return whether the other end is gone."""
        self.link.setblocking(False)
        try:
            while part := self.link.recv(1 << 16):
                self.rest += part
                if len(self.rest) > _LONGEST_LINE:
                    break
            self.is_gone = True  # it closed the connection, or talks nonsense
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True
        *lines, self.rest = self.rest.split(b"\n")
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError):  # no launcher says such a thing
                self.is_gone = True
        return self.is_gone

    def _take(self, message: Mapping[str, Any]) -> None:
        if "value" in message:
            self.values.append(message["value"])
        if "failure" in message:
            self.failures.append(Failure(**message["failure"]))
        if "verdict" in message:
            self.verdict = Failure(**message["verdict"])
        self.is_done = self.is_done or "done" in message


class LauncherMeeting:
    """The launchers of a job, seen from one of them; one alone meets no one.

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

    @property
    def launchers(self) -> int:
        """How many there are; on others than the first only whether there are several."""
        return len(self._peers) + 1

    def exchange(self, value: Any) -> list[Any]:
        """Return what every launcher gave, by number.

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
            found: list[Any] = self._peers[0].values.pop(0)
            return found
        self._await(lambda: all(peer.values for peer in self._peers), "all launchers")
        values = [value, *(peer.values.pop(0) for peer in self._peers)]
        for peer in self._peers:
            peer.send({"value": values})
        return values

    def check(self) -> Failure | None:
        """Return what failed first on any host once that is known; the others are then told."""
        self._read()
        if self.verdict is None and self._pending and self.number == 0:
            assert self._since_s is not None
            if time.monotonic() - self._since_s >= _SETTLE_S:
                self._decide()
        return self.verdict

    def failed(self, failure: Failure) -> Failure:
        """Tell a failure of this launcher's ranks; return the one that came first anywhere."""
        if self.verdict is not None:
            return self.verdict
        failure = replace(failure, launcher=self.number)
        if not self._peers:
            return failure
        if self.number:
            self._peers[0].send({"failure": asdict(failure)})
        else:
            self._note(failure)
        until_s = time.monotonic() + _VERDICT_S
        while self.check() is None and time.monotonic() < until_s:
            time.sleep(_LOOK_EVERY_S)
        return self.verdict or failure

    def done(self) -> Failure | None:
        """Wait until the ranks of all launchers are done; return what failed first if one did."""
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
            peer.send({"verdict": asdict(self.verdict)})


def meet(launch: Launch, *, timeout_s: float) -> LauncherMeeting:
    """Return the meeting of all launchers that an outer launcher started.

    Args:
        launch: What it said to this one.
        timeout_s: How long to wait for all. [s]

    Raises:
        RunError: Not all came, or no port is free.
    """
    if launch.world == 1:
        return LauncherMeeting(timeout_s=timeout_s)
    # torchrun's agent listens on the port itself that it names.
    first = launch.port + 1
    ports = range(first, first + _PORTS)
    word = f"wattree launch {launch.launcher} {launch.port} {launch.world}"
    until_s = time.monotonic() + timeout_s
    if launch.rank:
        peer = _connected(launch, ports, word, until_s)
        return LauncherMeeting(launch.rank, (peer,), timeout_s=timeout_s)
    peers = _gathered(launch, ports, word, until_s)
    return LauncherMeeting(0, tuple(peers[number] for number in sorted(peers)), timeout_s=timeout_s)


def _gathered(launch: Launch, ports: range, word: str, until_s: float) -> dict[int, _Peer]:
    peers: dict[int, _Peer] = {}
    with _listener(launch.address, ports) as listener:
        while len(peers) < launch.world - 1:
            listener.settimeout(max(until_s - time.monotonic(), 0.001))
            try:
                link, _ = listener.accept()
            except TimeoutError:
                missing = sorted(set(range(1, launch.world)) - set(peers))
                shown = ", ".join(map(str, missing[:8])) + (" …" if missing[8:] else "")
                raise RunError(
                    "launchers",
                    [
                        f"launcher {shown} of {launch.world} did not come to port "
                        f"{listener.getsockname()[1]} in time; is it reached from all hosts?"
                    ],
                ) from None
            number = _greeted(link, word)
            if number is None or not 0 < number < launch.world or number in peers:
                link.close()
                continue
            _keep_alive(link)
            peers[number] = _Peer(number, link)
    return peers


def _listener(address: str, ports: range) -> socket.socket:
    local = address in {"127.0.0.1", "localhost"}
    both = not local and socket.has_dualstack_ipv6()
    for port in ports:
        with contextlib.suppress(OSError):
            return socket.create_server(
                ("127.0.0.1" if local else "", port),
                family=socket.AF_INET6 if both else socket.AF_INET,
                dualstack_ipv6=both,
                backlog=1024,
            )
    raise RunError(
        "launchers",
        [f"no port from {ports[0]} to {ports[-1]} is free here; set MASTER_PORT to another"],
    )


def _greeted(link: socket.socket, word: str) -> int | None:
    """Return the number of a launcher that connected; None where it is none of this job."""
    try:
        link.settimeout(_VERDICT_S)
        greeting = json.loads(_line(link))
        if greeting.get("word") != word:
            return None
        link.sendall(json.dumps({"word": word}).encode() + b"\n")
        return int(greeting["number"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _connected(launch: Launch, ports: range, word: str, until_s: float) -> _Peer:
    hello = json.dumps({"word": word, "number": launch.rank}).encode() + b"\n"
    while time.monotonic() < until_s:
        for port in ports:
            link = None
            try:
                link = socket.create_connection((launch.address, port), timeout=_VERDICT_S)
                link.sendall(hello)
                if json.loads(_line(link)).get("word") == word:
                    _keep_alive(link)
                    return _Peer(0, link)
            except (OSError, ValueError, AttributeError):
                pass
            if link is not None:
                link.close()
        time.sleep(_LOOK_EVERY_S * 5)
    raise RunError(
        "launchers",
        [
            f"launcher {launch.rank} of {launch.world} did not reach the first one at "
            f"{launch.address}, ports {ports[0]} to {ports[-1]}; do all run the same command, and "
            "do hosts reach each other?"
        ],
    )


def _line(link: socket.socket) -> bytes:
    """Return one line, read byte by byte: what follows it belongs to the conversation."""
    found = b""
    while not found.endswith(b"\n") and len(found) < 4096:
        part = link.recv(1)
        if not part:
            raise ConnectionError
        found += part
    return found


def _keep_alive(link: socket.socket) -> None:
    """Have the system ask whether the other host is still there."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if hasattr(socket, name):
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
