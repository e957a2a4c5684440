"""The shape of the section `strategy`: keys of knobs, and what only trees or few keys have."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model

from wattree.job.section import Section, key
from wattree.job.values import (
    Axes,
    Backward,
    Degree,
    Depth,
    DeviceList,
    Factor,
    Ghosts,
    Imbalance,
    Layers,
    Pieces,
    Samples,
    Size,
    Stored,
    read_size,
)
from wattree.strategy import (
    KNOBS,
    STAGES,
    Colocation,
    Knob,
    MemoryOptions,
    ParallelismOptions,
    PhantomOptions,
    PipelineOptions,
    Traffic,
    knobs_of,
)


class PrefetchSpec(Section):
    """How far gathers of sharded parameters run ahead of the computation."""

    forward: Depth = key("a whole number, blocks ahead in forward", 1)
    backward: Backward = key(
        "a whole number, blocks ahead in backward, or 'pre' (1), 'post' (0) or 'none' (0, and "
        "after the reductions of the block before)",
        1,
    )
    gathers_in_flight: Degree | None = key(
        "a whole number, gathered copies at once with the one in use; without it as needed"
    )


class BucketSpec(Section):
    """What is sent together between replicas."""

    gradients: Size | None = key(
        "a size with its unit, such as '25 MiB', of gradients reduced together"
    )
    parameters: Size | None = key(
        "a size with its unit, such as '25 MiB', of parameters gathered together"
    )


_SIZE_SCHEMA: dict[str, Any] = {"type": "string", "examples": ["25 MiB"]}
_BUCKET_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _SIZE_SCHEMA,
        {
            "type": "object",
            "properties": {"gradients": _SIZE_SCHEMA, "parameters": _SIZE_SCHEMA},
            "additionalProperties": False,
        },
    ]
}


def _bucket(value: object) -> object:
    """Return a bucket as a mapping; a bare size is that of gradients."""
    if value is None or isinstance(value, Mapping):
        return value
    read_size(value)  # a fault of a bare size is one of `bucket` itself
    return {"gradients": value}


#: The input of a layer, and the outputs that `saves_A+B` names.
_Kept = Literal[
    "input", "query", "key", "value", "q_down", "kv_down", "context", "out", "gate", "up"
]


class ActivationsSpec(Section):
    """Activations that wait outside of the device between forward and backward."""

    layers: Degree = Field(description="a whole number, the first layers of each pipeline stage")
    to: Literal["host", "cxl"] = key("'host' or 'cxl', where they wait", "host")
    tensors: list[_Kept] | None = key(
        "a list of what of them; all that these layers keep without it"
    )
    prefetch: Depth = key("a whole number, layers that copies run ahead", 1)


class TablesSpec(Section):
    """Tables of which only the rows that are looked up come to the device."""

    to: Literal["host", "cxl"] = key("'host' or 'cxl', where they wait", "host")
    cached: float = key(
        "a number from 0 to 1, share of each table cached on the device", 0.0, ge=0, le=1
    )
    hits: float = key("a number from 0 to 1, share of lookups that it serves", 0.0, ge=0, le=1)


class OffloadSpec(Section):
    """What waits outside of the devices."""

    optimizer: Literal["host", "cxl"] | None = key(
        "'host' or 'cxl', where the optimizer state waits and is updated"
    )
    parameters: Literal["host", "cxl"] | None = key(
        "'host' or 'cxl', where parameters wait for each use"
    )
    tables: TablesSpec | None = key("a mapping with to, and cached and hits of the device's cache")
    activations: ActivationsSpec | None = key("a mapping with layers, to and prefetch")
    overflow: Literal["cxl"] | None = key(
        "'cxl', the place of what does not fit on the device; the device must read and write "
        "it itself (access in the node's file)"
    )


class TokenSpec(Section):
    """How evenly tokens reach experts; the same keys with a preset and with a tree."""

    expert_imbalance: Imbalance | None = key(
        "a number, tokens of the busiest expert-parallel rank over the mean, or a draw of "
        "every expert's share: {spread: 0.3, seed: 1}"
    )
    expert_capacity: Factor | None = key(
        "a number, the most tokens an expert takes over the mean, for software that drops the rest"
    )


_COMMUNICATION = Literal["gradients", "parameters", "tensor", "context", "experts", "pipeline"]
#: Knobs whose values are read in ways of their own; others are by their type.
_READ_AS: Final[Mapping[str, Any]] = {
    "order": Pieces,
    "stage_layers": list[Layers],
    "ghosts": Ghosts,
    "phantom_layers": list[str],
    "in_line": list[_COMMUNICATION],
    "prefetch": PrefetchSpec,
    "offload": OffloadSpec,
}


def _read_as(knob: Knob) -> Any:
    """Return the type that the value of a key is read as."""
    if knob.key in _READ_AS:
        return _READ_AS[knob.key]
    if knob.in_schema:
        return Literal[knob.choices]
    bare = next((kind for kind in get_args(knob.kind) if kind is not NoneType), knob.kind)
    return Degree if bare is int else bare


def _default(knob: Knob) -> dict[str, Any]:
    """Return the default for the schema, unless the description says what an absent key means."""
    is_plain = isinstance(knob.default, bool | int | str) and "without it" not in knob.description
    return {"default": knob.default} if is_plain else {}


def _keys_of(*specs: type) -> dict[str, Any]:
    """Return the knobs of specs as fields of a section, all of which may be left out."""
    return {
        name: (_read_as(knob) | None, key(knob.description, json_schema_extra=_default(knob)))
        for spec in specs
        for name, knob in knobs_of(spec).items()
    }


class _Knobs(Section):
    if TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any:
            """Keys are those of knobs."""


_PRESET: Any = create_model(
    "_PRESET",
    __base__=_Knobs,
    preset=(str | None, key("the name of a preset, such as ddp, zero1, fsdp or megatron")),
    **_keys_of(ParallelismOptions, PipelineOptions, MemoryOptions, PhantomOptions),
)
_MOVEMENT: Any = create_model(
    "_MOVEMENT",
    __base__=_Knobs,
    **_keys_of(Traffic),
    bucket=(
        Annotated[BucketSpec | None, BeforeValidator(_bucket), WithJsonSchema(_BUCKET_SCHEMA)],
        key(
            "a size with its unit, such as '25 MiB' (the default), of gradients reduced together, "
            "or a mapping with gradients and parameters"
        ),
    ),
)
_COLOCATION: Any = create_model("_COLOCATION", __base__=_Knobs, **_keys_of(Colocation))


class MovementSpec(_MOVEMENT, _Knobs):
    """How data moves while ranks compute; the same keys with a preset and with a tree."""


class ColocationSpec(_COLOCATION, _Knobs):
    """Processes on each device; the same keys with a preset and with a tree."""


# The keys of the last base come first where messages list them.
class OptionsSpec(ColocationSpec, MovementSpec, TokenSpec, _PRESET):
    """Degrees and options; with `preset`, laid over what the preset says."""


class ScheduleSpec(Section):
    """How micro-batches flow through the pipeline."""

    name: str = key(KNOBS["schedule"].description, "1f1b")
    micro_batches: Samples = key("a whole number, micro-batches per step and replica", 1)
    virtual_stages: Degree = key(KNOBS["virtual_stages"].description, 1)
    stage_layers: list[Layers] | None = key(KNOBS["stage_layers"].description)
    order: Pieces | None = key(KNOBS["order"].description)
    placement: Literal["looped", "folded", "two-way"] | None = key(KNOBS["placement"].description)
    axis: str = key("the mesh axis whose ranks are the pipeline's stages", STAGES)


class MemorySpec(Section):
    """How the tensors of a module are stored."""

    parameters: Stored | None = key("'replicate' or {shard: axes}")
    gradients: Stored | None = key("'replicate' or {shard: axes}")
    optimizer: Stored | None = key("'replicate' or {shard: axes}")
    activations: Literal["keep", "recompute"] | None = key(
        "'keep' or 'recompute', whether backward has them or computes them again"
    )
    recompute_share: float | None = key(
        "a number above 0 and up to 1, share of each operator redone", gt=0, le=1
    )
    gathered: Literal["keep", "again"] | None = key(
        "'keep' or 'again', whether backward gathers inputs once more that forward gathered"
    )


class PhantomSpec(Section):
    """How linear layers become phantom layers."""

    ghosts: Ghosts = Field(description="a whole number, neurons that each rank sends of each layer")
    axis: str = key("the mesh axis whose ranks have a block each", "tp")
    variant: Literal["pair", "shared"] = key("'pair' or 'shared', what decompresses ghosts", "pair")
    exchange: Literal["ghosts", "activations"] = key(
        "'ghosts' or 'activations', what ranks send each other", "ghosts"
    )


class NodeSpec(Section):
    """Choices of one node of the tree."""

    compute: dict[str, Axes] | None = key(
        "iteration dim → mesh axis or list of axes, such as {batch: dp}"
    )
    memory: MemorySpec | None = key(
        "a mapping with parameters, gradients, optimizer or activations"
    )
    context: Literal["overlapped", "gather", "ring"] | None = key(
        "'overlapped', 'gather' or 'ring', how attention gets the keys and values of other "
        "ranks; for ulysses split it over heads: {seq: [], heads: cp}"
    )
    context_order: Literal["zigzag", "contiguous"] | None = key(
        "'zigzag' or 'contiguous', which positions each rank holds"
    )
    sync_batch_norm: bool | None = key(
        "true or false, whether batch norm takes its statistics over all ranks that share its "
        "channels"
    )
    phantom: PhantomSpec | None = key(
        "a mapping with ghosts: linear layers here are phantom layers"
    )
    mesh: str | None = key("the name of the mesh whose ranks run it, one of strategy.meshes")


class MeshSpec(Section):
    """One of several meshes."""

    mesh: dict[str, Degree] = Field(
        description="axis → degree, outermost first, such as {pp: 2, dp: 4, tp: 2}"
    )
    devices: DeviceList | None = key(
        "device indices in the order of ranks, such as '0-7'; without it those that follow the "
        "meshes before"
    )
    on: str | None = key(
        "the name of a mesh whose ranks it has: another grid of each of its stages"
    )


class _TreeKeys(Section):
    """Mesh or meshes, schedule, tree."""

    mesh: dict[str, Degree] | None = key(
        "axis → degree, outermost first, such as {pp: 4, dp: 8, tp: 8}"
    )
    meshes: dict[str, MeshSpec] | None = key(
        "name → mesh, in the order of the model, in place of mesh: parts of the tree name theirs",
        min_length=1,
    )
    schedule: ScheduleSpec | None = key("a mapping with name and micro_batches")
    tree: dict[str, NodeSpec] = Field(
        description='module pattern → choices, such as {"": {compute: {batch: dp}}}'
    )
    preset: list[str] | None = key(
        "a list of names, as in JSON: what made the tree; changes nothing"
    )
    single_process: bool | None = key(KNOBS["single_process"].description)


class TreeSpec(ColocationSpec, MovementSpec, TokenSpec, _TreeKeys):
    """A strategy written out: mesh, schedule, tree."""
