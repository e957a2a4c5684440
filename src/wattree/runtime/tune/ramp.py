"""Which number of processes a device is given: the search, over whatever measures a setting.

One process is tried first, on a CPU also with one thread, to separate the effect of processes from
that of threads that wait for each other. Then more processes until they no longer help, then loader
workers and MPS's share of a device's multiprocessors for the best number. Other options
of one process (a larger batch, more workers, a compiled model) are measured too. The best is
measured again in turns with the best of one process, and chosen only if it is faster by more than
the margin; one process with more loader workers is a choice as well.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

#: Numbers of processes that are tried, in order.
_PROCESSES = (2, 3, 4, 6, 8, 12, 16)
#: Share by which a setting must be ahead to be preferred: below, short trials do not tell.
_MARGIN = 0.03
#: A number of processes that is so far behind the best ends the ramp; so do two in a row behind.
_FAR_BEHIND = 0.10
#: Times that the best and one process are measured once more, in turns.
_TURNS = 2
#: Share of the free memory that may be used: a run may take a little more later on.
_MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetting:
    """The setting of a trial.

    Attributes:
        processes: On each device, `q`.
        loader_workers: Of a device; None: those of the script.
        thread_percentage: MPS's share of a device for each process; None: all. [%]
        batch_factor: What the batch is multiplied by.
        compiles: Whether the model is compiled.
        threads: Of a process, on a CPU; None: what it takes by itself.
    """

    processes: int = 1
    loader_workers: int | None = None
    thread_percentage: float | None = None
    batch_factor: int = 1
    compiles: bool = False
    threads: int | None = None

    def words(self) -> str:
        """Return it in words."""
        parts = [f"q = {self.processes}"]
        if self.batch_factor > 1:
            parts.append(f"batch x {self.batch_factor}")
        if self.loader_workers is not None:
            parts.append(f"{self.loader_workers} loader workers")
        if self.thread_percentage is not None:
            parts.append(f"{self.thread_percentage:.0f}% of threads each")
        if self.compiles:
            parts.append("torch.compile")
        if self.threads is not None:
            parts.append(f"{self.threads} thread")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """The result of a trial.

    Attributes:
        setting: What it ran with.
        fault: Why there are no figures; empty where there are.
        step_s: Of an update. [s]
        rate: Samples per second over all processes. [1/s]
        samples: Of an update, over all processes.
        energy_j: By sample; None where no meter read it. [J]
        data_share: Share of the time in which processes waited for loaders.
        memory_bytes: Of the device that one process takes. [B]
        workers: Loader workers of a device; 0 where the job has none.
        busy: Share of the time in which an accelerator had any kernel, as its meter says; None
            without one.
    """

    setting: TrialSetting
    fault: str = ""
    step_s: float = 0.0
    rate: float = 0.0
    samples: float = 0.0
    energy_j: float | None = None
    data_share: float = 0.0
    memory_bytes: float = 0.0
    workers: int = 0
    busy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RampLimits:
    """The limits of the search.

    Attributes:
        free_bytes: Memory of the fullest device before any trial. [B]
        clients: Most processes that a device takes.
        cores: Of the host near a device: most loader workers that are tried.
        shares_threads: Whether MPS's share of threads can be set.
        switches: Whether batch and model of the job can be switched by a trial.
        sets_threads: Whether a process computes by threads of which a trial may set the number.
    """

    free_bytes: float
    clients: int = 16
    cores: int = 1
    shares_threads: bool = False
    switches: bool = True
    sets_threads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of the search.

    Attributes:
        rows: Ramp first, in the order in which they were measured.
        competitors: One process, by other means.
        gain: Its rate over that of one process (on a CPU with its usual threads or with one,
            whichever is faster), as they were measured in turns; 1 for one process as it is.
    """

    rows: tuple[TrialRow, ...]
    competitors: tuple[TrialRow, ...]
    chosen: TrialSetting
    gain: float
    why: tuple[str, ...]


def ramp(measure: Callable[[TrialSetting], TrialRow], limits: RampLimits) -> Choice:
    """Search for the best number of processes on a device.

    Args:
        measure: Runs a trial; a fault of the trial is a row with it.

    Returns:
        The choice: one process where more are not ahead by more than the margin, or where the first
        trial has a fault, which is the reason then.
    """
    alone = measure(TrialSetting())
    if alone.fault:
        return Choice(
            rows=(alone,), competitors=(), chosen=TrialSetting(), gain=1.0, why=(alone.fault,)
        )
    why: list[str] = []
    singles = [alone]
    if limits.sets_threads:
        # Separates the effect of processes from that of threads that wait for each other.
        singles.append(measure(TrialSetting(threads=1)))
    single = _ahead(singles)
    rows = [*singles, *_more(measure, limits, single, why)]
    rows += _refined(measure, limits, max(rows, key=_rate))
    competitors = tuple(_competitors(measure, limits, single))
    # Loader workers of one process are the launcher's to set, as more processes are; a batch and a
    # compiled model are the script's.
    launched = [row for row in competitors if _is_launched(row.setting)]
    best, gain = _confirmed(measure, max([single, *rows, *launched], key=_rate), single, alone, why)
    why += _of_competitors(competitors, best)
    several = [row for row in rows if row.setting.processes > 1]
    if several and all(row.fault for row in several):
        why.append(
            "no trial of several processes came to a figure, so they were compared with nothing: "
            "give the script more to do (epochs, samples), or mend what stopped them"
        )
    return Choice(
        rows=tuple(rows), competitors=competitors, chosen=best.setting, gain=gain, why=tuple(why)
    )


def _ahead(rows: Sequence[TrialRow]) -> TrialRow:
    """Return the first one, or another that is ahead of it by more than the margin."""
    best = max(rows, key=_rate)
    return best if best.rate > rows[0].rate * (1 + _MARGIN) else rows[0]


def _confirmed(
    measure: Callable[[TrialSetting], TrialRow],
    best: TrialRow,
    single: TrialRow,
    alone: TrialRow,
    why: list[str],
) -> tuple[TrialRow, float]:
    """Return the best setting and its gain if it is faster again; otherwise the reference."""
    while best.setting != alone.setting:
        other = alone if best.setting == single.setting else single
        gain, words = _gain(measure, best, other), other.setting.words()
        comparison = (
            f"{best.setting.words()} against {words}, measured again in turns: {gain:.2f} x"
        )
        if gain > 1.0 + _MARGIN:
            why.append(comparison)
            return best, gain
        why.append(f"{comparison}, not more than the margin of {_MARGIN:.0%}")
        best = other
    why.append("one process as it is was not slower than others by more than the margin")
    return alone, 1.0


def _rate(row: TrialRow) -> float:
    return row.rate


def _more(
    measure: Callable[[TrialSetting], TrialRow], limits: RampLimits, alone: TrialRow, why: list[str]
) -> Iterator[TrialRow]:
    """Try more processes until they no longer help, or there is no room for them."""
    best, behind = alone.rate, 0
    # Each takes what one does with the whole batch: never less than what it takes.
    fits = _most_processes(limits, alone.memory_bytes)
    for processes in _PROCESSES:
        if processes > limits.clients:
            why.append(
                f"no more than {limits.clients} processes are tried on a device here: one for each "
                "core of a processor, or as many as MPS takes"
            )
            return
        if processes > fits:
            why.append(f"memory has room for {fits} process(es)")
            return
        row = measure(TrialSetting(processes=processes))
        yield row
        if row.fault:  # this number does not go: its batch does not divide, say
            behind += 1
        elif row.rate > best * (1 + _MARGIN):
            best, behind = row.rate, 0
        else:
            behind += 1
            if row.rate < best * (1 - _FAR_BEHIND):
                behind += 1
        fits = min(fits, _most_processes(limits, row.memory_bytes))
        if behind >= 2:
            why.append(f"the ramp ended at q = {processes}: more processes no longer helped")
            return


def _most_processes(limits: RampLimits, of_one_bytes: float) -> int:
    if of_one_bytes <= 0:
        return limits.clients
    return int(_MEMORY_SHARE * limits.free_bytes // of_one_bytes)


def _refined(
    measure: Callable[[TrialSetting], TrialRow], limits: RampLimits, best: TrialRow
) -> Iterator[TrialRow]:
    """Try other loader workers, then other shares of threads, for the best number of processes."""
    processes = best.setting.processes
    if best.workers:
        for workers in (2 * best.workers, best.workers // 2):
            if processes <= workers <= max(limits.cores, best.workers):
                row = measure(replace(best.setting, loader_workers=workers))
                yield row
                best = max(best, row, key=_rate)
    if limits.shares_threads and processes > 1:
        # NVIDIA's steps: room for overlap first, then an equal share of each.
        for share in sorted({min(200.0 / processes, 100.0), 100.0 / processes}, reverse=True):
            if share < 100.0:
                yield measure(replace(best.setting, thread_percentage=share))


def _competitors(
    measure: Callable[[TrialSetting], TrialRow], limits: RampLimits, single: TrialRow
) -> Iterator[TrialRow]:
    """Measure one process with a larger batch, more workers, a compiled model."""
    if single.workers and 2 * single.workers <= limits.cores:
        yield measure(replace(single.setting, loader_workers=2 * single.workers))
    if not limits.switches:
        return
    best = single.rate
    for factor in (2, 4):
        row = measure(replace(single.setting, batch_factor=factor))
        if not row.fault and row.samples < 1.5 * single.samples:
            row = replace(row, fault="no DataLoader sets the batch of this job", rate=0.0)
        yield row
        if row.rate <= best * (1 + _MARGIN):
            break
        best = row.rate
    yield measure(replace(single.setting, compiles=True))


def _gain(measure: Callable[[TrialSetting], TrialRow], best: TrialRow, alone: TrialRow) -> float:
    """Return the median over turns of the ratio of both rates."""
    ratios = [best.rate / alone.rate]
    for _ in range(_TURNS):
        one, other = measure(alone.setting), measure(best.setting)
        if not one.fault and not other.fault:
            ratios.append(other.rate / one.rate)
    return statistics.median(ratios)


def _of_competitors(competitors: Sequence[TrialRow], best: TrialRow) -> Iterator[str]:
    """Report which of them is faster than the choice: they change the job, so none is chosen."""
    for row in competitors:
        if row.rate > best.rate * (1 + _MARGIN):
            what = _means(row.setting)
            yield (
                f"one process with {row.setting.words().partition(', ')[2]} is "
                f"{row.rate / best.rate:.2f} x as fast as the choice ({what})"
            )


def _is_launched(setting: TrialSetting) -> bool:
    """Return whether a launcher can run the job with it: the script stays as it is."""
    return setting.batch_factor == 1 and not setting.compiles


def _means(setting: TrialSetting) -> str:
    """Return the option with which a user gets a setting of one process."""
    if setting.batch_factor > 1:
        return "another batch: another path of training"
    if setting.compiles:
        return "a change to the script"
    return "--loader-workers"
