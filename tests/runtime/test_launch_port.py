"""The port of the first launcher: who gets in, and what hostile programs can do to it."""

from __future__ import annotations

import errno
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from wattree.errors import HandshakeError, RunError
from wattree.runtime.launch.agree import Contribution, Facts, read_all
from wattree.runtime.launch.door import Door, connected, gathered
from wattree.runtime.launch.environment import Launch
from wattree.runtime.launch.handshake import PROTOCOL, Credentials, greeting, shake_hands
from wattree.runtime.launch.meeting import meet, message_of
from wattree.runtime.launch.secret import SECRET, SECRET_FILE, run_secret
from wattree.trace.plain import as_plain

OURS = Credentials(secret=b"of this run, long enough", job="torchrun 29500 3", world=3)
_LAUNCH = Launch(rank=0, world=2, local_rank=0, local_world=2, address="127.0.0.1", port=29_500)
_NONCE = b"0" * 32
#: As messages of versions before the handshake were, and what ended a launcher then.
_KNOWN = (
    b"[" * 4095,
    b'{"word": "wattree launch torchrun 29500 2", "number": 1}\n{"value": 5}\n',
    b'{"value": 5}\n',
    b'{"failure": {"rank": 0, "code": "x", "message": 5, "at_s": "now"}}\n',
    b'{"verdict": {}}\n',
    b'{"done": true}\n',
    b"GET / HTTP/1.1\r\n\r\n",
    b"",
)


def _hostile(chance: random.Random) -> list[bytes]:
    """Return what a program that does not know the secret may send, in its parts."""
    proof = chance.randbytes(32).hex().encode()
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: chance.choice(_KNOWN),
        lambda: chance.randbytes(chance.randrange(300)),
        lambda: b"[" * chance.randrange(1, 5000) + chance.choice((b"", b"\n")),
        lambda: greeting(chance.randrange(4)) + b"\n",
        lambda: greeting(1) + b"\n" + proof + b"\n",
        lambda: b"wattree-launch/%d 1 %s\n" % (chance.randrange(10**5), _NONCE),
        lambda: b"%d %s\n" % (chance.randrange(-2, 10**9), proof),
        lambda: json.dumps({"value": [chance.random()] * chance.randrange(50)}).encode() + b"\n",
    )
    whole = b"".join(chance.choice(kinds)() for _ in range(chance.randrange(1, 4)))
    begun = greeting(1) + b"\n" if chance.random() < 0.5 else b""
    cut = chance.randrange(len(whole) + 1)
    return [part for part in (begun, whole[:cut], whole[cut:]) if part]


def test_hostile_greetings_are_refused(*, soaking: bool) -> None:
    """Each with its reason and nothing else: none ends a launcher, none gets in."""
    chance, reasons = random.Random(7), set[str]()
    for _ in range(10_000 if soaking else 1_500):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(b"".join(_hostile(chance)))
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(HandshakeError) as caught:
                shake_hands(ours, OURS, 0)
        reasons.add(caught.value.reason)
    assert len(reasons) > 3
    assert not any("\n" in reason for reason in reasons)


def test_hostile_messages_are_no_messages(*, soaking: bool) -> None:
    """Of one that knows the secret, too: a message has its keys and types, or is refused."""
    chance = random.Random(8)
    values: tuple[object, ...] = (5, None, "x", [], {}, 1e400, -1, True, {"rank": 0}, [[]])
    keys = ("value", "failure", "verdict", "done", "word", "rank")
    for _ in range(10_000 if soaking else 5_000):
        said = {chance.choice(keys): chance.choice(values) for _ in range(chance.randrange(4))}
        line = chance.choice((json.dumps(said).encode(), b"".join(_hostile(chance))))
        try:
            found = message_of(line)
        except ValueError:
            continue
        assert found
        assert set(found) <= {"value", "done"}


@pytest.mark.parametrize("value", [5, None, [], {}, "x", {"port": 1e400, "mps": {}}])
def test_what_is_no_launchers_is_a_message_not_a_defect(value: object) -> None:
    """Facts and contributions alike."""
    for kind in (Facts, Contribution):
        with pytest.raises(RunError, match="launcher 1: sent an unknown message"):
            read_all([as_plain(Contribution(mps={}, port=1)), value], kind, launchers=2)


def _listening() -> tuple[socket.socket, tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    return listener, listener.getsockname()


def test_hostile_peers_are_dropped_with_a_line_each_and_launchers_still_come() -> None:
    """On a real socket: those that flood, those that say nothing, and then the two that belong."""
    chance, notes = random.Random(9), list[str]()
    listener, where = _listening()
    links = []
    with listener, Door(listener, OURS, notes.append) as door:
        for _ in range(200):
            link = socket.create_connection(where)
            links.append(link)
            for part in _hostile(chance):
                try:
                    link.sendall(part)
                except OSError:
                    break
            door.look()
        silent = socket.create_connection(where)
        callers = [
            threading.Thread(target=_come, args=(where[1], number, links)) for number in (1, 2)
        ]
        for caller in callers:
            caller.start()
        until_s = time.monotonic() + 120
        while len(door.come) < 2 and time.monotonic() < until_s:
            door.look()
        come = sorted(door.come)
        for caller in callers:
            caller.join()
        for link in (*door.come.values(), silent, *links):
            link.close()
    assert come == [1, 2]
    assert 0 < len(notes) <= 17
    assert all(note.startswith("dropped") and "\n" not in note for note in notes)


def test_a_host_without_threads_or_descriptors_drops_callers_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger who connects can use up both; the job waits for its own launchers."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_descriptor(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    notes = list[str]()
    listener, where = _listening()
    with listener, Door(listener, OURS, notes.append) as door:
        with monkeypatch.context() as patch, socket.create_connection(where) as dropped:
            patch.setattr(threading.Thread, "start", no_thread)
            door.look()
            ends = [dropped.recv(1)]
        with monkeypatch.context() as patch, socket.create_connection(where) as oldest:
            door.look()
            patch.setattr(socket.socket, "accept", no_descriptor)
            before_s = time.monotonic()
            door.look()
            waited_s = time.monotonic() - before_s
            oldest.settimeout(60)
            ends.append(oldest.makefile("rb").read().partition(b"\n")[2])
    assert ends == [b"", b""]
    assert notes[0].endswith("this host starts no more threads")
    assert waited_s > 0.05


def _come(port: int, number: int, links: list[socket.socket]) -> None:
    launch = replace(_LAUNCH, rank=number, world=3, local_world=3)
    until_s = time.monotonic() + 120
    links.append(connected(launch, range(port, port + 1), OURS, until_s=until_s, say=print))


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (replace(OURS, secret=b"of another run, alike"), "its secret or its job is another"),
        (replace(OURS, job="torchrun 29600 3"), "its secret or its job is another"),
    ],
)
def test_a_launcher_of_another_run_is_refused_on_both_sides(
    theirs: Credentials, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first says whom it dropped, the other what to do."""
    notes = list[str]()
    listener, (_, port) = _listening()
    launch = replace(_LAUNCH, rank=1, world=3, local_world=3)
    found: list[str] = []
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr("wattree.runtime.launch.door.time", clock)

    def come() -> None:
        try:  # less than until it would call again
            connected(launch, range(port, port + 1), theirs, until_s=0.9, say=found.append)
        except RunError as error:
            found.append(str(error))

    caller = threading.Thread(target=come)
    with listener, Door(listener, OURS, notes.append) as door:
        caller.start()
        while caller.is_alive():
            door.look()
    caller.join()
    assert notes == [f"dropped a connection from 127.0.0.1: {reason}"]
    assert f"{SECRET} is not the same on all hosts" in found[-1]


def test_another_version_of_the_protocol_is_named() -> None:
    """Before anything else is looked at."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"wattree-launch/%d 1 %s\n" % (PROTOCOL + 1, _NONCE))
        with pytest.raises(HandshakeError, match=f"version {PROTOCOL + 1} of the protocol"):
            shake_hands(ours, OURS, 0)


def test_a_proof_holds_for_one_connection() -> None:
    """Heard on one, it opens no other; nor does what the first launcher itself said on one."""
    listener, where = _listening()
    with listener, Door(listener, OURS, print) as door:
        first, second, third = links = [socket.create_connection(where) for _ in range(3)]
        for _ in links:
            door.look()
        mine, *lines = greeting(1), *(link.recv(100).rstrip(b"\n") for link in links)
        first.sendall(mine + b"\n" + OURS.proof(mine, lines[0]) + b"\n")
        second.sendall(mine + b"\n" + OURS.proof(mine, lines[0]) + b"\n")
        third.sendall(lines[0] + b"\n" + OURS.proof(lines[0], lines[2]) + b"\n")
        answers = [link.recv(100) for link in links]
        while not door.come:  # its thread says so after its answer
            door.look()
        assert answers == [OURS.proof(lines[0], mine) + b"\n", b"refused\n", b"refused\n"]
        assert list(door.come) == [1]
        for link in (*links, *door.come.values()):
            link.close()


@pytest.mark.parametrize(
    ("launch", "is_local"),
    [
        (replace(_LAUNCH, address="node1"), True),  # as torchrun --standalone may say
        (replace(_LAUNCH, local_world=1, address="localhost"), True),
        (replace(_LAUNCH, local_world=1, address="node1"), False),
    ],
)
def test_the_port_of_one_host_is_on_loopback(
    launch: Launch, *, is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other host can connect; launchers of several hosts must."""
    bound: list[str] = []

    def create(address: tuple[str, int], **_: object) -> socket.socket:
        bound.append(address[0])
        return socket.socket()

    monkeypatch.setattr(socket, "create_server", create)
    with pytest.raises(RunError, match="did not come"):
        gathered(launch, range(1, 2), OURS, until_s=0.0, say=print)
    assert (bound == ["127.0.0.1"]) is is_local


def test_meetings_go_on_when_an_admitted_peer_says_nonsense() -> None:
    """The job ends with the line of a lost launcher, not with a defect."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    launch = replace(_LAUNCH, port=port)
    credentials = Credentials(secret=OURS.secret, job=f"wattree {port} 2 ranks", world=2)

    def come() -> None:
        other, ports = replace(launch, rank=1), range(port + 1, port + 9)
        link = connected(other, ports, credentials, until_s=time.monotonic() + 120, say=print)
        link.sendall(b"[" * 100_000 + b"\n")
        link.recv(1)
        link.close()

    caller = threading.Thread(target=come)
    caller.start()
    meeting = meet(launch, purpose="ranks", timeout_s=120, secret=OURS.secret, say=print)
    with pytest.raises(RunError, match="launcher 1 is gone"):
        meeting.exchange("anything")
    meeting.close()
    caller.join()


def test_a_launcher_early_for_the_next_meeting_is_sent_away() -> None:
    """It keeps its place in the present one, though both use one port."""
    trials, ranks = replace(OURS, job=OURS.job + " trials"), replace(OURS, job=OURS.job + " ranks")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Door(listener, trials, print) as door,
        ThreadPoolExecutor() as pool,
        ExitStack() as links,
    ):

        def come(credentials: Credentials) -> Future[int]:
            link = links.enter_context(socket.create_connection(listener.getsockname()))
            said = pool.submit(shake_hands, link, credentials, 1)
            while not said.done():
                door.look()
            return said

        assert come(trials).result() == 0
        while 1 not in door.come:
            door.look()
        first = links.enter_context(door.come[1])
        with pytest.raises(HandshakeError, match="another job"):
            come(ranks).result()
        assert door.come == {1: first}


def test_the_secret_is_given_or_a_private_file_of_the_user(tmp_path: Path) -> None:
    """The same for every launcher of the user; only they may read it."""
    given = {SECRET: "0123456789abcdef"}
    file = tmp_path / "given"
    file.write_text("fedcba9876543210\n")
    home = {"HOME": str(tmp_path)}
    own = run_secret(home)
    path = tmp_path / ".config" / "wattree" / "launch.secret"
    assert run_secret(given) == b"0123456789abcdef"
    assert run_secret({SECRET_FILE: str(file)}) == b"fedcba9876543210"
    assert run_secret(home) == own
    assert (len(own), path.stat().st_mode & 0o777, list(path.parent.iterdir())) == (
        64,
        0o600,
        [path],
    )


def test_a_secret_that_protects_nothing_is_refused(tmp_path: Path) -> None:
    """Short ones, missing ones, and a file that others read."""
    home = {"HOME": str(tmp_path)}
    run_secret(home)
    path = tmp_path / ".config" / "wattree" / "launch.secret"
    path.chmod(0o644)
    for environment, reason in (
        ({SECRET: "short"}, "found 5 bytes, expected a secret of 16"),
        ({SECRET_FILE: str(tmp_path / "missing")}, "cannot be read"),
        (home, "may be read by others; expected mode 600"),
    ):
        with pytest.raises(RunError, match=reason):
            run_secret(environment)


def test_without_a_home_the_secret_is_of_this_host(tmp_path: Path) -> None:
    """As in containers that run under a number without a name."""
    environment = {"HOME": "/proc/nothing", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert run_secret(environment) == run_secret(environment)
    assert len(list(tmp_path.glob("wattree-launch-*/launch.secret"))) == 1
