"""How many nodes a run needs: the smallest cluster that meets the limits of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wattree.accounts.bill import run_bill
from wattree.errors import HardwareError, InfeasibleError, JobError
from wattree.job import Job
from wattree.search.limits import Limits, suited
from wattree.search.objective import LIMITS, RUN_LIMITS, check_limits, run_limits
from wattree.search.plan import meets_by_estimate, plan
from wattree.search.plan_result import SCHEMA, Plan, RankedStrategy
from wattree.trace import RunBill
from wattree.trace.bill import RUN_FIGURES

#: What a number of nodes may miss.
NOTHING, _LATE = "no strategy fits", LIMITS["time"][0]
#: Untried numbers of nodes that are estimated; each takes up to a second.
_MOST_ESTIMATED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedCluster:
    """One number of nodes that was tried.

    Attributes:
        plan: Its strategies, whatever the run takes; None where none fits.
        run: The run with the best of them; None if none fits.
        misses: The unmet constraints, in words; empty if it meets all.
        probability: At most that of the run meeting its limits; None
            without any, or where one has no interval.
    """

    nodes: int
    plan: Plan | None
    run: RunBill | None
    misses: tuple[str, ...]
    probability: float | None = None

    @property
    def best(self) -> RankedStrategy | None:
        """The best strategy; None where none fits."""
        return None if self.plan is None else self.plan.best

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "nodes": self.nodes,
            "best": None if self.best is None else self.best.as_json(),
            "run": None if self.run is None else asdict(self.run),
            "misses": list(self.misses),
            "probability": self.probability,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Answer to "how many nodes do I need".

    Attributes:
        tried: By number of nodes.
        smallest: The first of them that meets everything; None where none does.
        ruled_out: Numbers of nodes that miss something by the estimate of their best strategy.
        skipped: Numbers of nodes that were to try, below the answer, and were neither.
        most: Objective → the most of it that the run may have. [s, USD, J, gCO2e]
    """

    tried: tuple[SizedCluster, ...]
    smallest: SizedCluster | None
    ruled_out: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()
    most: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {
            "schema": SCHEMA,
            "smallest": None if self.smallest is None else self.smallest.as_json(),
            "tried": [each.as_json() for each in self.tried],
            "ruled_out": list(self.ruled_out),
            "skipped": list(self.skipped),
        }


def run_of(job: Job, best: RankedStrategy) -> RunBill:
    """Return time, energy and cost of all `training.steps` with a strategy."""
    return run_bill(best.result, job.training.steps)


def smallest_cluster(
    job: Job,
    nodes: Sequence[int],
    *,
    begins: Callable[[int], None] = lambda _: None,
    **options: Any,
) -> Sizing:
    """Return the smallest number of nodes with which `training.steps` meet their limits.

    Numbers are doubled until one meets the deadline, then the interval below it is halved. A
    smaller number can be faster where it suits the model and the batch better. So untried smaller
    numbers are estimated in closed form, and those that may meet everything are tried too.

    Args:
        job: Model and one kind of nodes; its number of nodes and its strategy are not read.
        nodes: Numbers that may be tried, ascending.
        begins: Called with each number before it is tried.
        options: Further arguments of `plan`, such as the limits of the run (`deadline_s`).

    Raises:
        JobError: The cluster has pools, or a limit needs a price or a carbon intensity that the job
            lacks.
    """
    if job.cluster.is_mixed:
        raise JobError(job.source, ["cluster.pools: --nodes needs nodes of one kind"])
    limits = {name: options.pop(name, None) for name in RUN_LIMITS}
    most = run_limits(**limits)
    # Whoever pays for nodes pays for idle ones too: fewer nodes are a number of their own.
    options["limits"] = replace(options.get("limits") or Limits(), idle_nodes=False)
    check_limits(job, most)
    sized, tried = _sized(job, nodes)

    def is_fast(number: int) -> bool:
        begins(number)
        found = tried[number] = _tried(sized[number], options, limits)
        return found.plan is not None and _LATE not in found.misses

    if sized:
        _halved(list(sized), is_fast)
    ruled_out = []
    for number in _worth_an_estimate(job, sized, tried):
        if not meets_by_estimate(sized[number], most=most, **options):
            ruled_out.append(number)
        elif is_fast(number) and not tried[number].misses:
            break
    first = _first_met(tried)
    known = {*tried, *ruled_out}
    return Sizing(
        tried=tuple(tried[number] for number in sorted(tried)),
        smallest=first,
        ruled_out=tuple(ruled_out),
        skipped=tuple(n for n in nodes if n not in known and (first is None or n < first.nodes)),
        most=most,
    )


def _sized(job: Job, nodes: Sequence[int]) -> tuple[dict[int, Job], dict[int, SizedCluster]]:
    """Return the job on each number of nodes, and the first number that cannot be a cluster."""
    sized: dict[int, Job] = {}
    lacking: dict[int, SizedCluster] = {}
    for number in nodes:
        pool = replace(job.cluster.pool, nodes=number)
        try:
            sized[number] = replace(job, cluster=replace(job.cluster, pools=(pool,)))
        except HardwareError as error:  # more nodes lack the same: the first says what
            if not lacking:
                lacking[number] = SizedCluster(
                    nodes=number, plan=None, run=None, misses=error.lines
                )
    return sized, lacking


def _first_met(tried: Mapping[int, SizedCluster]) -> SizedCluster | None:
    """Return the smallest of clusters that meets everything."""
    met = [n for n, each in tried.items() if each.plan is not None and not each.misses]
    return tried[min(met)] if met else None


def _worth_an_estimate(
    job: Job, numbers: Iterable[int], tried: Mapping[int, SizedCluster]
) -> list[int]:
    """Return untried numbers below the answer, ascending.

    Of many, those that leave the least to split other than the batch.
    """
    first = _first_met(tried)
    found = (n for n in numbers if n not in tried and (first is None or n < first.nodes))
    return suited(found, batch=job.data.global_batch, most=_MOST_ESTIMATED)


def _halved(numbers: Sequence[int], meets: Callable[[int], bool]) -> None:
    """Call `meets` on numbers until the first that meets is found, as if all after it met too."""
    low, high = -1, 0  # `low` does not meet, `high` is tried next
    while not meets(numbers[high]):
        if high == len(numbers) - 1:
            return
        low, high = high, min(2 * high + 1, len(numbers) - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(numbers[middle]) else (middle, high)


def _tried(job: Job, options: Mapping[str, Any], limits: Mapping[str, Any]) -> SizedCluster:
    """Return the run of a job's steps with the best strategy on its nodes.

    It is the best of those that meet the limits, if there are any.
    """
    nodes = job.cluster.nodes
    try:
        found = plan(job, **options)
    except InfeasibleError:
        return SizedCluster(nodes=nodes, plan=None, run=None, misses=(NOTHING,))
    best = _with_best(job, found, run_limits(**limits))
    # If the objective itself is over its limit, no strategy meets it.
    if best.misses and LIMITS[found.objective][0] not in best.misses:
        try:
            return _with_best(job, plan(job, **options, **limits), run_limits(**limits))
        except InfeasibleError:
            pass
    return best


def _with_best(job: Job, found: Plan, most: Mapping[str, float]) -> SizedCluster:
    """Return the run with the best strategy of a plan, and which limits it misses."""
    assert found.best is not None, "a plan without a best strategy is refused"
    run = run_of(job, found.best)
    misses = [
        LIMITS[name][0] for name, limit in most.items() if getattr(run, RUN_FIGURES[name]) > limit
    ]
    # Time sets all, so that all are met at most as probably as the least likely one.
    likely = [run.probability_within(RUN_FIGURES[name], limit) for name, limit in most.items()]
    return SizedCluster(
        nodes=job.cluster.nodes,
        plan=found,
        run=run,
        misses=tuple(misses),
        probability=None if None in likely else min(filter(None, likely), default=None),
    )
