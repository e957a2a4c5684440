"""Labels the three stages of a training loop from inside: one line in a user's script."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wattree.measure.discovery import find_meters
from wattree.measure.measured import run_of_reading
from wattree.measure.meter import MeterOptions
from wattree.measure.stages.attribution import Split, stage_energies
from wattree.measure.stages.claims import Claims
from wattree.measure.stages.communication import labeled_communication
from wattree.measure.stages.loader import Counts, LabeledLoader
from wattree.measure.stages.parts import Part, collect, folder_of, joined, leave
from wattree.measure.stages.surroundings import (
    activity_of,
    check_place,
    class_name,
    device_index,
    device_uuid,
    gradient_bytes,
    prefetches,
    rank_and_world,
)
from wattree.measure.stages.timeline import CpuClock, DeviceClock, StageClock, Timeline
from wattree.measure.stages.work import summary_lines, uncounted, work_of
from wattree.measure.window import Window, WindowReading
from wattree.process import host
from wattree.trace import Activity, Run, StageUse, Work, write_run


class Stages:
    """Measures a training loop and labels its stages; writes a run when the program ends.

    One line, after model and optimizer are made and before the loop::

        loader = Stages(model, optimizer, out="run.json").wrap(loader)

    The loop is measured from its first batch to its last step. *Materials* is waiting for the
    loader, *communicating* waiting for collectives, *computing* all other time. Energy is split
    between them where a meter can tell, see `attribution`. Waiting that the device hides behind
    its queue of work is not waiting: with CUDA, times are those of its stream.

    Works alone and in every process of a distributed job: each device is read once, and rank 0
    writes the run of all.

    Without a loader, the `with` block is measured up to its last step: one of the optimizer, or
    with `activity="collective"` a collective, whose all-reduced bytes are counted::

        with Stages(activity="collective", out="sweep.json"):
            for _ in range(400):
                torch.distributed.all_reduce(tensor)

    Args:
        model: What is trained; `DistributedDataParallel` gets a communication hook, unless it has
            one.
        optimizer: Its steps are counted; without it, batches.
        out: File to write; parts of a job's ranks are next to it until they are joined.
        name: Of the run; that of the file if empty.
        activity: What the loop does, for fits.
        model_name: Of the model; its class if empty.
        node: Kind of the nodes; what they are made of if empty.
        meters: Kinds of meters; none for all that the machine has.
        interval_s: Time between two readings. [s]
        skip_steps: Steps at the start that are left out: compilation, warm-up.
        flop_per_sample: Forward and backward, if known. [FLOP]
        read_bytes_per_sample: From storage, if known. [B]
        work: What else is known of a step of this rank; goes before what is counted.
        wait_s: How long rank 0 waits for the others at the end. [s]
        calls: Whether collectives that the program calls by name are labeled; a program that
            labels its own in `timeline` says False.

    Attributes:
        run: The run once it is written; in a distributed job on rank 0 alone.

    Raises:
        MeterError: Nothing can be read.
        OutputError: The run cannot be written there.
        UnknownNameError: There is no such activity.
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        out: str | Path = "run.json",
        name: str = "",
        activity: Activity | str = Activity.TRAINING,
        model_name: str = "",
        node: str = "",
        meters: Sequence[str] = (),
        options: MeterOptions | None = None,
        interval_s: float = 0.1,
        skip_steps: int = 0,
        flop_per_sample: float | None = None,
        read_bytes_per_sample: float | None = None,
        work: Work | None = None,
        wait_s: float = 30.0,
        quiet: bool = False,
        calls: bool = True,
    ) -> None:
        self._out = Path(out).absolute()
        self._name = name or self._out.name.partition(".")[0]
        check_place(self._out)
        self._activity, self._node = activity_of(activity), node
        self._given = work or Work()
        self._model_name = model_name or class_name(model)
        self._skip_steps, self._wait_s, self._quiet = skip_steps, wait_s, quiet
        self._flop, self._read_bytes = flop_per_sample, read_bytes_per_sample
        self._process = os.getpid()
        self._device = device_index(model)
        self._gradient_bytes = gradient_bytes(model)
        self._claims = Claims(str(self._out))
        found = find_meters(meters, options or MeterOptions(devices=device_uuid(self._device)))
        self._window = Window(
            found.meters, interval_s=interval_s, missing=found.missing, claim=self._claims.take
        )
        self._timeline = Timeline(_clock(self._device))
        self._notes: list[str] = []
        self._counts = Counts()
        self._start: Any = None
        self._computing: Any = None
        self._end: Any = None
        self._entered: Any = None  # when a block began whose loop may have no loader
        self._has_loader = False
        self._prefetch: bool | None = None
        self._rank, self._world = 0, 1
        self._collectives = labeled_communication(
            model, self._timeline, self._called, self._notes, calls=calls
        )
        self._handle = (
            None
            if optimizer is None
            else optimizer.register_step_post_hook(lambda *_: self._stepped())
        )
        self._exit_code: int | None = 0
        self._is_closed = False
        self.run: Run | None = None
        self._window.start()
        atexit.register(self.close)

    @property
    def timeline(self) -> Timeline:
        """Timeline of the stages, for programs that label work which hooks cannot see."""
        return self._timeline

    def power_w(self, seconds: float) -> tuple[float | None, bool]:
        """Return the power over the last `seconds` [W], and whether part of it is estimated.

        The power is None while nothing can be determined yet, and of a process that reads no meter.
        """
        return self._window.recent_w(seconds)

    def wrap(self, loader: Any) -> Any:
        """Return a loader with the same batches; time waiting for it is labeled *materials*."""
        self._has_loader = True
        self._prefetch = prefetches(loader)
        return LabeledLoader(loader, begin=self._wait, received=self._received, ended=self._loaded)

    def __enter__(self) -> Self:
        """Return itself; a loop without a loader begins here."""
        self._entered = self._timeline.clock.mark()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write the run, also after an exception."""
        if isinstance(error, SystemExit) and error.code:
            self._exit_code = error.code if isinstance(error.code, int) else 1
        self._ended_by(kind)
        self.close()

    def close(self) -> None:
        """Stop measuring and write the run; a second call does nothing.

        Raises:
            OutputError: It cannot be written.
        """
        if self._is_closed or os.getpid() != self._process:  # a forked worker is not the loop
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._ended_by(getattr(sys, "last_type", None))
        self._timeline.clock.settle()
        self._window.stop()
        self._restore()
        try:
            self._write()
        finally:
            self._claims.release()

    def _restore(self) -> None:
        if self._collectives is not None:
            self._collectives.restore()
        if self._handle is not None:
            self._handle.remove()

    def _ended_by(self, kind: type[BaseException] | None) -> None:
        if kind is None or self._exit_code != 0 or kind is SystemExit:
            return
        self._exit_code = None if kind is KeyboardInterrupt else 1
        self._notes.append(f"ended by {kind.__name__}: the energy up to then")

    # What the loop does, as it does it.

    def _wait(self) -> Any:
        """Return the mark at which the loop requests a batch."""
        mark = self._timeline.clock.mark()
        if self._start is None:
            self._begin(mark)
        self._stop_computing(mark)
        return mark

    def _begin(self, mark: Any) -> None:
        self._start = mark
        self._rank, self._world = rank_and_world()
        if self._rank == 0 and self._world > 1:
            shutil.rmtree(folder_of(self._out), ignore_errors=True)  # of an earlier run

    def _is_alone(self) -> bool:
        """Return whether the loop has no loader and has begun; begin it if not."""
        if self._has_loader or self._entered is None or self._is_closed:
            return False
        if self._start is None:
            self._begin(self._entered)
            self._computing = self._entered
        return True

    def _called(self, name: str, begin: Any, reduced_bytes: int) -> None:
        """Count a collective that the program called."""
        is_collective = self._activity is Activity.COLLECTIVE
        if is_collective and self._is_alone():
            self._stop_computing(begin)
            self._end = self._computing = self._timeline.clock.mark()
        if self._start is None or name == "barrier":
            return
        self._counts.reduced_bytes += reduced_bytes
        self._counts.collectives[name] += 1
        if is_collective and not self._has_loader and self._handle is None:
            self._next_step()

    def _received(self, begun: Any, batch: Any, core_s: float, workers: int) -> None:
        mark = self._timeline.clock.mark()
        self._timeline.add("materials", begun, mark, exposed=True)
        self._computing = self._end = mark
        self._counts.add(batch, core_s, workers)
        if self._handle is None:
            self._next_step()

    def _loaded(self, core_s: float) -> None:
        """Count the work of the loader's workers since the last report."""
        if not self._is_closed:
            self._counts.core_s += core_s

    def _stepped(self) -> None:
        mark = self._timeline.clock.mark()
        is_alone = self._is_alone()
        self._stop_computing(mark)
        if is_alone:
            self._end = self._computing = mark
        self._next_step()

    def _stop_computing(self, mark: Any) -> None:
        if self._computing is not None:
            self._timeline.add("computing", self._computing, mark, exposed=False)
            self._computing, self._end = None, mark

    def _next_step(self) -> None:
        self._timeline.drain()
        self._counts.steps += 1
        if self._counts.steps == self._skip_steps:
            self._skip_steps = 0
            self._counts = Counts()
            self._start = self._timeline.clock.mark()

    # What it came to.

    def _write(self) -> None:
        part = self._part()
        if part is None:
            self._say(
                [
                    "wattree: no batch, step or collective was seen, so that nothing was measured; "
                    "wrap the loader, or put the loop into a 'with Stages(…):' block"
                ]
            )
            return
        if self._world > 1 and self._rank > 0:
            leave(part, folder_of(self._out))
            return
        others = (
            collect(folder_of(self._out), self._world, wait_s=self._wait_s)
            if self._world > 1
            else ()
        )
        self.run = joined([part, *others], self._world)
        write_run(self.run, self._out)
        self._say([*summary_lines(self.run), f"  written to {self._out}"])

    def _say(self, lines: Sequence[str]) -> None:
        if not self._quiet:
            sys.stderr.write("\n".join(lines) + "\n")

    def _part(self) -> Part | None:
        if self._start is None or self._end is None:
            return None
        self._timeline.drain()
        clock = self._timeline.clock
        start_s, end_s = clock.seconds(self._start), clock.seconds(self._end)
        if end_s <= start_s:
            return None
        reading = self._window.between(start_s, end_s)
        splits = self._splits(reading, start_s, end_s)
        run = self._rank_run(reading, start_s, end_s)
        methods = [f"energy by stage: {domain}: {s.method}" for domain, s in splits.items()]
        return Part(
            self._rank,
            host(),
            replace(run, notes=(*run.notes, *methods)),
            {domain: split.energy_j for domain, split in splits.items()},
        )

    def _splits(self, reading: WindowReading, start_s: float, end_s: float) -> dict[str, Split]:
        read = {found.domain for found in reading.meters}
        waits = {name: self._timeline.exposed(name) for name in ("materials", "communicating")}
        return {
            domain: stage_energies(track, waits, start_s, end_s)
            for domain, track in self._window.tracks().items()
            if domain in read
        }

    def _rank_run(self, reading: WindowReading, start_s: float, end_s: float) -> Run:
        return run_of_reading(
            self._window,
            reading,
            node=self._node,
            notes=(*self._notes, *uncounted(self._counts, self._given, self._activity)),
            name=self._name,
            activity=self._activity,
            model=self._model_name,
            iterations=self._counts.steps,
            work=work_of(
                self._counts,
                self._given,
                activity=self._activity,
                flop_per_sample=self._flop,
                read_bytes_per_sample=self._read_bytes,
                gradient_bytes=self._gradient_bytes,
                is_loaded=self._has_loader,
                is_copied=self._device is not None,
            ),
            prefetch=self._prefetch,
            stages=self._stages(start_s, end_s),
            exit_code=self._exit_code,
            command=tuple(sys.argv),
        )

    def _stages(self, start_s: float, end_s: float) -> dict[str, StageUse]:
        timeline, wall_s = self._timeline, end_s - start_s
        materials_s = min(timeline.exposed_s("materials", start_s, end_s), wall_s)
        waited_s = timeline.exposed_s("communicating", start_s, end_s)
        waited_s = min(waited_s, wall_s - materials_s)
        at_work_s = timeline.busy_s("computing", start_s, end_s) - waited_s
        loading_s = self._counts.core_s / max(self._counts.workers, 1)
        return {
            "materials": StageUse(busy_s=max(loading_s, materials_s), exposed_s=materials_s),
            "computing": StageUse(
                busy_s=max(0.0, at_work_s), exposed_s=wall_s - materials_s - waited_s
            ),
            "communicating": StageUse(
                busy_s=timeline.busy_s("communicating", start_s, end_s), exposed_s=waited_s
            ),
        }


def _clock(device: int | None) -> StageClock:
    if device is None:
        return CpuClock()
    import torch

    return DeviceClock(torch.cuda)
