"""Worker processes of the page: turns, ends, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.serve.served import NONE, SMALL, Server, started_server
from wattree.errors import JobError, SearchCancelledError
from wattree.process import Process, is_alive, process_of
from wattree.serve.state import START, PageState
from wattree.serve.workers import Workers

#: Takes longer to plan than any of these tests.
LONG = {**START, "model": "llama-3.1-405b", "nodes": "512", "global_batch": "4096"}
STEP = PageState.of({**SMALL, "micro_batch": "1"})


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Return one worker, for which one request may wait."""
    made = Workers(1, 1)
    yield made
    made.close()


def children(pid: int) -> list[Process]:
    """Return the processes that a process has started and that run."""
    found: set[Process | None] = set()
    for each in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has ended since
            found |= {process_of(int(word)) for word in each.read_text(encoding="ascii").split()}
    return [process for process in found if process is not None]


def wait_until_gone(processes: list[Process]) -> None:
    """Wait for the end of processes; the test's limit of time ends it otherwise."""
    while any(is_alive(process) for process in processes):
        time.sleep(0.02)


def test_a_mistake_leaves_the_process_in_place(workers: Workers) -> None:
    """It is the user's; the next answer comes from the same process."""
    with pytest.raises(JobError, match="strategy"):
        workers.ask("step", PageState.of({**SMALL, "tp": "3"}), NONE)
    first = workers._idle[-1].process.pid

    assert "Where the step goes" in workers.ask("step", STEP, NONE)
    assert workers._idle[-1].process.pid == first


def test_what_no_one_wants_any_more_ends_at_once(workers: Workers) -> None:
    """Its process, too, and the next request gets another one."""
    started = threading.Event()
    with pytest.raises(SearchCancelledError):
        workers.ask(
            "plan",
            PageState.of(LONG),
            NONE,
            report=lambda *_: started.set(),
            is_unwanted=started.is_set,
        )

    assert started.is_set()
    assert workers.ask("figures", STEP, NONE)["step_time_s"] > 0


def test_of_many_at_once_some_wait_and_others_are_refused(workers: Workers) -> None:
    """With the reason and what to do."""
    over = threading.Event()
    unwanted: list[BaseException] = []

    def ask() -> None:
        try:
            workers.ask("plan", PageState.of(LONG), NONE, is_unwanted=over.is_set)
        except SearchCancelledError as error:
            unwanted.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    while workers._inside < 2:
        time.sleep(0.01)
    with pytest.raises(JobError, match="busy with 2 requests; try again in a minute"):
        workers.ask("step", STEP, NONE)
    over.set()
    for thread in threads:
        thread.join()

    assert len(unwanted) == 2


def test_a_process_that_is_killed_says_so_and_is_replaced(workers: Workers) -> None:
    """As the system does when memory is short."""
    before = set(children(os.getpid()))

    def kill(*_: object) -> None:
        for child in set(children(os.getpid())) - before:
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(JobError, match=r"its process ended \(signal 9\); memory may be short"):
        workers.ask("plan", PageState.of(LONG), NONE, report=kill)

    assert workers.ask("figures", STEP, NONE)["step_time_s"] > 0


def test_figures_do_not_wait_for_searches_and_nothing_is_left(server: Server) -> None:
    """The closed form answers in the server, while two plans compute elsewhere."""
    query = urlencode(LONG)
    pages = [server.ask(f"/plans?{query}", method="POST")[1] for _ in range(2)]
    numbers = [page.partition('data-number="')[2].partition('"')[0] for page in pages]
    # Each is asked for every time: a search that no page asks for is cancelled.
    while "<label>starting" in "".join(server.ask(f"/plans/{number}")[1] for number in numbers):
        time.sleep(0.02)
    running = children(server.process.pid)
    status, text = server.ask(f"/figures?{urlencode(START)}")
    for number in numbers:
        assert 'data-over="no"' in server.ask(f"/plans/{number}")[1]
        server.ask(f"/plans/{number}", method="DELETE")
    for number in numbers:
        while 'data-over="no"' in server.ask(f"/plans/{number}")[1]:
            time.sleep(0.02)

    assert status == 200
    assert "Step time" in text
    assert len([each for each in running if is_alive(each)]) == len(running) - 2


def test_a_killed_server_leaves_no_process() -> None:
    """Processes that compute for it end by themselves."""
    server = started_server()
    server.ask(f"/plans?{urlencode(LONG)}", method="POST")
    running = children(server.process.pid)
    server.process.kill()
    server.process.wait()
    assert server.process.stderr is not None
    server.process.stderr.close()
    wait_until_gone(running)

    assert running
