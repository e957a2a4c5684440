"""The store of PyTorch at which launchers of a job meet.

torchrun's agent keeps one at `MASTER_ADDR` and `MASTER_PORT` for the processes that it starts;
where there is none, the first launcher keeps it there. PyTorch does not authenticate who connects.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from wattree.errors import RunError, check_packages
from wattree.runtime.launch.environment import Launch

if TYPE_CHECKING:
    from torch.distributed import Store

#: What a store answers.
Answer = TypeVar("Answer")

LOOPBACK = "127.0.0.1"
#: What is silent for so long is gone: as long as torchrun waits for an agent (three times five
#: seconds), as a starved host must not end a job. [s]
GONE_S = 15.0
#: A wait has so many parts, as time in which this process is stopped, as batch systems do, must not
#: count: of one part at most it does.
_PARTS = 30
#: Errors of a store that is lost.
LOST = (RuntimeError, TimeoutError)
#: torchrun says by these that its agent keeps a store, and how often it started the processes.
AGENT_STORE, _RESTARTS = "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"
#: What PyTorch says of a lost connection is said by launchers, in fewer words.
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


def is_one_host(launch: Launch) -> bool:
    """Return whether all launchers of a job are on this host."""
    return launch.world == launch.local_world or launch.address in {LOOPBACK, "localhost"}


def has_agent(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun's agent keeps the store."""
    return environment.get(AGENT_STORE) == "True"


def meeting_store(
    launch: Launch, environment: Mapping[str, str], *, purpose: str, timeout_s: float
) -> StoreInTime:
    """Return a store of one meeting of launchers, which all of them hold in the same order.

    Args:
        purpose: What tells this meeting from others at the same time.
        timeout_s: How long to wait for the launcher that keeps the store. [s]

    Raises:
        RunError: It is not reached, is of another job, or the port of this one is taken.
        MissingExtraError: PyTorch is missing.
    """
    check_packages("torch", needed_for="several launchers", extra="torch")
    keeps = launch.rank == 0 and not has_agent(environment)
    own_host = is_one_host(launch) and not has_agent(environment)
    address = LOOPBACK if own_host else launch.address
    where = f"{address}:{launch.port}"
    begun = f"wattree/{environment.get(_RESTARTS, '0')}/{purpose}"
    try:
        found = _store(address, launch.port, keeps=keeps, timeout_s=timeout_s)
        if not has_agent(environment):
            _check_job(StoreInTime(found), launch.job, where, keeps=keeps)
        number = StoreInTime(found).add(f"{begun}/begun by {launch.rank}", 1)
    except (*LOST, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        doing = "cannot listen at" if keeps else "did not reach the first launcher at"
        remedy = (
            "set MASTER_PORT to a free port"
            if keeps
            else "do all run the same command, and do hosts reach each other?"
        )
        raise RunError("launchers", [f"{doing} {where} ({reason}); {remedy}"]) from error
    return StoreInTime(_torch().PrefixStore(f"{begun}/{number}", found))


def _check_job(store: StoreInTime, job: str, where: str, *, keeps: bool) -> None:
    """Write the job whose store this is; reject that of another, which has the same port."""
    if keeps:
        store.set("wattree/job", job)
    kept = store.get("wattree/job").decode(errors="replace")[:200]
    if kept != job[:200]:
        named = [text or "one without a number" for text in (kept, job)]
        problem = (
            f"the first launcher at {where} is of another job: found {named[0]}, expected "
            f"{named[1]}; set MASTER_PORT to a port of its own for each job"
        )
        raise RunError("launchers", [problem])


def _torch() -> Any:
    """Return PyTorch's package of stores, loaded without its notes on connections."""
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = before or "FATAL"
    try:
        from torch import distributed
    finally:
        if before is None:  # the ranks are the user's programs
            del os.environ[_LOG_LEVEL]
    return distributed


@functools.cache  # one that is early for the next meeting must find the store of this one
def _store(address: str, port: int, *, keeps: bool, timeout_s: float) -> Store:
    kept: dict[str, Any] = {}
    if keeps and address == LOOPBACK:  # by itself a store listens on all interfaces
        kept["master_listen_fd"] = socket.create_server((address, port), backlog=1024).detach()
    timeout = timedelta(seconds=timeout_s)
    store = functools.partial(_torch().TCPStore, address, port, None, keeps, timeout, False, **kept)
    try:
        return _in_time(store, timeout_s + 1.0)
    except NotImplementedError:  # libuv takes a socket since PyTorch 2.8 (pull request 150215)
        return _in_time(functools.partial(store, use_libuv=False), timeout_s + 1.0)


class StoreInTime:
    """A store that is lost where it does not answer; PyTorch waits as long as TCP does: forever.

    Its methods are those of the store, and raise one of `LOST`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the store that ends in time."""
        method = getattr(self._store, name)
        return lambda *values: _in_time(functools.partial(method, *values), GONE_S)


def _in_time(ask: Callable[[], Answer], limit_s: float) -> Answer:
    """Return what a store answers, while signals of this process are handled.

    Args:
        limit_s: How long to wait. [s]

    Raises:
        TimeoutError: It did not answer.
    """
    made: queue.SimpleQueue[tuple[Answer] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            made.put((ask(),))
        except Exception as error:  # noqa: BLE001 - raised below
            made.put(error)

    threading.Thread(target=run, daemon=True).start()
    for _ in range(_PARTS):
        with contextlib.suppress(queue.Empty):
            found = made.get(timeout=limit_s / _PARTS)
            if isinstance(found, Exception):
                raise found
            return found[0]
    raise TimeoutError("what listens there does not answer")
