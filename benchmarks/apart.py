"""Pieces of work side by side, each in a forked process with limits of time and memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

_MEMORY_BYTES = 10 * 2**30  # of one process, so that two leave room on a machine of 24 GiB


_PARTING = 0.9  # of the time limit, after which work may still say what it has


class OutOfTime(BaseException):
    """Most of the time is over. No `Exception`, which models and recorders catch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A function of a module, to be called in a process of its own."""

    name: str
    run: Callable[..., dict[str, Any]]
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class _Running:
    process: Any
    end: Connection
    place: int
    began: float


def done_apart(
    works: Sequence[Work], *, time_limit_s: float, processes: int
) -> list[dict[str, Any] | str]:
    """Return what each piece of work returned, or the reason why it returned nothing.

    Processes are forked from this one, so what it has imported is imported there.
    """
    context = multiprocessing.get_context("fork")
    outcomes: list[dict[str, Any] | str] = ["not run"] * len(works)
    waiting = list(range(len(works)))[::-1]
    running: list[_Running] = []
    while waiting or running:
        while waiting and len(running) < processes:
            place = waiting.pop()
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(works[place], there, time_limit_s), daemon=True
            )
            process.start()
            there.close()
            running.append(_Running(process=process, end=here, place=place, began=time.monotonic()))
        ready = wait([one.end for one in running], timeout=1)
        for one in list(running):
            if one.end in ready:
                outcomes[one.place] = _received(one)
            elif time.monotonic() - one.began > time_limit_s:
                one.process.kill()
                outcomes[one.place] = f"given up, as {time_limit_s:g} s are not enough"
            else:
                continue
            one.process.join()
            one.end.close()
            running.remove(one)
            print(f"{works[one.place].name}: {time.monotonic() - one.began:.1f} s", file=sys.stderr)
    return outcomes


def _received(one: _Running) -> dict[str, Any] | str:
    try:
        outcome: dict[str, Any] | str = one.end.recv()
    except EOFError:
        one.process.join()
        return f"its process ended with {one.process.exitcode}"
    return outcome


def _give_up(*_: object) -> None:
    raise OutOfTime


def _work(work: Work, end: Connection, time_limit_s: float) -> None:
    os.dup2(2, 1)  # what a model prints must not get between the figures
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _PARTING * time_limit_s)
    try:
        outcome: dict[str, Any] | str = work.run(*work.arguments)
    except OutOfTime:
        outcome = f"given up, as {time_limit_s:g} s are not enough"
    except BaseException as error:  # noqa: BLE001 - a model may raise anything, also SystemExit
        said = " ".join(str(error).split())
        is_ours = type(error).__module__ == "wattree.errors"
        outcome = said if is_ours else f"{type(error).__name__}: {said}"[:600]
    end.send(outcome)
    end.close()
    sys.stderr.flush()
    os._exit(0)  # no clean-up of the parent's
