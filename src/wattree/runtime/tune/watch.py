"""Counts the steps of a process of a trial, and ends it when enough of them were measured.

Ranks stop after the same step: rank 0 names one that is some steps ahead, and as every step waits
for all gradients, the others find the name before they get there.
"""

from __future__ import annotations

import atexit
import functools
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from wattree.files import write_atomic
from wattree.runtime.launch.spawn import leave_failure
from wattree.runtime.patches.changed_once import ChangedNumber
from wattree.runtime.tune.trial import Trial, TrialAccount

#: Steps from the one after which rank 0 says that it is enough to the last one. More than one:
#: several optimizers of a script update without waiting for each other.
_AHEAD = 4
#: After the last step a process has this long to end by itself. [s]
_ENDS_WITHIN_S = 5.0
_KIB = 1024
#: Under which rank 0 leaves the number of the last step in the store of the process group.
_LAST = "wattree-trial-last"
#: Share of the measured time after which others ask for it.
_ASKS_AFTER = 0.5


def begin(trial: Trial) -> TrialWatch:
    """Watch this process, of which torch was just imported."""
    watch = TrialWatch(trial, rank=int(os.environ.get("RANK", "0")))
    watch.begin()
    register_optimizer_step_post_hook(watch.step)
    _watch_models(watch, trial)
    _watch_loaders(watch, trial)
    return watch


class TrialWatch:
    """Measures one process of a trial."""

    def __init__(self, trial: Trial, *, rank: int) -> None:
        self._trial, self._rank = trial, rank
        self._began_s = time.monotonic()
        self._seen = self._steps = 0
        self._from: tuple[float, int, float] | None = None
        self._end_s = 0.0
        self._last: int | None = None
        self._is_over = False
        self.samples = self.workers = self.wraps = 0
        self.data_s = 0.0
        self._loaders: list[Any] = []

    def begin(self) -> None:
        """Let the account be written at the end, and end this process once its time is over."""
        atexit.register(self.leave)
        timer = threading.Timer(self._trial.limit_s, self._give_up)
        timer.daemon = True
        timer.start()

    def step(self, *ignored: Any) -> None:
        """Take note of an update.

        Raises:
            SystemExit: It was the last one of the trial.
        """
        del ignored
        if self._is_over:
            return
        now = time.monotonic()
        self._seen += 1
        if self._from is None:
            is_warm = (
                self._seen >= self._trial.warm_up_steps
                and now - self._began_s >= self._trial.warm_up_s
            )
            if self._seen == 1:
                self._began_s = now  # what comes before the first step is no warm-up
            if is_warm:
                self._from = (now, self.samples, self.data_s)
        else:
            self._steps += 1
            self._end_s = now
        if self._is_last(now):
            self._end()

    def leave(self) -> None:
        """Write the account, if there is one to write; called at the end of the process, too."""
        if self._from is None or self._steps == 0 or os.getpid() != _PROCESS:
            return
        began_s, samples, data_s = self._from
        account = TrialAccount(
            rank=self._rank,
            steps=self._steps,
            seconds=self._end_s - began_s,
            begin_s=began_s,
            end_s=self._end_s,
            samples=self.samples - samples,
            data_s=self.data_s - data_s,
            memory_bytes=_held_bytes(),
            device_used_bytes=_device_used_bytes(),
            workers=self.workers,
            wraps=self.wraps,
        )
        write_atomic(self._trial.folder / f"account{self._rank}.json", account.as_text())
        self._from = None

    def _is_last(self, now: float) -> bool:
        named = self._trial.folder / "last"
        if self._last is None and self._rank == 0 and self._from is not None:
            enough = self._steps >= self._trial.least_steps - _AHEAD
            if enough and now - self._from[0] >= self._trial.seconds:
                self._last = self._seen + _AHEAD
                write_atomic(named, str(self._last))
                self._tell_others(self._last)
        if self._last is None and named.exists():
            self._last = int(named.read_text(encoding="ascii"))
        if self._last is None:
            self._last = self._reported_by_others(now)
        return self._last is not None and self._seen >= self._last

    def _tell_others(self, last: int) -> None:
        if self._trial.has_others and dist.is_initialized():
            _get_default_store().set(_LAST, str(last))

    def _reported_by_others(self, now: float) -> int | None:
        """Return rank 0's message if its folder is on another host; None if there is none yet.

        Asking takes as long as a short step, so no one asks before rank 0 may have said it.
        """
        if not (self._trial.has_others and dist.is_initialized()) or self._from is None:
            return None
        if self._rank == 0 or now - self._from[0] < _ASKS_AFTER * self._trial.seconds:
            return None
        store = _get_default_store()
        return int(store.get(_LAST)) if store.check([_LAST]) else None

    def _end(self) -> None:
        """End this process well: the device done, the account written, its stack unwound."""
        self._is_over = True
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # a client of MPS that goes in mid-kernel disturbs the others
            self._end_s = time.monotonic()
        self.leave()
        _end_by_force(_ENDS_WITHIN_S)
        raise SystemExit(0)

    def _give_up(self) -> None:
        if self._is_over:
            return
        message = (
            f"rank {self._rank}: {self._seen} step(s) within the {self._trial.limit_s:g} s of a "
            "trial; expected more: a step is an update by an optimizer of torch.optim"
        )
        leave_failure(self._rank, code=1, message=message, is_echo=self._rank > 0)
        sys.stderr.write(f"wattree: {message}\n")
        sys.stderr.flush()
        os._exit(1)


_PROCESS = os.getpid()


def _end_by_force(seconds: float) -> None:
    """End this process after a time, whatever its threads wait for."""
    timer = threading.Timer(seconds, lambda: os._exit(0))
    timer.daemon = True
    timer.start()


def _watch_models(watch: TrialWatch, trial: Trial) -> None:
    """Count the samples of models that DDP wraps; compile the models if requested."""
    wrap = DistributedDataParallel.__init__

    @functools.wraps(wrap)
    def begin_model(self: Any, module: Any, *given: Any, **named: Any) -> None:
        if trial.compiles:
            is_cuda = next(module.parameters()).is_cuda
            module.compile(mode="reduce-overhead" if is_cuda else None)
        wrap(self, module, *given, **named)
        watch.wraps += 1

        def forward(model: Any, inputs: Any, keywords: Any) -> None:
            if model.training and torch.is_grad_enabled():
                tensors = (*inputs, *keywords.values())
                rows = (x.shape[0] for x in tensors if isinstance(x, torch.Tensor) and x.dim())
                watch.samples += next(rows, 0)

        self.register_forward_pre_hook(forward, with_kwargs=True)

    DistributedDataParallel.__init__ = begin_model


def _watch_loaders(watch: TrialWatch, trial: Trial) -> None:
    """Time waits for loaders; multiply their batches if requested."""
    make, take = DataLoader.__init__, _BaseDataLoaderIter.__next__

    @functools.wraps(make)
    def begin_loader(self: Any, *given: Any, **named: Any) -> None:
        if trial.batch_factor > 1:
            if len(given) > 1:
                given = (given[0], _multiplied(given[1], trial.batch_factor), *given[2:])
            elif "batch_size" in named:
                named["batch_size"] = _multiplied(named["batch_size"], trial.batch_factor)
        make(self, *given, **named)
        watch.workers = max(watch.workers, self.num_workers)

    @functools.wraps(take)
    def take_clocked(self: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return take(self)
        finally:
            watch.data_s += time.perf_counter() - began_s

    DataLoader.__init__, _BaseDataLoaderIter.__next__ = begin_loader, take_clocked


def _multiplied(size: int | None, factor: int) -> int | None:
    """Return a larger batch; that of a loader made of one that has it already, as it is."""
    return size if size is None or isinstance(size, ChangedNumber) else ChangedNumber(size * factor)


def _held_bytes() -> float:
    """Return the peak memory of this process and its children. [B]"""
    import multiprocessing

    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * float(
        1 if sys.platform == "darwin" else _KIB
    )
    return own + sum(
        _resident_bytes(Path(f"/proc/{child.pid}/statm"))
        for child in multiprocessing.active_children()
    )


def _resident_bytes(path: Path) -> float:
    """Return the private memory of a process; pages shared with its parent count there. [B]"""
    try:
        words = path.read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return (int(words[1]) - int(words[2])) * float(os.sysconf("SC_PAGE_SIZE"))


def _device_used_bytes() -> float:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return float(total - free)
