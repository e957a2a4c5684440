"""Execution of a study: points are claimed, evaluated by a backend, stored as they finish."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wattree.design.backends.backend import Backend, Here, StudyWork
from wattree.design.backends.processes import Processes
from wattree.design.evaluate import models_of
from wattree.design.guided import Guide
from wattree.design.results import Results
from wattree.design.samplers import GUIDED, points_of
from wattree.design.store import LEASE_S, Store, default_store
from wattree.design.study import Study
from wattree.errors import OutputError
from wattree.files import exists

#: Called with (points finished, points in all, points that were finished before the run).
Progress = Callable[[int, int, int], None]

#: How long to wait for an outcome before looking after claims. [s]
_LOOK_S = 0.5


def run_study(
    study: Study,
    *,
    store: Path | None = None,
    on: str = "processes",
    workers: int | None = None,
    resume: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Results:
    """Evaluate every point of a study that is not finished yet, and return all outcomes.

    Finished points are stored in a file as they finish; whatever ends the run, a later one goes on
    from there. Several runs may share a file.

    Args:
        store: The file; next to the study's file if None.
        on: `processes`, `here`, `ray`, or the address of a Ray cluster.
        workers: Points evaluated at once; as many as there are cores if None.
        resume: Refuse to begin anew.
        fresh: Forget what the file holds.
        progress: Called whenever a point has finished.

    Raises:
        OutputError: The file cannot be used or written; its content does not change.
        WattreeError: A model cannot be built, or the backend cannot be used.
    """
    path, in_time, until = store or default_store(study), True, math.inf
    if study.sampler.minutes is not None:
        until = time.monotonic() + 60 * study.sampler.minutes
    if resume and not exists(path):
        raise OutputError(f"{path}: there is nothing to resume: no such file")
    # A model that cannot be built leaves no file, and takes no points from one.
    models = None if exists(path) and not fresh else models_of(study)
    with Store(path, study, fresh=fresh) as opened:
        source = _Source(study, opened)
        source.enter()
        done, _, total = opened.count()
        report = progress or (lambda *_: None)
        # Of a guided search only the points that were chosen so far are known.
        least = (study.sampler.points or 0) if study.sampler.kind == GUIDED else 0
        report(done, max(total, least), done)
        if source.is_open():
            work = StudyWork(study=study, models=models or models_of(study))
            backend = backend_of(on, work, workers=workers, points=total - done)
            try:
                in_time = _drive(
                    opened, source, backend, lambda d, t: report(d, max(t, least), done), until
                )
            finally:
                backend.close()
                opened.release()
        points = max(opened.count()[2], 0 if in_time else least)
        return Results(
            study=study, outcomes=opened.outcomes(), points=points, out_of_time=not in_time
        )


@dataclass(slots=True)
class _Source:
    """Where points come from: all at once, or guided by the outcomes of those before."""

    study: Study
    opened: Store
    guide: Guide | None = None

    def enter(self) -> None:
        """Enter the points that can be determined now."""
        if self.study.sampler.kind != GUIDED:
            self.opened.add(points_of(self.study))
            return
        self.guide = self.guide or Guide(self.study)
        outcomes = self.opened.outcomes()
        if len(outcomes) == self.opened.count()[2]:  # the next ones need all of those before
            first = len(outcomes)
            self.opened.add(self.guide.following(outcomes), first=first)

    def is_open(self) -> bool:
        """Return whether any point is not finished, after entering those that follow."""
        done, _, total = self.opened.count()
        if done == total and self.guide is not None:
            self.enter()
            done, _, total = self.opened.count()
        return done < total


def _drive(
    opened: Store,
    source: _Source,
    backend: Backend,
    report: Callable[[int, int], None],
    until: float,
) -> bool:
    """Keep the backend busy until every point is finished, here or by others.

    After `until`, of the monotonic clock, points that were begun are finished, and no others.
    Returns whether that was not needed.
    """
    opened.renew()
    renewed, in_flight = time.monotonic(), 0
    while source.is_open():
        is_over = time.monotonic() >= until
        if is_over and not in_flight:
            return False
        if not is_over and backend.free_slots and (points := opened.claim(backend.free_slots)):
            backend.submit(points)
            in_flight += len(points)
        outcomes = backend.completed(_LOOK_S) if in_flight else []
        for outcome in outcomes:
            opened.finish(outcome)
            in_flight -= 1
        if outcomes:
            done, _, total = opened.count()
            report(done, total)
        if not in_flight and not outcomes:
            time.sleep(_LOOK_S)  # others are at what is left
        if time.monotonic() - renewed > LEASE_S / 6 or not in_flight:
            opened.renew()
            renewed = time.monotonic()
    return True


def backend_of(on: str, work: StudyWork, *, workers: int | None, points: int) -> Backend:
    """Return what evaluates points.

    Args:
        on: `processes`, `here`, `ray` for a Ray cluster on this machine, or the address of one
            (`ray://HOST:PORT`).
        workers: Points at once; as many as there are cores if None.

    Raises:
        WattreeError: There is no such backend, or it cannot be used.
    """
    if on == "here" or (on == "processes" and min(points, workers or 2) < 2):
        return Here(work)
    if on == "processes":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return Processes(work, min(workers or cores or 1, points))
    if on == "ray" or on.startswith("ray://"):
        from wattree.design.backends.rays import Rays

        return Rays(work, address=None if on == "ray" else on, workers=workers)
    raise OutputError(
        f"--on: found '{on}', expected processes, here, ray, or an address such as "
        "ray://head-node:10001"
    )
