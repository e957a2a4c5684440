"""The shape of a job file, as pydantic models. What the names in it mean is not checked here.

Every field's description is a noun phrase: an error says "expected <description>", and the JSON
schema shows the same words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from wattree.errors import UnitError
from wattree.job.problems import shown
from wattree.units import parse_quantity

__all__ = [
    "CheckpointSpec",
    "ClusterSpec",
    "DataSpec",
    "JobFile",
    "LoraSpec",
    "MemorySpec",
    "ModelSpec",
    "NodeSpec",
    "OptionsSpec",
    "ScheduleSpec",
    "TrainingSpec",
    "TreeSpec",
    "job_schema",
]

#: Above these a number is a slip, not a wish: no run has come within a factor of ten of them.
MOST_TOKENS = 100_000_000
MOST_SAMPLES = 100_000_000
MOST_RANKS = 1_000_000
MOST_STEPS = 1_000_000_000
MOST_SEED = 2**63 - 1
MOST_FACTOR = 1000
MOST_SPREAD = 1.0
MOST_LEARNING_RATE = 1000.0
#: The largest limit is what a device's own file may say it draws. [W], [B]
LEAST_POWER_W, MOST_POWER_W = 1.0, 20_000.0
LEAST_BUCKET_BYTES, MOST_BUCKET_BYTES = 1.0, 2.0**40


def _whole(least: int, most: int) -> Callable[[object], object]:
    """Return a check for whole numbers in a range; text, fractions and flags are none."""

    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(
                f"found {shown(value)}, expected a whole number from {least} to {most:,}"
            )
        return value

    return check


def _factor(value: object) -> object:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= MOST_FACTOR
    ):
        raise ValueError(f"found {shown(value)}, expected a factor above 0 and up to {MOST_FACTOR}")
    return float(value)


def _pieces(value: object) -> object:
    """Return an order as it was written; say in one line what is no piece of one."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("found an empty text, expected a list of stages or a file's path")
        return value
    if not isinstance(value, list):
        raise ValueError(f"found {shown(value)}, expected a list with an item for each stage")
    for index, stage in enumerate(value):
        words = stage if isinstance(stage, list) else [stage]
        if not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"found {shown(stage)} for stage {index}, expected a text such as 'F0 F1 B0 B1'"
            )
    return value


def _spread(value: object) -> object:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= MOST_SPREAD
    ):
        raise ValueError(
            f"found {shown(value)}, expected a standard deviation above 0 and up to {MOST_SPREAD:g}"
        )
    return float(value)


def _rate(value: object) -> object:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= MOST_LEARNING_RATE
    ):
        raise ValueError(
            f"found {shown(value)}, expected a number from 0 to {MOST_LEARNING_RATE:g}"
        )
    return float(value)


def _quantity(dimension: str, *, least: float, most: float, span: str) -> Callable[[object], float]:
    """Return a reader of quantities of `dimension` in a range; they are kept in SI.

    Args:
        dimension: A key of `units.UNITS`.
        least: Smallest that can be meant. [SI]
        most: Largest that can be meant. [SI]
        span: The two in words.
    """

    def read(value: object) -> float:
        try:
            found = parse_quantity(value, dimension)
        except UnitError as error:
            raise ValueError(str(error)) from error
        if not least <= found <= most:
            raise ValueError(f"found {shown(value)}, expected {span}")
        return found

    return read


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _sharded(value: object) -> object:
    """Read `replicate` as no axes and `{shard: axes}` as those axes."""
    if value == "replicate":
        return []
    if isinstance(value, dict) and set(value) == {"shard"}:
        return _one_or_many(value["shard"])
    raise ValueError(
        f"found {shown(value)}, expected 'replicate' or {{shard: axis}} or {{shard: [axes]}}"
    )


def _by_index(value: object) -> object:
    """Let device indices be written as numbers as well as text."""
    if not isinstance(value, dict):
        return value
    return {
        str(key) if type(key) is int and 0 <= key < MOST_RANKS else key: factor
        for key, factor in value.items()
    }


def _transformer(value: object) -> object:
    """Admit scalars and lists of scalars; what they mean is for the reader of the block."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"found the key {shown(key)}, expected a name")
            if not all(map(_is_scalar, item if isinstance(item, list) else [item])):
                raise ValueError(
                    f"{key}: found {shown(item)}, expected a number, a name, a flag or a list"
                )
    return value


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


_AXES_SCHEMA: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
}
_STORED_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"const": "replicate"},
        {
            "type": "object",
            "properties": {"shard": _AXES_SCHEMA},
            "required": ["shard"],
            "additionalProperties": False,
        },
    ]
}
Degree = Annotated[int, BeforeValidator(_whole(1, MOST_RANKS)), Field(ge=1, le=MOST_RANKS)]
Layers = Annotated[int, BeforeValidator(_whole(0, MOST_RANKS)), Field(ge=0, le=MOST_RANKS)]
Tokens = Annotated[int, BeforeValidator(_whole(1, MOST_TOKENS)), Field(ge=1, le=MOST_TOKENS)]
Samples = Annotated[int, BeforeValidator(_whole(1, MOST_SAMPLES)), Field(ge=1, le=MOST_SAMPLES)]
Steps = Annotated[int, BeforeValidator(_whole(1, MOST_STEPS)), Field(ge=1, le=MOST_STEPS)]
Seed = Annotated[int, BeforeValidator(_whole(0, MOST_SEED)), Field(ge=0, le=MOST_SEED)]
Factor = Annotated[float, BeforeValidator(_factor), Field(gt=0, le=MOST_FACTOR)]
Spread = Annotated[float, BeforeValidator(_spread), Field(gt=0, le=MOST_SPREAD)]
Slowdown = Annotated[dict[str, Factor], BeforeValidator(_by_index)]
Pieces = Annotated[str | list[str | list[str]], BeforeValidator(_pieces)]
Rate = Annotated[float, BeforeValidator(_rate), Field(ge=0, le=MOST_LEARNING_RATE)]
Power = Annotated[
    float,
    BeforeValidator(
        _quantity("w", least=LEAST_POWER_W, most=MOST_POWER_W, span="'1 W' to '20 kW' per device")
    ),
    WithJsonSchema({"type": "string", "examples": ["400 W"]}),
]
Size = Annotated[
    float,
    BeforeValidator(
        _quantity(
            "bytes", least=LEAST_BUCKET_BYTES, most=MOST_BUCKET_BYTES, span="'1 B' to '1 TiB'"
        )
    ),
    WithJsonSchema({"type": "string", "examples": ["25 MiB"]}),
]
Axes = Annotated[list[str], BeforeValidator(_one_or_many), WithJsonSchema(_AXES_SCHEMA)]
Stored = Annotated[list[str], BeforeValidator(_sharded), WithJsonSchema(_STORED_SCHEMA)]
TransformerBlock = Annotated[dict[str, Any], BeforeValidator(_transformer)]


class Section(BaseModel):
    """A mapping of the file: unknown keys are errors, nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LoraSpec(Section):
    """Low-rank adapters beside frozen weights."""

    rank: Degree = Field(description="a whole number, the rank of the adapters")
    targets: list[str] | None = Field(
        None, description="a list of operator patterns, such as [attention.qkv, attention.out]"
    )


class ModelSpec(Section):
    """Where the model comes from."""

    name: str | None = Field(None, description="a catalogue name or the path of a config.json")
    transformer: TransformerBlock | None = Field(
        None, description="a block of keys such as layers, hidden, heads and vocab"
    )
    lora: LoraSpec | None = Field(None, description="a mapping with rank and targets")
    freeze: list[str] | None = Field(
        None, description="a list of operator patterns whose parameters are not trained"
    )


class DataSpec(Section):
    """What one step consumes."""

    sequence_length: Tokens = Field(description="a whole number, tokens per sample")
    global_batch: Samples = Field(description="a whole number, samples per step over all replicas")


class StragglersSpec(Section):
    """Devices that differ by chance."""

    spread: Spread = Field(
        description="the standard deviation of the logarithm of a device's compute time, such as "
        "0.02"
    )
    seed: Seed = Field(0, description="a whole number that fixes the draw")


class ClusterSpec(Section):
    """The hardware."""

    node: str = Field(description="a node of the catalogue (wattree catalog nodes) or a YAML file")
    nodes: Degree = Field(1, description="a whole number, how many nodes")
    fabric: str | None = Field(
        None, description="a fabric of the catalogue or a YAML file; by default the node's own"
    )
    site: str = Field("world-average", description="a site of the catalogue or a YAML file")
    power_limit: Power | None = Field(
        None, description="a power with its unit, such as '400 W', enforced on every device"
    )
    slowdown: Slowdown | None = Field(
        None, description='device index → factor on its compute time, such as {"3": 1.2}'
    )
    stragglers: StragglersSpec | None = Field(
        None, description="a draw of factors for all devices: spread and seed"
    )
    slow_links: Slowdown | None = Field(
        None,
        description="device index → factor by which its share of the network is slower, such as "
        '{"3": 4}',
    )


class OptionsSpec(Section):
    """Degrees and switches; with `preset`, laid over what the preset says."""

    preset: str | None = Field(None, description="the name of a preset")
    dp: Degree | None = Field(None, description="a whole number, the data-parallel degree")
    fsdp: Degree | None = Field(
        None, description="a whole number, the sharded data-parallel degree"
    )
    tp: Degree | None = Field(None, description="a whole number, the tensor-parallel degree")
    cp: Degree | None = Field(None, description="a whole number, the context-parallel degree")
    pp: Degree | None = Field(None, description="a whole number, the pipeline-parallel degree")
    ep: Degree | None = Field(None, description="a whole number, the expert-parallel degree")
    expert_over_tensor: bool | None = Field(
        None, description="true or false, whether experts are spread over tensor ranks"
    )
    micro_batch: Degree | None = Field(
        None, description="a whole number, samples per forward pass and replica"
    )
    sharding: str | None = Field(None, description="a sharding of the model state over replicas")
    sequence_parallel: bool | None = Field(
        None, description="true or false, whether norms and residuals are split over tp"
    )
    recompute: str | None = Field(None, description="what backward recomputes")
    schedule: str | None = Field(None, description="the name of a pipeline schedule")
    virtual_stages: Degree | None = Field(
        None, description="a whole number, chunks of layers per pipeline rank"
    )
    order: Pieces | None = Field(
        None,
        description="what each stage does, for the schedule custom: a list with an item for each "
        "stage such as 'F0 F1 B0 B1', or the path of a YAML file with such a list under order",
    )
    placement: Literal["looped", "folded", "two-way"] | None = Field(
        None, description="'looped', 'folded' or 'two-way', how chunks lie under a custom order"
    )
    overlap_gradients: bool | None = Field(None, description="true or false")
    overlap_parameters: bool | None = Field(None, description="true or false")
    overlap_tensor: bool | None = Field(None, description="true or false")
    stage_layers: list[Layers] | None = Field(
        None, description="a list of whole numbers, layers of each pipeline chunk"
    )


class ScheduleSpec(Section):
    """How micro-batches flow through the pipeline."""

    name: str = Field("1f1b", description="the name of a pipeline schedule")
    micro_batches: Samples = Field(
        1, description="a whole number, micro-batches per step and replica"
    )
    virtual_stages: Degree = Field(
        1, description="a whole number, chunks of layers per pipeline rank"
    )
    stage_layers: list[Layers] | None = Field(
        None, description="a list of whole numbers, layers of each pipeline chunk"
    )
    order: Pieces | None = Field(
        None,
        description="what each stage does, for the schedule custom: a list with an item for each "
        "stage such as 'F0 F1 B0 B1', or the path of a YAML file with such a list under order",
    )
    placement: Literal["looped", "folded", "two-way"] | None = Field(
        None, description="'looped', 'folded' or 'two-way', how chunks lie under a custom order"
    )


class MemorySpec(Section):
    """How the tensors of a module are stored."""

    parameters: Stored | None = Field(None, description="'replicate' or {shard: axes}")
    gradients: Stored | None = Field(None, description="'replicate' or {shard: axes}")
    optimizer: Stored | None = Field(None, description="'replicate' or {shard: axes}")
    activations: Literal["keep", "recompute"] | None = Field(
        None, description="'keep' or 'recompute'"
    )
    recompute_share: float | None = Field(
        None, gt=0, le=1, description="a number above 0 and up to 1, share of each operator redone"
    )


class NodeSpec(Section):
    """Choices of one node of the tree."""

    compute: dict[str, Axes] | None = Field(
        None, description="iteration dim → mesh axis or list of axes, such as {batch: dp}"
    )
    memory: MemorySpec | None = Field(
        None, description="a mapping with parameters, gradients, optimizer or activations"
    )


class TreeSpec(Section):
    """A strategy written out: mesh, schedule, tree."""

    mesh: dict[str, Degree] = Field(
        description="axis → degree, outermost first, such as {pp: 4, dp: 8, tp: 8}"
    )
    schedule: ScheduleSpec | None = Field(None, description="a mapping with name and micro_batches")
    tree: dict[str, NodeSpec] = Field(
        description='module pattern → choices, such as {"": {compute: {batch: dp}}}'
    )
    overlap_gradients: bool | None = Field(None, description="true or false")
    overlap_parameters: bool | None = Field(None, description="true or false")
    overlap_tensor: bool | None = Field(None, description="true or false")
    bucket: Size | None = Field(
        None, description="a size with its unit, such as '25 MiB', of gradients reduced together"
    )


class CheckpointSpec(Section):
    """When and where `train` saves."""

    dir: str = Field(description="a folder")
    every: Steps = Field(description="a whole number, steps between checkpoints")


class TrainingSpec(Section):
    """Only read by `train`."""

    steps: Steps = Field(1, description="a whole number of steps")
    seed: Seed = Field(0, description="a whole number, the random seed")
    learning_rate: Rate | None = Field(None, description="a number, such as 1e-3")
    checkpoint: CheckpointSpec | None = Field(None, description="a mapping with dir and every")


class JobFile(Section):
    """A training job."""

    model: str | ModelSpec = Field(
        description="a catalogue name, the path of a config.json, or a mapping with transformer"
    )
    data: DataSpec = Field(description="a mapping with sequence_length and global_batch")
    precision: str = Field("bf16", description="a number format such as bf16")
    optimizer: str = Field("adamw", description="an optimizer such as adamw")
    cluster: ClusterSpec = Field(description="a mapping with node and nodes")
    strategy: str | OptionsSpec | TreeSpec = Field(
        "auto", description="'auto', the name of a preset, a preset with its degrees, or a tree"
    )
    software: str = Field("megatron-core", description="a software family such as megatron-core")
    traits: dict[str, Any] = Field(
        default_factory=dict, description="habits of the software to replace, by trait name"
    )
    training: TrainingSpec = Field(
        default_factory=TrainingSpec, description="a mapping with steps, seed, learning_rate"
    )


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of a job file (draft 2020-12)."""
    schema = JobFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
