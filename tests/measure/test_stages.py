"""The parts of `Stages` alone, without torch: clocks, loaders, claims, hooks, joining."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wattree.measure.stages.claims import Claims
from wattree.measure.stages.communication import Collectives, GradientHook
from wattree.measure.stages.loader import Counts, LabeledLoader, WorkerTime, bytes_of, samples_of
from wattree.measure.stages.timeline import CpuClock, DeviceClock, Timeline

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Ticks(CpuClock):
    """A clock whose marks are 1, 2, 3, …"""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        """Return the next whole number."""
        self.now += 1
        return self.now


class FakeCuda:
    """Events that the device comes to when a test says so, at times that it sets."""

    def __init__(self) -> None:
        self.at_ms, self.done, self.waits = 0.0, 0.0, 0
        cuda = self

        class Event:
            """As torch.cuda has it."""

            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                """Take the time that the device will come here."""
                self.at_ms = cuda.at_ms

            def synchronize(self) -> None:
                """Count the waits: one is allowed."""
                cuda.waits += 1

            def query(self) -> bool:
                """Return whether the device has come here."""
                return self.at_ms <= cuda.done

            def elapsed_time(self, other: Any) -> float:
                """Return the time to another event, in single precision. [ms]"""
                return float(np.float32(other.at_ms - self.at_ms))

        self.Event = Event

    def synchronize(self) -> None:
        """Do all work."""
        self.done = math.inf


def test_times_of_a_device_are_those_of_its_queue() -> None:
    """The program has run ahead: what it waited for, the device may not have waited for."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    timeline = Timeline(clock)
    start_s = clock.seconds(clock.mark())
    for at_ms in (1000.0, 5000.0):
        cuda.at_ms = at_ms
        begin = clock.mark()
        cuda.at_ms = at_ms + 250
        timeline.add("materials", begin, clock.mark(), exposed=True)
    cuda.done = 2000.0
    timeline.drain()
    first_s = timeline.exposed_s("materials", 0.0, math.inf)
    clock.settle()
    timeline.drain()

    assert cuda.waits == 1
    assert first_s == pytest.approx(0.25)
    assert timeline.exposed_s("materials", 0.0, math.inf) == pytest.approx(0.5)
    assert timeline.exposed_s("materials", start_s + 5.1, math.inf) == pytest.approx(0.15)


def test_hours_of_events_lose_no_precision() -> None:
    """Differences are single precision: to an event of ten hours ago they are off by 4 ms."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    timeline = Timeline(clock)
    cuda.done = math.inf
    for hour in range(1, 11):
        cuda.at_ms = hour * 3.6e6 + 0.123
        begin = clock.mark()
        cuda.at_ms += 0.5
        timeline.add("materials", begin, clock.mark(), exposed=True)
        timeline.drain()

    assert timeline.exposed_s("materials", 0.0, math.inf) == pytest.approx(5e-3, rel=1e-3)


def test_only_the_part_of_a_time_within_the_window_counts() -> None:
    """Warm-up is left out, and with it the half of a wait."""
    timeline = Timeline(CpuClock())
    timeline.add("materials", 1.0, 3.0, exposed=True)
    timeline.add("materials", 1.0, 3.0, exposed=False)
    timeline.drain()

    assert timeline.exposed_s("materials", 2.0, 9.0) == 1.0
    assert timeline.busy_s("materials", 0.0, 2.5) == 1.5


def test_a_labelled_loader_is_the_loader() -> None:
    """Same batches, length and attributes; waits begin before a batch and end with it."""
    seen: list[tuple[str, Any]] = []
    loader = LabeledLoader(
        [7, 8],
        begin=lambda: seen.append(("wait", None)),
        received=lambda *told: seen.append(("batch", told[1])),
        ended=lambda core_s: seen.append(("end", core_s)),
    )

    assert list(loader) == [7, 8]
    assert len(loader) == 2
    assert loader.index(8) == 1
    assert seen == [
        ("wait", None),
        ("batch", 7),
        ("wait", None),
        ("batch", 8),
        ("wait", None),
        ("end", 0.0),
    ]


@pytest.mark.parametrize(
    ("batch", "samples", "size"),
    [
        ([np.zeros((4, 3)), np.zeros(4)], 4, 128),
        ({"ids": np.zeros((5, 2)), "mask": None}, 5, 80),
        (((np.zeros(6),), 1), 6, 48),
        ("text", None, 0),
        (np.float64(1.0), None, 8),
    ],
)
def test_samples_and_bytes_of_a_batch(batch: Any, samples: int | None, size: int) -> None:
    """Whatever containers a loader makes of its tensors."""
    assert samples_of(batch) == samples
    assert bytes_of(batch) == size


def test_samples_that_cannot_be_counted_once_are_not_known() -> None:
    """A sum with a hole in it is no sum."""
    counts = Counts()
    for batch in (np.zeros(4), "text", np.zeros(4)):
        counts.add(batch, 0.5, 2)

    assert (counts.samples, counts.core_s, counts.workers) == (None, 1.5, 2)


@pytest.mark.parametrize("stays", [True, False])
def test_all_that_workers_did_is_counted_once(*, stays: bool) -> None:
    """Epochs shorter than the time between two readings; workers that end with them, or stay."""
    reported_s: dict[int, float] = {}
    counted_s, before_s = 0.0, _children_s()
    worker = _Worker()
    for _ in range(2):
        workers = WorkerTime([worker], reported_s=reported_s)
        worker.work(0.15)
        counted_s += workers.since()
        if not stays:
            worker.end()
        counted_s += workers.rest()
        if not stays:
            worker = _Worker()
    worker.end()
    used_s = _children_s() - before_s

    # The kernel counts in hundredths, so that each of the two readings may lack one.
    assert 0.27 <= counted_s <= used_s + 0.03
    assert counted_s >= 0.5 * used_s


class _Worker:
    """A process that is busy for a given time."""

    def __init__(self) -> None:
        program = (
            "import time\n"
            "for line in iter(input, ''):\n"
            "    end = time.process_time() + float(line)\n"
            "    while time.process_time() < end: pass\n"
            "    print(flush=True)\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid

    def work(self, seconds: float) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def end(self) -> None:
        self._process.communicate()


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_processor_time_of_workers_that_are_gone_is_kept() -> None:
    """A worker that ends takes its count with it: nothing is subtracted."""
    now = iter([0.0, 1.0, 1.0, 2.0, 2.0])
    me = SimpleNamespace(pid=os.getpid())
    workers = WorkerTime([me], clock=lambda: next(now))
    first_s = workers.since()
    me_gone = workers
    me_gone._numbers = [2**22 + 1]

    assert first_s > 0
    assert me_gone.since() == 0.0


def test_a_device_is_claimed_once_in_a_job(tmp_path: Path) -> None:
    """Two ranks on one device: one reads it. Another job reads it for itself."""
    program = (
        "import sys; from pathlib import Path; from wattree.measure.stages.claims import Claims\n"
        "claims = Claims('a', folder=Path(sys.argv[1]))\n"
        "print(claims.take('GPU-1'), claims.take('GPU-2'))"
    )
    mine, other = Claims("a", folder=tmp_path), Claims("b", folder=tmp_path)
    taken = mine.take("GPU-1"), other.take("GPU-1")
    rank = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    again = Claims("a", folder=tmp_path)
    free = again.take("GPU-2")  # its holder has ended
    for claims in (mine, other, again):
        claims.release()

    assert (taken, rank.stdout.split(), free) == ((True, True), ["False", "True"], True)
    assert list(tmp_path.iterdir()) == []


def test_locks_of_killed_processes_go_with_the_next_claims(tmp_path: Path) -> None:
    """Each job has names of its own: without that, the folder would grow for ever."""
    program = (
        "import os, sys; from pathlib import Path\n"
        "from wattree.measure.stages.claims import Claims\n"
        "claims = Claims('killed', folder=Path(sys.argv[1])); claims.take('GPU-1')\n"
        "os.kill(os.getpid(), 9)"
    )
    living = Claims("living", folder=tmp_path)
    living.take("GPU-1")
    (held,) = tmp_path.iterdir()
    subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        check=False,
    )
    before = len(list(tmp_path.iterdir()))
    Claims("next", folder=tmp_path)

    assert (before, list(tmp_path.iterdir())) == (2, [held])
    living.release()


def test_a_second_loop_of_a_process_reads_what_the_first_does(tmp_path: Path) -> None:
    """A cell of a notebook that is run again: the first loop is never closed."""
    first, second = Claims("a", folder=tmp_path), Claims("a", folder=tmp_path)
    taken = first.take("GPU-1"), second.take("GPU-1")
    for claims in (second, first):
        claims.release()

    assert taken == (True, True)


class Future:
    """A collective that ends when a test says so."""

    def __init__(self) -> None:
        self.callback: Callable[[Any], Any] | None = None

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """Keep what is to be done at the end."""
        self.callback = callback
        return self

    def finish(self) -> Any:
        """End, and return what the callback makes of it."""
        assert self.callback is not None
        return self.callback(SimpleNamespace(value=lambda: ["mean"]))


def test_a_step_waits_for_gradients_from_its_last_bucket_on() -> None:
    """What is reduced before the backward pass ends is hidden by it."""
    timeline, futures = Timeline(Ticks()), [Future(), Future()]
    started = iter(futures)
    hook = GradientHook(
        timeline, lambda *_, **__: SimpleNamespace(get_future=lambda: next(started))
    )
    divided: list[int] = []
    gradients = SimpleNamespace(div_=divided.append)
    buckets = [
        SimpleNamespace(buffer=lambda: gradients, is_last=lambda: False),
        SimpleNamespace(buffer=lambda: gradients, is_last=lambda: True),
    ]
    for bucket in buckets:  # ready at 1 and 2
        hook(SimpleNamespace(size=lambda: 2), bucket)
    results = [future.finish() for future in futures]  # the second is done at 3
    timeline.drain()

    assert (results, divided) == (["mean", "mean"], [2, 2])
    assert timeline.exposed_s("communicating", 0, 9) == 1.0
    assert timeline.busy_s("communicating", 0, 9) == 2.0


def test_collectives_called_by_name_are_labelled_until_they_are_restored() -> None:
    """In flight or not; one made of another counts once."""

    def all_reduce(tensor: int, *, async_op: bool = False) -> Any:
        return SimpleNamespace(wait=lambda: "waited", tensor=tensor) if async_op else None

    def barrier() -> None:
        module.all_reduce(0)

    module = SimpleNamespace(all_reduce=all_reduce, barrier=barrier)
    timeline = Timeline(Ticks())
    labels = Collectives(timeline, module)
    module.barrier()  # 1 to 2
    work = module.all_reduce(5, async_op=True)  # 3 to 4, in flight from 5
    waited = work.wait()  # 6 to 7
    timeline.drain()
    labels.restore()

    assert (waited, work.tensor) == ("waited", 5)
    assert timeline.exposed_s("communicating", 0, 9) == 3.0
    assert timeline.busy_s("communicating", 0, 9) == 4.0
    assert (module.all_reduce, module.barrier) == (all_reduce, barrier)
