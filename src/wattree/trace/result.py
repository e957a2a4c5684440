"""Results with their evidence. One schema for text, JSON and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from wattree.shown import Shown
from wattree.trace.bill import RunBill, RunStep, ScheduleShift, probability_within
from wattree.trace.energy import EnergyUse, PowerOverTime
from wattree.trace.memory import MemoryUse, TierUse
from wattree.trace.neighbours import NeighbourEffect
from wattree.trace.plain import as_plain
from wattree.trace.uses import ColocationUse, GenerationUse, MaterialsUse, TrainingUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of a figure.

    Attributes:
        evidence: `measured`, `fitted`, `pooled` or `datasheet`: the weakest relevant kind.
        share: Evidence → share of the quantity based on it; adds up to 1.
        note: Assumptions, in words.
        missing: What it leaves out because it is unknown: `rent` of nodes, in costs.
    """

    evidence: str
    share: Mapping[str, float]
    note: str = ""
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPart:
    """Contribution of one class of constants to the interval of the step time.

    Attributes:
        share: Share of the step time that the constants set. If the user's runs determine some of
            it, the rest, which is negative if those runs depend more on the constants.
        spread: Standard deviation of their logarithm.
    """

    share: float
    spread: float

    @property
    def deviation(self) -> float:
        """Its part of the standard deviation of the step time's logarithm; added as squares."""
        return self.share * self.spread


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """The work of one of several pools in a step.

    Attributes:
        node, device: Types of its nodes and devices.
        nodes, ranks: Nodes and ranks of the job in the pool; 0 if the job does not use it.
        rank_classes: Names of the rank classes on its devices, as in the trace.
        fullest: The rank class with the least free memory; None without ranks.
        peak_memory_bytes, memory_capacity_bytes: Peak and capacity of that class. [B]
        memory_fits: Whether the peak is within the capacity.
        computing: Share of the step in which its ranks compute, on average.
        energy_j: Its part of the step's energy, with PUE. [J]
        cost_usd: Its part of the step's cost; None if its nodes have no price. [USD]
    """

    node: str
    device: str
    nodes: int
    ranks: int
    rank_classes: tuple[str, ...]
    fullest: str | None
    peak_memory_bytes: float
    memory_capacity_bytes: float
    memory_fits: bool
    computing: float
    energy_j: float
    cost_usd: float | None


#: Parts of a step as people call them.
STEP_PART_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "compute": "compute",
        "recomputation": "recomputation",
        "exposed_communication": "exposed communication",
        "exposed_materials": "waiting for input",
        "bubble": "pipeline bubble",
        "optimizer": "optimizer",
        "other": "host overhead",
    }
)


def step_part_words(*strategies: object) -> Mapping[str, str]:
    """Return the parts of steps as people call them.

    Args:
        strategies: Of the steps, as results have them: updates on the host are in `other`.
    """
    for each in strategies:
        offload = each.get("offload") if isinstance(each, Mapping) else None
        if isinstance(offload, Mapping) and offload.get("optimizer"):
            return {**STEP_PART_WORDS, "other": "host optimizer and overhead"}
    return STEP_PART_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Parts of the step of the slowest rank; they add up to the step time. [s]

    Every instant counts for the first part that applies.

    Attributes:
        compute, recomputation, optimizer: A computation of that phase runs.
        exposed_communication: None runs, and communication of this rank is in flight.
        exposed_materials: Neither, and the input is being read or copied; or all other work of all
            ranks is done, and data of later steps is not ready.
        other: Neither, and the host works: overhead of the step outside operators.
        bubble: Nothing of this rank runs.
    """

    compute: float
    recomputation: float
    exposed_communication: float
    exposed_materials: float
    bubble: float
    optimizer: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSize:
    """Size and duration of a simulation.

    Attributes:
        tasks, events: Tasks and events of the simulated graph.
        rank_classes: Classes of equal ranks, each simulated once.
        compile_s, run_s: Time to compile the graph, and to simulate it; not compared. [s]
    """

    tasks: int
    events: int
    rank_classes: int
    compile_s: float = field(compare=False)
    run_s: float = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result(Shown):
    """One training step of one job. Units as in the field names; None where it does not apply.

    Attributes:
        model, cluster: Names of the model and the cluster.
        strategy: `mesh`, `schedule`, `tree` and other set keys; without `preset`, which is a
            name for readers, it can be pasted into a job file and gives the same figures.
        ranks: Ranks of the job.
        step_time_s: Time of one step, from its first task to its last. [s]
        samples_per_s, tokens_per_s: Throughput of the whole job.
        tokens_per_s_per_device: The same over the devices.
        mfu, hfu: Model FLOP, and executed FLOP, over time x dense peak of `mfu_precision`.
        mfu_precision: The job's precision.
        model_flop_per_step: FLOP of the model's matmuls: a multiply-add counts two,
            attention counts only visible scores, without recomputation. [FLOP]
        parameters: Parameters of the trained function, tied ones once, including frozen ones.
        memory: Memory of the fullest rank.
        time_s: Parts of the step on the slowest rank.
        energy_j: Energy of all nodes of the job, with the site's PUE.
        average_power_w, peak_power_w: Power of all devices and nodes of the job, before PUE; the
            peak is over 256 equal parts of the step. [W]
        pue: Facility energy / energy of the nodes at the site: average power × PUE × time is the
            energy. None if unknown.
        cost_usd: Rent of the nodes for the step, or the price in `energy` of the job; None if no
            price is known. Electricity is part of a catalog rent. [USD]
        carbon_gco2e: Energy x intensity of the grid, and `embodied_gco2e`; None if the intensity is
            unknown. [gCO2e]
        embodied_gco2e: The step's share of the emissions of making the hardware; None if the job
            does not state them. [gCO2e]
        provenance: Quantity → its evidence.
        simulation: Size and duration of the simulation.
        power: Power over the step by component; not in results of `plan`.
        run_step: The step with its share of what interrupts a run; None where nothing does.
        run: A run to the requested tokens or samples; None if not requested.
        shift: The same job at other hours; None if not requested.
        training: Results of a real run; None for predictions.
        interval: Quantity → its 80 % interval, for known quantities.
        interval_parts: The parts of the interval of the step time, by class of constants;
            `residual` is the error that constants do not explain, `left_open` the effect of open
            options of the job, `slower` what steps of others lose, above the prediction alone.
        evidence_class: The evidence for jobs of this kind: kind, level of the device's constants,
            and whether the software has measured rows.
        assumed: Assumptions where the job states nothing.
        neighbours: The same step with other jobs; None if the job has no neighbors. All other
            figures are of the job alone.
        pools: The pools of a cluster with several; empty if all nodes are equal.
        materials: The input pipeline; None if the job does not describe it.
        tiers: Memory behind the devices that the strategy uses.
        dense_parameters: Parameters of the job's model, if the strategy trains another function;
            None if it trains the model. JSON then also has `function`, `changed`,
            and `parameter_ratio`; FLOP and MFU are those of the trained function.
        colocation: Several processes on each device; None for one.
        workload: `train`, `forward` or `generate`.
        generation: Generated tokens; the other figures are of the whole generation. None without
            generation.
    """

    model: str
    cluster: str
    strategy: Mapping[str, Any]
    ranks: int
    step_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    mfu: float
    hfu: float
    mfu_precision: str
    model_flop_per_step: float
    parameters: int
    memory: MemoryUse
    time_s: TimeParts
    energy_j: EnergyUse
    average_power_w: float
    peak_power_w: float
    cost_usd: float | None
    carbon_gco2e: float | None
    provenance: Mapping[str, Evidence]
    simulation: SimulationSize
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    interval_parts: Mapping[str, IntervalPart] = field(default_factory=dict)
    evidence_class: str = ""
    assumed: tuple[str, ...] = field(default=())
    neighbours: NeighbourEffect | None = None
    pools: tuple[PoolUse, ...] = ()
    materials: MaterialsUse | None = None
    embodied_gco2e: float | None = None
    power: PowerOverTime | None = None
    run_step: RunStep | None = None
    run: RunBill | None = None
    shift: ScheduleShift | None = None
    dense_parameters: int | None = None
    training: TrainingUse | None = None
    tiers: tuple[TierUse, ...] = ()
    colocation: ColocationUse | None = None
    workload: str = "train"
    generation: GenerationUse | None = None
    pue: float | None = None

    def __hash__(self) -> int:
        return hash((self.model, self.cluster, self.ranks, self.step_time_s))

    @property
    def in_run(self) -> RunStep:
        """The step with its share of what interrupts a run, if anything does."""
        return self.run_step or self.uninterrupted

    @property
    def uninterrupted(self) -> RunStep:
        """The step as one of a run that nothing interrupts."""
        return RunStep(
            time_s=self.step_time_s,
            energy_j=self.energy_j.total,
            cost_usd=self.cost_usd,
            carbon_gco2e=self.carbon_gco2e,
            embodied_gco2e=self.embodied_gco2e,
        )

    @property
    def processes_per_device(self) -> int:
        """Training processes on each device."""
        return 1 if self.colocation is None else self.colocation.processes_per_device

    @property
    def fit_probability(self) -> float | None:
        """Probability that the fullest device has enough memory; None if it is not known.

        Nor where other memory decides: what overflows into it fills a device on purpose.
        """
        span = self.interval.get("memory.peak_bytes")
        if span is None or any(tier.name == "cxl" or not tier.fits for tier in self.tiers):
            return None
        return probability_within(self.memory.peak_bytes, span, self.memory.capacity_bytes)

    @property
    def function(self) -> str:
        """`exact` where the job's model is trained, `changed` where another function is."""
        return "exact" if self.dense_parameters is None else "changed"

    @property
    def parameter_ratio(self) -> float:
        """Parameters of what is trained over those of the job's model."""
        return 1.0 if self.dense_parameters is None else self.parameters / self.dense_parameters

    @property
    def samples_per_j(self) -> float | None:
        """Samples for a joule; None where no energy is known. [1/J]"""
        total_j = self.energy_j.total
        return self.samples_per_s * self.step_time_s / total_j if total_j > 0 else None

    @property
    def tokens_per_j(self) -> float | None:
        """Tokens for a joule; None where samples have none. [1/J]"""
        if self.tokens_per_s is None or not self.energy_j.total > 0:
            return None
        return self.tokens_per_s * self.step_time_s / self.energy_j.total

    @property
    def energy_delay_product_js(self) -> float:
        """Energy of a step times its time. [J s]"""
        return self.energy_j.total * self.step_time_s

    def records(self) -> list[dict[str, Any]]:
        """Return the figures; of the strategy its degrees and schedule, without its tree."""
        fields = self.as_json()
        strategy = {key: part for key, part in fields["strategy"].items() if key != "tree"}
        del fields["provenance"]
        return [fields | {"strategy": strategy}]

    @property
    def timed(self) -> str:
        """What its time, energy and money are of: a step, or the batch that is generated."""
        return "step" if self.generation is None else "batch"

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON, of which none is left out."""
        fields: dict[str, Any] = as_plain(self)
        fields["memory"]["fit_probability"] = self.fit_probability
        return fields | {
            "function": self.function,
            "parameter_ratio": self.parameter_ratio,
            "samples_per_j": self.samples_per_j,
            "tokens_per_j": self.tokens_per_j,
            "energy_delay_product_js": self.energy_delay_product_js,
        }
