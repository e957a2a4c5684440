"""The section `strategy` of a job file: a preset with its options, or a tree. As in `schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from wattree.job.section import Section
from wattree.job.values import (
    Axes,
    Backward,
    Degree,
    Depth,
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


class PrefetchSpec(Section):
    """How far gathers of sharded parameters run ahead of the computation."""

    forward: Depth = Field(1, description="a whole number, blocks ahead in forward")
    backward: Backward = Field(
        1,
        description="a whole number, blocks ahead in backward, or 'pre' (1), 'post' (0) or 'none' "
        "(0, and after the reductions of the block before)",
    )
    gathers_in_flight: Degree | None = Field(
        None, description="a whole number, gathered copies at once with the one in use"
    )


class BucketSpec(Section):
    """What is sent together between replicas."""

    gradients: Size | None = Field(
        None, description="a size with its unit, such as '25 MiB', of gradients reduced together"
    )
    parameters: Size | None = Field(
        None, description="a size with its unit, such as '25 MiB', of parameters gathered together"
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


class ActivationsSpec(Section):
    """Activations that wait outside of the device between forward and backward."""

    layers: Degree = Field(description="a whole number, the first layers of each pipeline stage")
    to: Literal["host", "cxl"] = Field("host", description="'host' or 'cxl', where they wait")
    prefetch: Depth = Field(1, description="a whole number, layers that copies run ahead")


class TablesSpec(Section):
    """Tables of which only the rows that are looked up come to the device."""

    to: Literal["host", "cxl"] = Field("host", description="'host' or 'cxl', where they wait")
    cached: float = Field(
        0.0, ge=0, le=1, description="a number from 0 to 1, share of each table kept on the device"
    )
    hits: float = Field(
        0.0, ge=0, le=1, description="a number from 0 to 1, share of lookups that it serves"
    )


class OffloadSpec(Section):
    """What waits outside of the devices."""

    optimizer: Literal["host", "cxl"] | None = Field(
        None, description="'host' or 'cxl', where the optimiser state waits and is updated"
    )
    parameters: Literal["host", "cxl"] | None = Field(
        None, description="'host' or 'cxl', where parameters wait for each use"
    )
    tables: TablesSpec | None = Field(
        None, description="a mapping with to, and cached and hits of what the device keeps"
    )
    activations: ActivationsSpec | None = Field(
        None, description="a mapping with layers, to and prefetch"
    )
    overflow: Literal["cxl"] | None = Field(
        None,
        description="'cxl', where what does not fit on the device lies; the device must read and "
        "write it itself (access in the node's file)",
    )


class MovementSpec(Section):
    """How data moves beside the computation; the same keys with a preset and with a tree."""

    overlap_gradients: bool | None = Field(None, description="true or false")
    overlap_parameters: bool | None = Field(None, description="true or false")
    overlap_tensor: bool | None = Field(None, description="true or false")
    tensor_pieces: Degree | None = Field(
        None, description="a whole number, pieces of a product that hide tensor-parallel traffic"
    )
    overlap_pipeline: bool | None = Field(
        None, description="true or false, whether computation goes on during sends between stages"
    )
    overlap_optimizer: bool | None = Field(
        None, description="true or false, whether a bucket is updated as soon as it is reduced"
    )
    reduce_every_micro_batch: bool | None = Field(
        None, description="true or false, whether gradients are reduced after each micro-batch"
    )
    in_line: (
        list[Literal["gradients", "parameters", "tensor", "context", "experts", "pipeline"]] | None
    ) = Field(
        None,
        description="a list of gradients, parameters, tensor, context, experts or pipeline: "
        "communication on the stream of the computation",
    )
    prefetch: PrefetchSpec | None = Field(
        None, description="a mapping with forward, backward and gathers_in_flight"
    )
    reshard_after_forward: bool | None = Field(
        None, description="true or false, whether gathered parameters are dropped after forward"
    )
    bucket: Annotated[
        BucketSpec | None, BeforeValidator(_bucket), WithJsonSchema(_BUCKET_SCHEMA)
    ] = Field(
        None,
        description="a size with its unit, such as '25 MiB', of gradients reduced together, or a "
        "mapping with gradients and parameters",
    )
    offload: OffloadSpec | None = Field(
        None, description="a mapping with optimizer, parameters and activations"
    )


class TokenSpec(Section):
    """How evenly tokens reach experts; the same keys with a preset and with a tree."""

    expert_imbalance: Imbalance | None = Field(
        None,
        description="a number, tokens of the busiest expert-parallel rank over the mean, or a draw "
        "of every expert's share: {spread: 0.3, seed: 1}",
    )
    expert_capacity: Factor | None = Field(
        None,
        description="a number, the most tokens an expert takes over the mean, for software that "
        "drops the rest",
    )


class ColocationSpec(Section):
    """Processes on each device; the same keys with a preset and with a tree."""

    processes_per_device: Degree | None = Field(
        None, description="a whole number, training processes on each device"
    )
    batch_rule: Literal["fixed-global", "fixed-per-process"] | None = Field(
        None,
        description="'fixed-global' or 'fixed-per-process', whether the processes of a device "
        "share the batch of one or have as much each",
    )
    device_sharing: Literal["mps", "time-sliced"] | None = Field(
        None,
        description="'mps' or 'time-sliced', whether kernels of several processes run at once",
    )


class _PresetKeys(Section):
    """A preset with its degrees and switches."""

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
        None,
        description="a whole number, samples per forward pass and replica; without it 1, or all "
        "where samples are not sequences and pp is 1",
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
    stage_layers: list[Layers] | None = Field(
        None, description="a list of whole numbers, layers of each pipeline chunk"
    )
    context: str | None = Field(
        None,
        description="'overlapped', 'gather', 'ring' or 'ulysses', how attention reaches across cp; "
        "or 'spatial': cp splits rows of images, and windows reach into neighbours' rows",
    )
    context_order: str | None = Field(
        None, description="'zigzag' or 'contiguous', which positions each rank of cp holds"
    )
    sync_batch_norm: bool | None = Field(
        None,
        description="true or false, whether batch norm takes its statistics over all replicas",
    )
    tensor_pairs: bool | None = Field(
        None,
        description="true or false, whether layers of a plain stack are split over tp in pairs, by "
        "outputs then by inputs, instead of each by its outputs",
    )
    phantom: bool | None = Field(
        None, description="true or false, whether linear layers are phantom layers over tp"
    )
    ghosts: Ghosts | None = Field(
        None, description="a whole number, neurons that each rank sends of each phantom layer"
    )
    layer_ghosts: dict[str, Ghosts] | None = Field(
        None,
        description="a mapping of patterns of phantom layers to their ghosts, where they have "
        "others than the rest, such as {layers.0.*: 8}",
    )
    variant: Literal["pair", "shared"] | None = Field(
        None, description="'pair' or 'shared', what decompresses ghosts"
    )
    exchange: Literal["ghosts", "activations"] | None = Field(
        None,
        description="'ghosts' or 'activations', what phantom layers send; the function is the same",
    )
    regather: bool | None = Field(
        None, description="true or false, whether ghosts are exchanged again in backward"
    )
    phantom_layers: list[str] | None = Field(
        None, description="a list of patterns of linear layers, such as [mlp.*, attention.out]"
    )
    op_shard: bool | None = Field(
        None,
        description="true or false, whether fully connected layers are split over replicas",
    )
    tables: str | None = Field(
        None,
        description="'table-wise', 'row-wise', 'column-wise', 'data-parallel' or 'auto', how "
        "tables that samples look up in are spread over replicas",
    )
    single_process: bool | None = Field(
        None,
        description="true or false, whether one process drives all devices (nn.DataParallel)",
    )


# The keys of the last base come first where messages list them.
class OptionsSpec(ColocationSpec, MovementSpec, TokenSpec, _PresetKeys):
    """Degrees and switches; with `preset`, laid over what the preset says."""


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
    gathered: Literal["keep", "again"] | None = Field(
        None,
        description="'keep' or 'again', whether backward gathers inputs once more that forward "
        "gathered",
    )


class PhantomSpec(Section):
    """How linear layers become phantom layers."""

    ghosts: Ghosts = Field(description="a whole number, neurons that each rank sends of each layer")
    axis: str = Field("tp", description="the mesh axis whose ranks have a block each")
    variant: Literal["pair", "shared"] = Field(
        "pair", description="'pair' or 'shared', what decompresses ghosts"
    )
    exchange: Literal["ghosts", "activations"] = Field(
        "ghosts", description="'ghosts' or 'activations', what ranks send each other"
    )


class NodeSpec(Section):
    """Choices of one node of the tree."""

    compute: dict[str, Axes] | None = Field(
        None, description="iteration dim → mesh axis or list of axes, such as {batch: dp}"
    )
    memory: MemorySpec | None = Field(
        None, description="a mapping with parameters, gradients, optimizer or activations"
    )
    context: Literal["overlapped", "gather", "ring"] | None = Field(
        None,
        description="'overlapped', 'gather' or 'ring', how attention gets the keys and values of "
        "other ranks; for ulysses split it over heads: {seq: [], heads: cp}",
    )
    context_order: Literal["zigzag", "contiguous"] | None = Field(
        None, description="'zigzag' or 'contiguous', which positions each rank holds"
    )
    sync_batch_norm: bool | None = Field(
        None,
        description="true or false, whether batch norm takes its statistics over all ranks that "
        "share its channels",
    )
    phantom: PhantomSpec | None = Field(
        None, description="a mapping with ghosts: linear layers here are phantom layers"
    )


class _TreeKeys(Section):
    """Mesh, schedule, tree."""

    mesh: dict[str, Degree] = Field(
        description="axis → degree, outermost first, such as {pp: 4, dp: 8, tp: 8}"
    )
    schedule: ScheduleSpec | None = Field(None, description="a mapping with name and micro_batches")
    tree: dict[str, NodeSpec] = Field(
        description='module pattern → choices, such as {"": {compute: {batch: dp}}}'
    )
    single_process: bool | None = Field(
        None,
        description="true or false, whether one process drives all devices (nn.DataParallel)",
    )


class TreeSpec(ColocationSpec, MovementSpec, TokenSpec, _TreeKeys):
    """A strategy written out: mesh, schedule, tree."""
