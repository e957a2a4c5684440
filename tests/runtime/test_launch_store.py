"""Where launchers meet: who keeps the store, who reaches it, and what may be found in it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wattree.errors import RunError
from wattree.runtime.launch.agree import Contribution, Facts, read_all
from wattree.runtime.launch.environment import Launch, launch_from
from wattree.runtime.launch.meeting import LauncherMeeting, meet
from wattree.runtime.launch.store import AGENT_STORE, GONE_S, StoreInTime, meeting_store
from wattree.trace.plain import as_plain

distributed = pytest.importorskip("torch.distributed")
_LAUNCH = Launch(rank=0, world=2, local_rank=0, local_world=2, address="127.0.0.1", port=0)
_AGENT = {AGENT_STORE: "True"}
_STORE = distributed.TCPStore


@pytest.fixture
def launch() -> Launch:
    """Return a launcher whose port was free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return replace(_LAUNCH, port=port)


def _exchanged(launch: Launch, environment: dict[str, str], purposes: tuple[str, ...]) -> list[int]:
    """Return what a launcher gets in meetings that it holds one after another, all open."""
    held = [meet(launch, environment, purpose=each, timeout_s=120) for each in purposes]
    found = [value for each in held for value in each.exchange(launch.rank)]
    for each in held:
        assert each.done() is None
        each.close()
    return found


@pytest.mark.parametrize("environment", [{}, _AGENT], ids=["first launcher", "agent"])
def test_launchers_meet_at_the_store_of_the_agent_or_of_the_first(
    launch: Launch, environment: dict[str, str]
) -> None:
    """Trials hold several meetings at once, and others of the same purpose after them."""
    agent = None
    if environment:
        agent = distributed.TCPStore("127.0.0.1", launch.port, None, True, wait_for_workers=False)
    with ThreadPoolExecutor() as pool:
        said = [
            pool.submit(
                _exchanged, replace(launch, rank=rank), environment, ("trials", "ranks", "ranks")
            )
            for rank in range(2)
        ]
        assert [each.result() for each in said] == [[0, 1] * 3] * 2
    del agent


def _without_sockets(*args: Any, use_libuv: bool = True, **kept: Any) -> Any:
    """Make a store as PyTorch did before 2.8."""
    if use_libuv and kept:
        raise NotImplementedError("found a socket")
    return _STORE(*args, use_libuv=use_libuv, **kept)


@pytest.mark.parametrize("kind", [_STORE, _without_sockets], ids=["today", "PyTorch 2.6"])
def test_a_store_of_one_host_is_on_loopback_and_outlives_strangers(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, kind: Callable[..., Any]
) -> None:
    """No other host can connect, and what programs send that are no launchers changes nothing."""
    monkeypatch.setattr(distributed, "TCPStore", kind)
    store = meeting_store(launch, {}, purpose="ranks", timeout_s=60)
    with pytest.raises(ConnectionRefusedError):  # another address of the same host
        socket.create_connection(("127.0.0.2", launch.port)).close()
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"x" * 10_000, b"[" * 3000 + b"\n", b""):
        with socket.create_connection(("127.0.0.1", launch.port)) as link:
            link.sendall(text)
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize(
    ("rank", "message"),
    [(0, "cannot listen at .*MASTER_PORT"), (1, "did not reach the first launcher at .*same comm")],
)
def test_a_port_of_another_program_is_a_message(launch: Launch, rank: int, message: str) -> None:
    """One that takes connections and answers none."""
    with (
        socket.create_server(("127.0.0.1", launch.port)),
        pytest.raises(RunError, match=message),
    ):
        meeting_store(replace(launch, rank=rank), {}, purpose="ranks", timeout_s=0.1)


def test_a_launcher_of_another_job_is_rejected(launch: Launch) -> None:
    """Of two jobs with one port; the first is not disturbed."""
    meeting_store(replace(launch, job="SLURM_JOB_ID=1"), {}, purpose="ranks", timeout_s=60)
    for job, shown in (("SLURM_JOB_ID=2", "SLURM_JOB_ID=2"), ("", "one without a number")):
        stranger = replace(launch, rank=1, job=job)
        message = f"another job: found SLURM_JOB_ID=1, expected {shown}; set MASTER_PORT"
        with pytest.raises(RunError, match=message):
            meeting_store(stranger, {}, purpose="ranks", timeout_s=60)
    meeting_store(replace(launch, rank=1, job="SLURM_JOB_ID=1"), {}, purpose="ranks", timeout_s=60)


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_that_none_can_be_is_a_message(port: int) -> None:
    """Not a defect of the program."""
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": str(port)}
    with pytest.raises(RunError, match=f"MASTER_PORT: found {port}, expected a port from 1 to"):
        launch_from(environment)


def test_a_launcher_whose_store_does_not_answer_takes_it_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of a host without power or network: TCP notices it after a quarter of an hour."""
    never = Event()
    silent = SimpleNamespace(**dict.fromkeys(("append", "check"), lambda *_: never.wait()))
    meeting = LauncherMeeting(1, 2)
    meeting._store = StoreInTime(cast("Any", silent))
    monkeypatch.setattr("wattree.runtime.launch.store.GONE_S", 0.01)
    found = meeting.check()
    never.set()
    assert found is not None
    assert found.message.startswith("launcher 0 is gone")


@pytest.mark.parametrize(
    ("left", "asked", "message"),
    [
        ([], [], "launcher 1 is gone: it was killed"),
        ([], [15], "launcher 1 is gone: it was killed"),
        (["left/1"], [], "launcher 1 left before the end of the job: it was asked to stop"),
        (["left/1"], [15], None),
    ],
)
def test_launchers_that_were_all_stopped_for_long_go_on(
    monkeypatch: pytest.MonkeyPatch, left: list[str], asked: list[int], message: str | None
) -> None:
    """As batch systems do; one that stands still while others go on is gone.

    Where all were asked to stop, one that is done does not end those that write a checkpoint.
    """
    now = SimpleNamespace(s=1.0)
    now.monotonic = now.time = lambda: now.s
    now.sleep = lambda _: None
    monkeypatch.setattr("wattree.runtime.launch.meeting.time", now)
    meeting = LauncherMeeting(0, 2)
    meeting._store, meeting._have_met = StoreInTime(distributed.HashStore()), True
    meeting._store.add("beat/1", 1)
    meeting.asked = asked
    for key in left:
        meeting._store.set(key, "")
    found = []
    for waited_s in (0.0, 1e4, *[0.6] * int(GONE_S / 0.5)):
        now.s += waited_s
        found.append(meeting.check())
    assert found[:-1] == [None] * (len(found) - 1)
    assert (found[-1] and found[-1].message.partition(", ")[0]) == message
    assert meeting.done() == found[-1]


def test_launchers_that_came_learn_who_is_missing() -> None:
    """And the first, which keeps the store, leaves after they have read it."""
    store = StoreInTime(distributed.HashStore())
    first, second = (LauncherMeeting(each, 3, store, keeps=each == 0) for each in range(2))
    first._timeout_s = 0.0
    with ThreadPoolExecutor() as pool:
        said = pool.submit(second.exchange, None)
        while store.add("value 1", 0) < 1:
            assert not said.done()
        for exchange in (lambda: first.exchange(None), said.result):
            with pytest.raises(RunError, match="launcher 2 of 3 did not come within 0 s"):
                exchange()
        first.close()
    assert store.check(["left/1"])


@pytest.mark.parametrize(
    "value", [5, None, [], {}, {"port": 1e400, "mps": {}}, {"port": 1, "mps": {"LD_PRELOAD": "x"}}]
)
def test_what_launchers_cannot_send_is_named(value: object) -> None:
    """Facts and contributions alike; no variable of a rank is set but those of MPS."""
    for kind in (Facts, Contribution):
        with pytest.raises(RunError, match="launcher 1: sent an unknown message"):
            read_all([as_plain(Contribution(mps={}, port=1)), value], kind)
