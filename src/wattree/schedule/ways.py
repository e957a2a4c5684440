"""Time and power of each job of a queue, for each number of nodes and power limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from wattree.accounts.bill import energy_usd_per_j, run_bill
from wattree.errors import InfeasibleError, JobError, ModelError, WattreeError
from wattree.job import AUTO, Job
from wattree.predict import Prediction, simulate
from wattree.schedule.problem import Way
from wattree.schedule.queue import JobQueue, QueuedJob
from wattree.search import plan
from wattree.strategy import StrategyOptions, options_in_words
from wattree.trace import Result
from wattree.units import counted, format_bytes

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedWay:
    """A way to run a job, with its prediction.

    Attributes:
        job: The job on as many nodes, with the strategy.
        power_limit_w: Of each device; None: the rated power. [W]
        strategy: In a few words.
        step_time_s: Of one step. [s]
        step_energy_j: Of one step, PUE included. [J]
        interval: Shortest and longest duration that is likely (80 %), as factors of the duration.
    """

    way: Way
    job: Job
    power_limit_w: float | None
    strategy: str
    step_time_s: float
    step_energy_j: float
    interval: tuple[float, float]

    def slowed(self, time: float, energy: float) -> PredictedWay:
        """Return the way with time and energy per step multiplied by these factors."""
        way = replace(
            self.way,
            duration_s=self.way.duration_s * time,
            energy_j=self.way.energy_j * energy,
            fixed_usd=self.way.fixed_usd * time,
            fixed_gco2e=self.way.fixed_gco2e * time,
        )
        return replace(
            self,
            way=way,
            step_time_s=self.step_time_s * time,
            step_energy_j=self.step_energy_j * energy,
        )


def predicted_ways(
    queue: JobQueue, *, calibration: str | Path | None = None, progress: Progress | None = None
) -> tuple[list[list[PredictedWay]], list[list[str]]]:
    """Return the ways of each job that fit in memory, and why others do not.

    Args:
        calibration: File of constants; the shipped one if None.
        progress: Called with (stage, done, total).

    Raises:
        JobError: Models cannot be built; all of them are named.
    """
    mistakes: dict[str, None] = {}
    known: dict[str, tuple[list[_Predicted], str]] = {}
    chosen: dict[str, StrategyOptions] = {}
    ways, refused = [], []
    total = sum(len(job.nodes) for job in queue.jobs)
    done = 0
    for queued in queue.jobs:
        found: list[PredictedWay] = []
        reasons: list[str] = []
        for nodes in queued.nodes:
            key = _key(queued, nodes)
            if key not in known:
                try:
                    known[key] = _on(queue, queued, nodes, calibration, chosen)
                except ModelError as error:  # on any number of nodes
                    known[key] = [], str(error)
                    mistakes[str(error).removeprefix(f"{queue.source}: ")] = None
            own, reason = known[key]
            found += [_way(queue, queued, *each) for each in own]
            reasons += [f"{counted(nodes, 'node')}: {reason}"] if reason else []
            done += 1
            if progress is not None:
                progress("predict", done, total)
        ways.append(found)
        refused.append(reasons)
    if mistakes:
        raise JobError(queue.source, list(mistakes))
    return ways, refused


def _key(queued: QueuedJob, nodes: int) -> str:
    length = (queued.steps, queued.tokens, queued.samples)
    facts = [queued.mapping, str(queued.folder), nodes, *length]
    return json.dumps(facts, sort_keys=True, default=str)


#: A job, its power limit [W] and its predicted step.
_Predicted = tuple[Job, float | None, Prediction]


def _on(
    queue: JobQueue,
    queued: QueuedJob,
    nodes: int,
    calibration: str | Path | None,
    chosen: dict[str, StrategyOptions],
) -> tuple[list[_Predicted], str]:
    """Return the steps on a number of nodes, one per power limit, or why there are none.

    Strategies are `chosen` once for jobs of any length: a plan looks for the fastest step.
    """
    try:
        job = queue.job(queued, nodes)
        if job.strategy == AUTO:
            key = _key(replace(queued, steps=0, tokens=None, samples=None), nodes)
            if key not in chosen:
                best = plan(job, top=1, calibration=calibration).best
                assert best is not None, "a plan without a best strategy is refused"
                chosen[key] = best.options
            job = replace(job, strategy=chosen[key])
        found = []
        for limit_w in queue.limits_w:
            limited = job if limit_w is None else job.capped(limit_w)
            prediction = simulate(limited, calibration=calibration)
            if not prediction.result.memory.fits:
                return [], _shortage(prediction.result)
            found.append((limited, limit_w, prediction))
    except ModelError:
        raise
    except InfeasibleError as error:
        return [], str(error).splitlines()[0]
    except WattreeError as error:
        return [], " ".join(str(error).split())
    return found, ""


def _shortage(result: Result) -> str:
    memory = result.memory
    needs, has = format_bytes(memory.peak_bytes), format_bytes(memory.capacity_bytes)
    return f"needs {needs} of {has} per device"


def _way(
    queue: JobQueue, queued: QueuedJob, job: Job, limit_w: float | None, found: Prediction
) -> PredictedWay:
    result, strategy = found.result, found.strategy
    if queued.tokens is not None and result.tokens_per_s is None:
        raise JobError(
            queued.source,
            ["tokens: the job has no data.sequence_length, so no tokens; give samples"],
        )
    run = run_bill(result, job.training.steps)
    price = energy_usd_per_j(queue.cluster) or 0.0
    low, high = run.interval.get("time_s", (run.time_s, run.time_s))
    way = Way(
        nodes=job.cluster.nodes,
        duration_s=run.time_s,
        energy_j=run.energy_j,
        fixed_usd=max((run.cost_usd or 0.0) - price * run.energy_j, 0.0),
        fixed_gco2e=run.embodied_gco2e or 0.0,
    )
    return PredictedWay(
        way=way,
        job=job,
        power_limit_w=limit_w,
        strategy=options_in_words(strategy) if isinstance(strategy, StrategyOptions) else "a tree",
        step_time_s=result.step_time_s,
        step_energy_j=result.energy_j.total,
        interval=(low / run.time_s, high / run.time_s),
    )
