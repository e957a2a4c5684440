"""The shape of a job file, as pydantic models. What the names in it mean is not checked here.

Every field's description is a noun phrase: an error says "expected <description>", and the JSON
schema shows the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from wattree.job.values import (
    Axes,
    Backward,
    Bandwidth,
    Degree,
    Depth,
    DeviceList,
    DevicePrice,
    Duration,
    EnergyPrice,
    Factor,
    Ghosts,
    Imbalance,
    Index,
    Intensity,
    Layers,
    Lifetime,
    Loss,
    MadeCarbon,
    Offset,
    Pieces,
    Power,
    Rate,
    SampleBytes,
    Samples,
    Seed,
    Size,
    Slowdown,
    Spread,
    Steps,
    Stored,
    Tokens,
    TransformerBlock,
    read_size,
)

__all__ = [
    "ActivationsSpec",
    "BucketSpec",
    "CheckpointSpec",
    "ClusterSpec",
    "CollectiveSpec",
    "ColocationSpec",
    "DataSpec",
    "EmbodiedSpec",
    "EnergySpec",
    "FfnSpec",
    "JobFile",
    "LoaderSpec",
    "LoraSpec",
    "MemorySpec",
    "ModelSpec",
    "MovementSpec",
    "NeighbourSpec",
    "NodeSpec",
    "OffloadSpec",
    "OptionsSpec",
    "PhantomSpec",
    "PlaceSpec",
    "PoolSpec",
    "PrefetchSpec",
    "ScheduleSpec",
    "StorageSpec",
    "TrainingSpec",
    "TreeSpec",
    "job_schema",
]


CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


class Section(BaseModel):
    """A mapping of the file: unknown keys are errors, nothing is converted silently."""

    # A job uses a few of the sections: each is built when the first value of it is read.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class LoraSpec(Section):
    """Low-rank adapters beside frozen weights."""

    rank: Degree = Field(description="a whole number, the rank of the adapters")
    targets: list[str] | None = Field(
        None, description="a list of operator patterns, such as [attention.qkv, attention.out]"
    )


class FfnSpec(Section):
    """A stack of linear layers."""

    width: Degree = Field(description="a whole number, neurons of every hidden layer")
    depth: Degree = Field(description="a whole number, linear layers")
    inputs: Degree | None = Field(
        None, description="a whole number, values of a sample; the width if not given"
    )
    outputs: Degree | None = Field(
        None,
        description="a whole number, values or classes that come out; the width if not given",
    )
    activation: Literal["relu", "gelu", "silu", "tanh", "sigmoid"] = Field(
        "relu",
        description="one of relu, gelu, silu, tanh, sigmoid, after every layer but the last",
    )
    bias: bool = Field(True, description="true or false, whether layers add a bias")
    loss: Literal["mse", "cross_entropy"] = Field(
        "mse", description="'mse' or 'cross_entropy' (outputs are classes)"
    )


class ModelSpec(Section):
    """Where the model comes from."""

    name: str | None = Field(None, description="a catalogue name or the path of a config.json")
    capture: bool | None = Field(
        None,
        description="true or false, whether the named model is built by the transformers library "
        "and captured even where it can be read without; needs the extra 'hf'",
    )
    transformer: TransformerBlock | None = Field(
        None, description="a block of keys such as layers, hidden, heads and vocab"
    )
    ffn: FfnSpec | None = Field(
        None, description="a mapping with width and depth, a stack of linear layers"
    )
    module: str | None = Field(
        None,
        description="a Python function that returns the nn.Module, such as 'model.py:build' or "
        "'package.module:build', which is run",
    )
    arguments: dict[str, Any] | None = Field(
        None,
        description="a mapping of keyword arguments of that function, or of options of a "
        "catalogue model, such as {image_size: 256}",
    )
    inputs: list[str] | dict[str, str] | None = Field(
        None,
        description="a list of the tensors the module takes, or a mapping of argument to tensor, "
        "such as ['float32[batch, 3, 224, 224]']; by default example_inputs beside the function",
    )
    loss: Literal["auto", "none"] | None = Field(
        None,
        description="'auto' (the module's result, if it is a scalar) or 'none' (the sum of all "
        "results), what backward starts from",
    )
    lora: LoraSpec | None = Field(None, description="a mapping with rank and targets")
    freeze: list[str] | None = Field(
        None, description="a list of operator patterns whose parameters are not trained"
    )


class StorageSpec(Section):
    """Where stored samples are read from."""

    bandwidth: Bandwidth | None = Field(
        None, description="a rate with its unit, such as '2 GB/s'; the node's own if not given"
    )
    per: Literal["node", "cluster"] = Field(
        "node", description="'node' or 'cluster', who shares that bandwidth"
    )
    latency: Duration | None = Field(
        None, description="a time with its unit, such as '5 ms', that a worker waits per sample"
    )


class LoaderSpec(Section):
    """How samples get from storage to the devices."""

    preset: str | None = Field(
        None, description="a known input pipeline, such as imagenet-jpeg, that the keys change"
    )
    workers: Degree | None = Field(
        None, description="a whole number, processes per device that read, decode and augment"
    )
    decode: Duration | None = Field(
        None, description="a time with its unit, such as '2 ms', of one core for one sample"
    )
    augment: Duration | None = Field(
        None, description="a time with its unit, such as '2 ms', of one core for one sample"
    )
    sample_bytes: SampleBytes | None = Field(
        None, description="a size with its unit, such as '110 kB', of one stored sample"
    )
    tensor_bytes: SampleBytes | None = Field(
        None, description="a size with its unit, such as '588 KiB', that is copied of one sample"
    )
    prefetch: Degree | None = Field(
        None, description="a whole number, micro-batches that each worker makes ahead"
    )
    storage: StorageSpec | None = Field(
        None, description="a mapping with bandwidth, per and latency"
    )
    pinned: bool | None = Field(
        None, description="true or false, whether copies run beside computation"
    )
    cores: Degree | None = Field(
        None, description="a whole number, cores of a node that its workers share"
    )
    device_decode: Duration | None = Field(
        None, description="a time with its unit, such as '0.2 ms', of the device's own decoder"
    )


class DataSpec(Section):
    """What one step consumes."""

    sequence_length: Tokens | None = Field(
        None, description="a whole number, tokens per sample; left out where samples have none"
    )
    global_batch: Samples = Field(description="a whole number, samples per step over all replicas")
    loader: str | LoaderSpec | None = Field(
        None,
        description="a known input pipeline, such as imagenet-jpeg, or a mapping with workers, "
        "decode and sample_bytes",
    )
    source: str | None = Field(
        None,
        description="synthetic-regression, synthetic-classification, digits or a Python function "
        "such as 'data.py:dataset' (which train runs), what is trained on",
    )
    samples: Samples | None = Field(
        None, description="a whole number, samples of a synthetic source"
    )


class StragglersSpec(Section):
    """Devices that differ by chance."""

    spread: Spread = Field(
        description="the standard deviation of the logarithm of a device's compute time, such as "
        "0.02"
    )
    seed: Seed = Field(0, description="a whole number that fixes the draw")


class PoolSpec(Section):
    """Equal nodes of a cluster that mixes nodes."""

    node: str = Field(description="a node of the catalogue (wattree catalog nodes) or a YAML file")
    nodes: Degree = Field(1, description="a whole number, how many nodes")
    power_limit: Power | None = Field(
        None, description="a power with its unit, such as '400 W', enforced on every device of it"
    )


class ClusterSpec(Section):
    """The hardware."""

    node: str | None = Field(
        None, description="a node of the catalogue (wattree catalog nodes) or a YAML file"
    )
    nodes: Degree = Field(1, description="a whole number, how many nodes")
    pools: list[PoolSpec] | None = Field(
        None,
        description="a list of mappings with node and nodes in the order of their devices, such "
        "as [{node: dgx-h100, nodes: 2}, {node: dgx-a100, nodes: 2}], in place of node and nodes",
    )
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


class PlaceSpec(Section):
    """Which devices of the cluster; one of the keys."""

    first_device: Index | None = Field(
        None, description="a whole number from 0, the device of the first rank; the others follow"
    )
    devices: DeviceList | None = Field(
        None, description="device indices in the order of ranks, such as '0-63' or '0-3, 8-11'"
    )
    nodes: DeviceList | None = Field(
        None, description="node indices in the order of ranks, such as '8-15' or '0-14:2'"
    )


class NeighbourSpec(PlaceSpec):
    """Another job on the same fabric, and its devices."""

    job: str = Field(description="the path of another job's file")
    offset: Offset | None = Field(
        None,
        description="a time with its unit, such as '0.3 s', by which its step begins earlier",
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


class CollectiveSpec(Section):
    """How one kind of collective is carried out."""

    algorithm: str = Field("auto", description="'auto', 'nccl' or an algorithm such as ring")
    protocol: Literal["ll", "ll128", "simple"] | None = Field(
        None, description="'ll', 'll128' or 'simple', the protocol of NCCL"
    )


class CheckpointSpec(Section):
    """When and where `train` saves."""

    dir: str = Field(description="a folder")
    every: Steps = Field(description="a whole number, steps between checkpoints")


class TrainingSpec(Section):
    """The whole run, read by `train`; its length by `plan --deadline` as well."""

    steps: Steps = Field(1, description="a whole number of steps")
    seed: Seed = Field(0, description="a whole number, the random seed")
    learning_rate: Rate | None = Field(None, description="a number, such as 1e-3")
    target_loss: Loss | None = Field(
        None, description="a number above 0, the loss at which training ends"
    )
    checkpoint: CheckpointSpec | None = Field(None, description="a mapping with dir and every")


class EmbodiedSpec(Section):
    """Emissions of making the hardware."""

    device: MadeCarbon = Field(description="a mass for one device, such as '150 kgCO2e'")
    node: MadeCarbon = Field(
        0.0, description="a mass for a node without its devices, such as '1300 kgCO2e'"
    )
    lifetime: Lifetime = Field(description="how long the hardware is used, such as '1460 d'")


class EnergySpec(Section):
    """What energy and devices cost, and what they emit."""

    price: EnergyPrice | None = Field(
        None, description="a price of energy, such as '0.12 USD/kWh'; the site's if not given"
    )
    device_price: DevicePrice | None = Field(
        None, description="the rent of one device, such as '2.5 USD/h'; the catalogue's if not"
    )
    carbon: Intensity | None = Field(
        None, description="a grid intensity, such as '56 gCO2e/kWh'; the site's if not given"
    )
    series: str | None = Field(
        None,
        description="the path of a CSV file with the columns hour, gCO2e/kWh and, if known, "
        "USD/kWh",
    )
    embodied: EmbodiedSpec | None = Field(
        None, description="a mapping with device, node and lifetime, the emissions of making them"
    )


class JobFile(Section):
    """A training job."""

    model: str | ModelSpec = Field(
        description="a catalogue name, the path of a config.json, a Python function such as "
        "model.py:build (which is run), or a mapping with transformer or module"
    )
    data: DataSpec = Field(description="a mapping with sequence_length and global_batch")
    precision: str = Field(
        "bf16", description="a number format such as bf16, or amp: fp16 by autocast"
    )
    optimizer: str = Field("adamw", description="an optimizer such as adamw")
    cluster: ClusterSpec = Field(description="a mapping with node and nodes, or with pools")
    strategy: str | OptionsSpec | TreeSpec = Field(
        "auto", description="'auto', the name of a preset, a preset with its degrees, or a tree"
    )
    software: str = Field("auto", description="a software family such as megatron-core, or auto")
    traits: dict[str, Any] = Field(
        default_factory=dict, description="habits of the software to replace, by trait name"
    )
    compile: bool | None = Field(
        None, description="true or false, whether a compiler merges operators; the software's habit"
    )
    collectives: str | dict[CollectiveKind, str | CollectiveSpec] = Field(
        "auto",
        description="'auto', 'nccl' or an algorithm such as ring, or a mapping of all_reduce, "
        "all_gather, reduce_scatter and all_to_all to one",
    )
    energy: EnergySpec = Field(
        default_factory=EnergySpec,
        description="a mapping with price, device_price, carbon, series or embodied",
    )
    training: TrainingSpec = Field(
        default_factory=TrainingSpec, description="a mapping with steps, seed, learning_rate"
    )
    place: PlaceSpec | None = Field(
        None, description="a mapping with first_device, devices or nodes; the whole cluster if not"
    )
    neighbours: list[NeighbourSpec] | None = Field(
        None, description="a list of mappings of job and its devices: what shares the fabric"
    )


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of a job file (draft 2020-12)."""
    schema = JobFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
