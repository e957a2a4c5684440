"""The keys of a study file. Paths and quantities are checked against hardware in `load`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from wattree.errors import UnitError
from wattree.units import parse_quantity

#: Points of one study that are worth starting; more are refused with what to do.
MOST_POINTS = 200_000
_MOST_COUNT = 1e18


class _Section(BaseModel):
    """A mapping of the file: unknown keys are errors, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _of(dimension: str, example: str) -> BeforeValidator:
    def read(value: object) -> float:
        try:
            return parse_quantity(value, dimension)
        except UnitError as error:
            raise ValueError(f"{error} ({example})") from error

    return BeforeValidator(read)


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
#: An amount is written with its unit.
_WRITTEN = WithJsonSchema({"type": "string"})


class TargetSpec(_Section):
    """How long a workload is trained."""

    steps: Count | None = Field(None, description="a number of steps")
    samples: Count | None = Field(None, description="a number of samples")
    tokens: Count | None = Field(None, description="a number of tokens, such as 1e12")


class SearchSpec(_Section):
    """Strategies to try; by default all legal ones."""

    dp: _Degrees | None = Field(None, description="a whole number, or a list of them")
    fsdp: _Degrees | None = Field(None, description="a whole number, or a list of them")
    tp: _Degrees | None = Field(None, description="a whole number, or a list of them")
    cp: _Degrees | None = Field(None, description="a whole number, or a list of them")
    pp: _Degrees | None = Field(None, description="a whole number, or a list of them")
    ep: _Degrees | None = Field(None, description="a whole number, or a list of them")
    micro_batch: _Degrees | None = Field(None, description="a whole number, or a list of them")
    virtual_stages: _Degrees | None = Field(None, description="a whole number, or a list of them")
    sharding: _Names | None = Field(
        None, description="none, zero1, zero2, zero3 or hybrid, or a list of them"
    )
    recompute: _Names | None = Field(None, description="none, selective or full, or a list of them")
    schedule: _Names = Field(
        ["1f1b", "interleaved"], description="a pipeline schedule, or a list of them"
    )
    context: _Names | None = Field(
        None, description="a way of context parallelism, or a list of them"
    )
    placements: _Names | None = Field(
        None,
        description="'device', or optimizer, parameters, activations and overflow joined by '+' "
        "for what is stored in expanded memory, or a list of them",
    )
    phantom: bool = Field(
        default=False, description="true or false, whether phantom layers are tried as well"
    )
    processes_per_device: _Degrees = Field(
        [1],
        description="a whole number, or a list of them: training processes on each device; "
        "several are whole replicas, which share the batch",
    )
    memory: Literal["enforced", "ignored"] = Field(
        "enforced", description="'enforced', or 'ignored': any strategy fits, and results say so"
    )
    objective: Literal["time", "energy", "cost", "carbon"] | None = Field(
        None, description="time, energy, cost or carbon: what the best strategy has least of"
    )
    fewer_devices: bool = Field(
        default=False, description="true or false, whether strategies may leave devices idle"
    )
    simulate: int = Field(
        8,
        ge=0,
        le=64,
        description="a whole number from 0, how many of the most promising strategies are "
        "simulated at most, as long as any may still be the best; 0 leaves figures to the closed "
        "form",
    )


class WorkloadSpec(_Section):
    """Something to train."""

    name: str = Field(description="a name, for people")
    weight: Count = Field(1.0, description="a number above 0, how often the target is trained")
    job: str | dict[str, Any] = Field(
        description="the path of a job file, or its keys: model, data, software and so on"
    )
    target: TargetSpec = Field(
        default_factory=TargetSpec, description="a mapping with steps, samples or tokens"
    )
    strategy: Any = Field(
        "auto", description="'auto', or a strategy as a job file writes it, which is then fixed"
    )
    search: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of what strategies are tried"
    )


class AxisSpec(_Section):
    """Something that is varied."""

    path: str | None = Field(
        None, description="a field by its dotted path, such as device.memory or cluster.nodes"
    )
    values: list[Any] | None = Field(None, description="a list of values with their units")
    range: list[Any] | None = Field(
        None, description="a list of the two ends with their units, such as [50 GB/s, 900 GB/s]"
    )
    points: Annotated[int, Field(ge=2, le=10_000)] | None = Field(
        None, description="a whole number from 2 to 10000, values in the range, its ends included"
    )
    spacing: Literal["linear", "log"] = Field("linear", description="'linear' or 'log'")
    choices: dict[str, dict[str, Any]] | None = Field(
        None, description="a mapping of names to what each sets: dotted paths with values"
    )
    label: str | None = Field(None, description="a text, the axis for people")


class LinkSpec(_Section):
    """A field that follows from axes."""

    path: str = Field("", description="a field by its dotted path, such as node.price")
    formula: str | int | float = Field(
        description="arithmetic over axes, earlier links and base, such as base + 0.1 * bandwidth"
    )
    unit: str | None = Field(None, description="the unit of its value, such as USD/h")
    units: dict[str, str] = Field(
        default_factory=dict,
        description="a mapping of axes to the units in which the formula takes them",
    )
    source: str = Field(description="a text, where the relation comes from")


class ConstraintsSpec(_Section):
    """What every point must keep to."""

    budget: Annotated[float, _of("usd", "what training all targets may cost"), _WRITTEN] | None = (
        Field(None, description="an amount such as '2 MUSD', for training all targets")
    )
    capital: Annotated[float, _of("usd", "what the cluster may cost to buy"), _WRITTEN] | None = (
        Field(None, description="an amount such as '20 MUSD', for buying the cluster")
    )
    power: Annotated[float, _of("w", "of the site, with PUE"), _WRITTEN] | None = Field(
        None,
        description="a power such as '5 MW', of the site at any moment, with PUE (plan "
        "--power-cap is before PUE)",
    )
    deadline: Annotated[float, _of("s", "for all targets"), _WRITTEN] | None = Field(
        None, description="a time such as '30 d', for all targets"
    )
    energy: Annotated[float, _of("j", "for all targets, with PUE"), _WRITTEN] | None = Field(
        None, description="an energy such as '10 MWh', for all targets, with PUE"
    )
    carbon: Annotated[float, _of("gco2e", "for all targets"), _WRITTEN] | None = Field(
        None, description="a mass such as '100 tCO2e', for all targets"
    )


class SamplerSpec(_Section):
    """Which points are tried."""

    kind: Literal["grid", "list", "random", "guided"] = Field(
        "grid", description="grid, list, random or guided"
    )
    points: Annotated[int, Field(ge=1, le=MOST_POINTS)] | None = Field(
        None, description="a whole number, points that random and guided samplers try"
    )
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="a number above 0, minutes after which a run begins no more points"
    )
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = Field(
        0, description="a whole number from 0, the seed of what is drawn"
    )
    batch: Annotated[int, Field(ge=1, le=1024)] = Field(
        16, description="a whole number, points of a guided search that are chosen at once"
    )
    listed: list[dict[str, Any]] | None = Field(
        None, description="a list of mappings of every axis to one of its values"
    )


class StudyFile(_Section):
    """A study."""

    name: str | None = Field(None, description="a name; the file's by default")
    title: str = Field("", description="a text, for people")
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
