"""The store of PyTorch at which launchers of a job meet.

torchrun's agent keeps one at `MASTER_ADDR` and `MASTER_PORT` for the processes that it starts;
where there is none, the first launcher keeps it there. PyTorch does not authenticate who connects.
"""

from __future__ import annotations

import functools
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wattree.errors import RunError, check_packages
from wattree.runtime.launch.environment import Launch

if TYPE_CHECKING:
    from torch.distributed import Store

LOOPBACK = "127.0.0.1"
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
) -> Store:
    """Return a store of one meeting of launchers, which all of them hold in the same order.

    Args:
        purpose: What tells this meeting from others at the same time.
        timeout_s: How long to wait for the launcher that keeps the store. [s]

    Raises:
        RunError: It is not reached, or the port of this one is taken.
        MissingExtraError: PyTorch is missing.
    """
    check_packages("torch", needed_for="several launchers", extra="torch")
    keeps = launch.rank == 0 and not has_agent(environment)
    own_host = is_one_host(launch) and not has_agent(environment)
    address = LOOPBACK if own_host else launch.address
    found = _store(address, launch.port, keeps=keeps, timeout_s=timeout_s)
    begun = f"wattree/{environment.get(_RESTARTS, '0')}/{purpose}"
    number = found.add(f"{begun}/begun by {launch.rank}", 1)
    return _torch().PrefixStore(f"{begun}/{number}", found)


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
    timeout, kept = timedelta(seconds=timeout_s), {}
    try:
        if keeps and address == LOOPBACK:  # by itself a store listens on all interfaces
            kept["master_listen_fd"] = socket.create_server((address, port), backlog=1024).detach()
        store = functools.partial(_torch().TCPStore, address, port, None, keeps, timeout, False)
        return _in_time(functools.partial(store, **kept), timeout_s)
    except (RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        doing = "cannot listen at" if keeps else "did not reach the first launcher at"
        remedy = (
            "set MASTER_PORT to a free port"
            if keeps
            else "do all run the same command, and do hosts reach each other?"
        )
        raise RunError("launchers", [f"{doing} {address}:{port} ({reason}); {remedy}"]) from error


def _in_time(make: Callable[[], Store], timeout_s: float) -> Store:
    """Return what is made; PyTorch itself would wait forever for a program that does not answer."""
    made: queue.SimpleQueue[Store | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            made.put(make())
        except Exception as error:  # noqa: BLE001 - raised below
            made.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        found = made.get(timeout=timeout_s + 1.0)
    except queue.Empty:
        raise TimeoutError("another program listens there") from None
    if isinstance(found, Exception):
        raise found
    return found
