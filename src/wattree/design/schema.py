"""The keys of a study file. Paths and quantities are checked against hardware in `load`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from wattree.job.section import Section, key
from wattree.job.values import ABOVE_ZERO, UnitValue
from wattree.predict.left_open import DEFAULT_MARGIN

#: Points of one study that are worth starting; more are refused with what to do.
MOST_POINTS = 200_000
_MOST_COUNT = 1e18


def _count(value: object) -> object:
    """Read numbers such as 1e12, also where they are written as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"found {value!r}, expected a number above 0, such as 1e12")
    if not 0 < value <= _MOST_COUNT:
        raise ValueError(f"found {value!r}, expected a number above 0, at most {_MOST_COUNT:g}")
    return float(value)


def _listed(value: object) -> object:
    """Read one value as a list of one."""
    return value if isinstance(value, list) else [value]


def _one_or_list(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item}]})


Count = Annotated[float, BeforeValidator(_count)]
_Degrees = Annotated[
    list[Annotated[int, Field(ge=1, le=10**9)]],
    BeforeValidator(_listed),
    _one_or_list({"type": "integer", "minimum": 1, "maximum": 10**9}),
]
_Names = Annotated[list[str], BeforeValidator(_listed), _one_or_list({"type": "string"})]


_Usd = Annotated[float, UnitValue("usd", "an amount", "2 MUSD", least=ABOVE_ZERO)]
_Watts = Annotated[float, UnitValue("w", "a power", "5 MW", least=ABOVE_ZERO)]
_Time = Annotated[float, UnitValue("s", "a time", "30 d", least=ABOVE_ZERO)]
_Joules = Annotated[float, UnitValue("j", "an energy", "10 MWh", least=ABOVE_ZERO)]
_Carbon = Annotated[float, UnitValue("gco2e", "a mass", "100 tCO2e", least=ABOVE_ZERO)]


class TargetSpec(Section):
    """How long a workload is trained."""

    steps: Count | None = key("a number of steps")
    samples: Count | None = key("a number of samples")
    tokens: Count | None = key("a number of tokens, such as 1e12")


class SearchSpec(Section):
    """Strategies to try; by default all legal ones."""

    dp: _Degrees | None = key("a whole number, or a list of them")
    fsdp: _Degrees | None = key("a whole number, or a list of them")
    tp: _Degrees | None = key("a whole number, or a list of them")
    cp: _Degrees | None = key("a whole number, or a list of them")
    pp: _Degrees | None = key("a whole number, or a list of them")
    ep: _Degrees | None = key("a whole number, or a list of them")
    micro_batch: _Degrees | None = key("a whole number, or a list of them")
    virtual_stages: _Degrees | None = key("a whole number, or a list of them")
    sharding: _Names | None = key("none, zero1, zero2, zero3 or hybrid, or a list of them")
    recompute: _Names | None = key("none, selective or full, or a list of them")
    schedule: _Names = key("a pipeline schedule, or a list of them", ["1f1b", "interleaved"])
    context: _Names | None = key("a way of context parallelism, or a list of them")
    placements: _Names | None = key(
        "'device', or optimizer, parameters, activations and overflow joined by '+' for what "
        "is stored in expanded memory, or a list of them"
    )
    phantom: bool = key("true or false, whether phantom layers are tried as well", False)
    any_software: bool = key(
        "true or false, whether strategies that the job's software cannot run are tried as well",
        False,
    )
    processes_per_device: _Degrees = key(
        "a whole number, or a list of them: training processes on each device; several are "
        "whole replicas, which share the batch",
        [1],
    )
    memory: Literal["enforced", "ignored"] = key(
        "'enforced', or 'ignored': any strategy fits, and results say so", "enforced"
    )
    margin: float = key(
        "a share from 0 to below 1, of each device's memory, that searched strategies leave free",
        DEFAULT_MARGIN,
        ge=0.0,
        lt=1.0,
    )
    objective: Literal["time", "energy", "cost", "carbon"] | None = key(
        "time, energy, cost or carbon: what the best strategy has least of"
    )
    fewer_devices: bool = key(
        "true or false, whether strategies may leave devices idle (they count in power and cost)",
        False,
    )
    simulate: int = key(
        "a whole number from 0, how many of the most promising strategies are simulated at "
        "most, as long as any may still be the best; 0 leaves figures to the closed form",
        8,
        ge=0,
        le=64,
    )


class WorkloadSpec(Section):
    """Something to train."""

    name: str = Field(description="a name, for people")
    weight: Count = key("a number above 0, how often the target is trained", 1.0)
    job: str | dict[str, Any] = Field(
        description="the path of a job file, or its keys: model, data, software and so on"
    )
    target: TargetSpec = Field(
        default_factory=TargetSpec, description="a mapping with steps, samples or tokens"
    )
    strategy: Any = key(
        "'auto', or a strategy as a job file writes it, which is then fixed", "auto"
    )
    search: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of what strategies are tried"
    )


class AxisSpec(Section):
    """Something that is varied."""

    path: str | None = key("a field by its dotted path, such as device.memory or cluster.nodes")
    values: list[Any] | None = key("a list of values with their units")
    range: list[Any] | None = key(
        "a list of the two ends with their units, such as [50 GB/s, 900 GB/s]"
    )
    points: Annotated[int, Field(ge=2, le=10_000)] | None = key(
        "a whole number from 2 to 10000, values in the range, its ends included"
    )
    spacing: Literal["linear", "log"] = key("'linear' or 'log'", "linear")
    choices: dict[str, dict[str, Any]] | None = key(
        "a mapping of names to what each sets: dotted paths with values"
    )
    label: str | None = key("a text, the axis for people")


class LinkSpec(Section):
    """A field that follows from axes."""

    path: str = key("a field by its dotted path, such as node.price", "")
    formula: str | int | float = Field(
        description="arithmetic over axes, earlier links and base, such as base + 0.1 * bandwidth"
    )
    unit: str | None = key("the unit of its value, such as USD/h")
    units: dict[str, str] = Field(
        default_factory=dict,
        description="a mapping of axes to the units in which the formula takes them",
    )
    source: str = Field(description="a text, where the relation comes from")


class ConstraintsSpec(Section):
    """What every point must keep to."""

    budget: _Usd | None = key("an amount such as '2 MUSD', for training all targets")
    capital: _Usd | None = key("an amount such as '20 MUSD', for buying the cluster")
    power: _Watts | None = key(
        "a power such as '5 MW', of the site at any moment, with PUE (plan --power-cap is "
        "before PUE)"
    )
    deadline: _Time | None = key("a time such as '30 d', for all targets")
    energy: _Joules | None = key("an energy such as '10 MWh', for all targets, with PUE")
    carbon: _Carbon | None = key("a mass such as '100 tCO2e', for all targets")


class SamplerSpec(Section):
    """Which points are tried."""

    kind: Literal["grid", "list", "random", "guided"] = key("grid, list, random or guided", "grid")
    points: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = key(
        "a whole number, points that random and guided samplers try"
    )
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = key(
        "a number above 0, minutes after which a run begins no more points"
    )
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = key(
        "a whole number from 0, the seed of what is drawn", 0
    )
    batch: Annotated[int, Field(ge=1, le=1024)] = key(
        "a whole number, points of a guided search that are chosen at once", 16
    )
    listed: list[dict[str, Any]] | None = key(
        "a list of mappings of every axis to one of its values"
    )


class StudyFile(Section):
    """A study."""

    name: str | None = key("a name; the file's by default")
    title: str = key("a text, for people", "")
    notes: _Names = Field(
        default_factory=list, description="a text or a list of texts that every result shows"
    )
    workloads: list[dict[str, Any]] = Field(description="a list of workloads")
    cluster: dict[str, Any] = Field(description="a mapping with node and nodes, as in a job file")
    changes: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of dotted paths to values of the base cluster"
    )
    axes: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="a mapping of names to axes"
    )
    links: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="a mapping of names to links"
    )
    constraints: dict[str, Any] = Field(
        default_factory=dict,
        description="a mapping with budget, capital, power, deadline, energy and carbon",
    )
    objectives: _Names = Field(
        default_factory=lambda: ["time"],
        description="a list of time, energy, cost, carbon, power and capital",
    )
    search: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of what strategies are tried"
    )
    sampler: dict[str, Any] = Field(default_factory=dict, description="a mapping with kind")


#: Sections that a file's reader takes one by one, so that all of their errors are reported at once.
_SECTIONS: dict[str, type[BaseModel]] = {
    "workloads": WorkloadSpec,
    "axes": AxisSpec,
    "links": LinkSpec,
    "constraints": ConstraintsSpec,
    "search": SearchSpec,
    "sampler": SamplerSpec,
}


def study_schema() -> dict[str, Any]:
    """Return the JSON schema of a study file (draft 2020-12)."""
    schema = StudyFile.model_json_schema()
    parts = schema.setdefault("$defs", {})
    for name, section in _SECTIONS.items():
        inner = section.model_json_schema(ref_template="#/$defs/{model}")
        parts |= inner.pop("$defs", {})
        parts[section.__name__] = inner
        reference = {"$ref": f"#/$defs/{section.__name__}"}
        held = schema["properties"][name]
        if name == "workloads":
            held["items"] = reference
        elif name in {"axes", "links"}:
            held["additionalProperties"] = reference
        else:
            schema["properties"][name] = {**reference, "description": held["description"]}
    parts["WorkloadSpec"]["properties"]["search"] = {"$ref": "#/$defs/SearchSpec"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
