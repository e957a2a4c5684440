"""A study as typed values: the checked content of the file, with nothing computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattree.design.formula import Formula
from wattree.design.points import Value
from wattree.hardware import Description
from wattree.trace.bill import RUN_FIGURES

#: Objective → the total of a point that it has least of: a sum of weight × workload where that is
#: known; of the power the most.
OBJECTIVE_TOTALS = {**RUN_FIGURES, "power": "power_w", "capital": "capital_usd"}
#: What totals of a point may be ranked by, all of them the less the better.
OBJECTIVES = tuple(OBJECTIVE_TOTALS)
#: The strategy of a workload that leaves it to the search.
AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Something that is varied.

    Attributes:
        name: As links, points and reports call it.
        path: Dotted path of the field that it sets; empty where `choices` sets several.
        values: In SI units, in the order of the file; of a range that is sampled, its ends.
        unit: Unit as people read it; None of numbers and names.
        factor: SI value of one `unit`.
        label: For people.
        choices: Value → paths that it sets, with what; of axes without a path of their own.
        scales: Values are factors on what the field has in the base cluster.
        sampled: Between its two values, any may be drawn: `linear`, `log`, or None.
        whole: Values are whole numbers.
    """

    name: str
    path: str
    values: tuple[Value, ...]
    unit: str | None
    label: str
    factor: float = 1.0
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scales: bool = False
    sampled: str | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A field of the base cluster that is not as the catalog has it.

    Attributes:
        path: Dotted path of the field.
        value: As a file writes it, with its unit.
        source: Where the value comes from, for people.
    """

    path: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLink:
    """A field that follows from axes.

    Attributes:
        name: As later formulas call it.
        path: Dotted path of the field; empty where it is for other formulas alone.
        formula: Of axes, of links before it, and of `base`, what the field had.
        unit: Unit of its value; None of a number.
        factor: SI value of one `unit`.
        source: Where the relation comes from, for people.
        units: Axis → unit in which the formula takes it, with its SI value.
    """

    name: str
    path: str
    formula: Formula
    unit: str | None
    source: str
    factor: float = 1.0
    units: Mapping[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """How long a workload is trained: one of the three."""

    steps: float | None = None
    samples: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something that the cluster is to train.

    Attributes:
        name: For people.
        weight: How often its target is trained; totals are sums of weight × workload.
        job: Keys of a job file, without `cluster` and `strategy`.
        target: How long it is trained.
        strategy: `auto`, or a strategy as a job file writes it.
        search: Part of the space of strategies to search: keys of `schema.SearchSpec`.
        folder: Where relative paths of `job` start.
    """

    name: str
    weight: float
    job: Mapping[str, Any]
    target: Target
    strategy: Any = AUTO
    search: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyConstraints:
    """What every point must keep to; None where nothing is asked.

    Attributes:
        most: Objective → most of it for all targets. [s, J with PUE, USD, gCO2e]
        capital_usd: Most that the cluster may cost to buy. [USD]
        power_w: Most power that the site draws at any moment, PUE included. [W]
    """

    most: Mapping[str, float] = field(default_factory=dict)
    capital_usd: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Which points are tried.

    Attributes:
        kind: `grid` (every combination), `list`, `random` or `guided`.
        points: How many; None of a grid and a list.
        minutes: After which a run begins no more points; None for no limit.
        seed: Seed of random draws.
        batch: Points of a guided search that are chosen at once, before any of them is known.
        listed: The points of a list: axis → value each.
    """

    kind: str = "grid"
    points: int | None = None
    minutes: float | None = None
    seed: int = 0
    batch: int = 16
    listed: tuple[Mapping[str, Value], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question about clusters.

    Attributes:
        name, title: For files; for people.
        workloads: Models to train, with their jobs.
        cluster: The base: keys of the `cluster` section of a job file.
        changes: What of it is not as the catalog has it.
        axes: Variables of the study, slowest first.
        links: What follows from axes, in the order in which they are computed.
        constraints: What every point must keep to.
        objectives: Measures to minimize; the first ranks strategies and points.
        sampler: Which points are tried.
        notes: For people: what the study rests on, such as that it is a reconstruction.
        source: File it was read from, for messages.
        folder: Where relative paths start.
        hardware: What the files hold that it names, by kind and name.
        digest: Hash of everything that changes results.
    """

    name: str
    workloads: tuple[Workload, ...]
    cluster: Mapping[str, Any]
    axes: tuple[Axis, ...]
    title: str = ""
    changes: tuple[Change, ...] = ()
    links: tuple[AxisLink, ...] = ()
    constraints: StudyConstraints = field(default_factory=StudyConstraints)
    objectives: tuple[str, ...] = ("time",)
    sampler: Sampler = field(default_factory=Sampler)
    notes: tuple[str, ...] = ()
    source: str = "study"
    folder: Path = Path()
    hardware: Mapping[str, Description] = field(default_factory=dict, repr=False)
    digest: str = ""

    def axis(self, name: str) -> Axis:
        """Return the axis called `name`."""
        return next(axis for axis in self.axes if axis.name == name)
