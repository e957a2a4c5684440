"""Result of a search: the ranked strategies, why the first is best, and what was rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from wattree.errors import InfeasibleError, JobError
from wattree.job import Job
from wattree.job.usual import TRAITS
from wattree.search.ideas import ideas
from wattree.search.sure_fit import first_sure, fits_surely
from wattree.shown import Shown
from wattree.strategy import StrategyOptions
from wattree.strategy.described import describe_options
from wattree.trace import Result

if TYPE_CHECKING:
    from wattree.search.mixed import MixedStrategy

#: Form of the JSON of a plan; another number where a reader of this one would misread it.
SCHEMA: Final = "wattree-plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedStrategy:
    """One strategy that was simulated.

    Attributes:
        options: Its degrees and choices.
        label: The options in a few words.
        result: The figures of its step.
        power_limit_w: Power limit of each device that it needs; None for the job's own. [W]
    """

    options: StrategyOptions
    label: str
    result: Result
    power_limit_w: float | None = None

    def job(self, planned: Job) -> Job:
        """Return the job that was planned with this strategy, as `wattree plan --out` writes it.

        Its cluster has the nodes that the strategy uses, under the power limit that it needs.

        Raises:
            JobError: It uses part of a cluster of several kinds of nodes.
        """
        cluster, ranks, devices = planned.cluster, self.options.ranks, None
        if ranks < cluster.devices:
            if cluster.is_mixed:
                problem = f"{self.label} uses {ranks} of {cluster.devices} devices of several kinds"
                raise JobError(planned.source, [f"{problem}; plan a job with those pools alone"])
            each = cluster.node.devices
            cluster = replace(cluster, pools=(replace(cluster.pool, nodes=-(-ranks // each)),))
            devices = tuple(range(ranks)) if ranks % each else None
        own = tuple(key for key in planned.left_open if key == TRAITS)
        found = replace(
            planned, strategy=self.options, left_open=own, cluster=cluster, devices=devices
        )
        return found if self.power_limit_w is None else found.capped(self.power_limit_w)

    def as_json(self) -> dict[str, Any]:
        """Return the strategy, then the fields of its result, in one flat mapping.

        `options` are those of a job file, as `wattree plan --out` writes them; `strategy` is what
        they expand to.
        """
        fields = self.result.as_json()
        return {
            "label": self.label,
            "options": describe_options(self.options),
            "strategy": fields.pop("strategy"),
            "power_limit_w": self.power_limit_w,
            **fields,
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Shown):
    """Answer to "which strategy, and why".

    Attributes:
        candidates: Strategies screened.
        simulated: Of these, simulated.
        feasible: Of the candidates, those that meet every constraint.
        wall_s: Time the search took. [s]
        objective: The order of `ranked`: `time`, `energy`, `cost` or `carbon`.
        best: First of `ranked`; None if nothing is feasible.
        ranked: Strategies, best first: all simulated variants of each of the best ideas.
        explanation: Why the first strategy is best, in sentences.
        rejected: Reason → candidates rejected for it.
        pareto: The Pareto front of two objectives, if requested.
        mixed: A mix (other choices for some kinds of blocks or stages) that is better than `best`
            with 80 % probability, if one was found.
        mixes: Mixes that were simulated.
        exact: The best strategy that trains the job's own model, if `best` trains another function;
            None if `best` trains the model, or if no such strategy was found.
        warnings: Uncertain properties of the model; `Job.warnings` has those of the
            job's file.
        not_offered: Strategies that were not tried because the job's software cannot run them.
    """

    candidates: int
    simulated: int
    feasible: int
    wall_s: float = field(compare=False)
    objective: str
    best: RankedStrategy | None
    ranked: tuple[RankedStrategy, ...]
    explanation: tuple[str, ...]
    rejected: Mapping[str, int] = field(hash=False)
    pareto: tuple[RankedStrategy, ...] | None = None
    exact: RankedStrategy | None = None
    mixed: MixedStrategy | None = None
    mixes: int = 0
    warnings: tuple[str, ...] = ()
    not_offered: tuple[str, ...] = ()

    @property
    def sure(self) -> RankedStrategy | None:
        """The best that fits with 80 % probability, if `best` does not and one was found."""
        if self.best is None or fits_surely(self.best.result):
            return None
        return first_sure(self.ranked)

    @property
    def ideas(self) -> tuple[tuple[RankedStrategy, ...], ...]:
        """The ranked strategies by idea, each followed by its variants."""
        return ideas(self.ranked, self.objective)

    def records(self) -> list[dict[str, Any]]:
        """Return the ranked strategies, each with the number of its idea."""
        return [
            {"idea": number, "label": entry.label, **entry.result.records()[0]}
            for number, idea in enumerate(self.ideas, start=1)
            for entry in idea
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON, of which none is left out."""
        front = None if self.pareto is None else [entry.as_json() for entry in self.pareto]
        return {
            "schema": SCHEMA,
            "candidates": self.candidates,
            "simulated": self.simulated,
            "feasible": self.feasible,
            "wall_s": self.wall_s,
            "objective": self.objective,
            "best": None if self.best is None else self.best.as_json(),
            "sure": None if self.sure is None else self.sure.as_json(),
            "exact": None if self.exact is None else self.exact.as_json(),
            "mixes": self.mixes,
            "mixed": None if self.mixed is None else self.mixed.as_json(),
            "ranked": [
                {"idea": number, **entry.as_json()}
                for number, idea in enumerate(self.ideas, start=1)
                for entry in idea
            ],
            "explanation": list(self.explanation),
            "rejected": dict(self.rejected),
            "not_offered": list(self.not_offered),
            "pareto": front,
            "warnings": list(self.warnings),
        }


def nothing_found(error: InfeasibleError, *, objective: str, source: str, wall_s: float) -> Plan:
    """Return the plan of a search that found nothing; its explanation are the error's lines.

    Args:
        source: The job's file, which is left out of the lines.
        wall_s: Time the search took. [s]
    """
    message = str(error).removeprefix(f"{source}: ")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return Plan(
        candidates=sum(error.rejected.values()),
        simulated=0,
        feasible=0,
        wall_s=wall_s,
        objective=objective,
        best=None,
        ranked=(),
        explanation=tuple(f"{line[0].upper()}{line[1:].rstrip('.')}." for line in lines),
        rejected=error.rejected,
        warnings=tuple(error.warnings),
    )
