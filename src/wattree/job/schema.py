"""The shape of a job file, as pydantic models. What the names in it mean is not checked here.

Every field's description is a noun phrase: an error says "expected <description>", and the JSON
schema shows the same words.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from wattree.job.cluster_schema import ClusterSpec, NeighbourSpec, PlaceSpec
from wattree.job.section import Section, key
from wattree.job.strategy_schema import OptionsSpec, TreeSpec
from wattree.job.values import (
    Bandwidth,
    Degree,
    DevicePrice,
    Duration,
    EnergyPrice,
    Index,
    Intensity,
    Lifetime,
    Loss,
    MadeCarbon,
    Patterns,
    Rate,
    Restart,
    SampleBytes,
    Samples,
    Seed,
    Steps,
    Tokens,
    TransformerBlock,
)

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


class LoraSpec(Section):
    """Low-rank adapters on frozen weights."""

    rank: Degree = Field(description="a whole number, the rank of the adapters")
    targets: Patterns | None = key(
        "operator patterns, such as all-linear; [attention.qkv, attention.out] by default"
    )
    base: Literal["int8", "nf4", "nf4-double"] | None = key(
        "nf4 or nf4-double: 4 bits for the frozen linear layers of all layers, as bitsandbytes "
        "stores them (QLoRA); with double, their scales have 8 bits. int8: 8 bits (LLM.int8())"
    )


class FfnSpec(Section):
    """A stack of linear layers."""

    width: Degree = Field(description="a whole number, neurons of every hidden layer")
    depth: Degree = Field(description="a whole number, linear layers")
    inputs: Degree | None = key("a whole number, values of a sample; the width if not given")
    outputs: Degree | None = key(
        "a whole number, values or classes that come out; the width if not given"
    )
    activation: Literal["relu", "gelu", "silu", "tanh", "sigmoid"] = key(
        "one of relu, gelu, silu, tanh, sigmoid, after every layer but the last", "relu"
    )
    bias: bool = key("true or false, whether layers add a bias", True)
    loss: Literal["mse", "cross_entropy"] = key(
        "'mse' or 'cross_entropy' (outputs are classes)", "mse"
    )


class ModelSpec(Section):
    """Where the model comes from."""

    name: str | None = key("a catalog name, or the path of a config.json or of its folder")
    capture: bool | None = key(
        "true or false, whether the named model is built by the transformers library and "
        "captured even where it can be read without; needs the extra 'hf'"
    )
    transformer: TransformerBlock | None = key(
        "a block of keys such as layers, hidden, heads and vocab"
    )
    ffn: FfnSpec | None = key("a mapping with width and depth, a stack of linear layers")
    module: str | None = key(
        "a Python function that returns the nn.Module, such as 'model.py:build' or "
        "'package.module:build', which is run"
    )
    arguments: dict[str, Any] | None = key(
        "a mapping of keyword arguments of that function, or of options of a catalog model, "
        "such as {image_size: 256}"
    )
    inputs: list[Any] | dict[str, Any] | None = key(
        "a list of the tensors and constants the module takes, or a mapping of argument to tensor, "
        "such as ['float32[batch, 3, 224, 224]', 3]; by default example_inputs next to the function"
    )
    loss: Literal["auto", "none"] | None = key(
        "'auto' (the module's result, if it is a scalar) or 'none' (the sum of all results), "
        "what backward starts from"
    )
    lora: LoraSpec | None = key("a mapping with rank and targets")
    freeze: list[str] | None = key("a list of operator patterns whose parameters are not trained")


class StorageSpec(Section):
    """Where stored samples are read from."""

    bandwidth: Bandwidth | None = key(
        "a rate with its unit, such as '2 GB/s'; the node's own if not given"
    )
    per: Literal["node", "cluster"] = key("'node' or 'cluster', who shares that bandwidth", "node")
    latency: Duration | None = key(
        "a time with its unit, such as '5 ms', that a worker waits per sample"
    )


class LoaderSpec(Section):
    """How samples get from storage to the devices."""

    preset: str | None = key("a known input pipeline, such as imagenet-jpeg, that the keys change")
    workers: Index | None = key(
        "a whole number, processes per device that read, decode and augment; 0: the one that "
        "trains does"
    )
    decode: Duration | None = key(
        "a time with its unit, such as '2 ms', of one core for one sample"
    )
    augment: Duration | None = key(
        "a time with its unit, such as '2 ms', of one core for one sample"
    )
    sample_bytes: SampleBytes | None = key(
        "a size with its unit, such as '110 kB', of one stored sample; tensor_bytes without it"
    )
    tensor_bytes: SampleBytes | None = key(
        "a size with its unit, such as '588 KiB', that is copied of one sample; without it 8 "
        "bytes per token, or all inputs of a captured model"
    )
    prefetch: Degree | None = key(
        "a whole number, micro-batches that each worker makes ahead, with the one in the "
        "making; 2 without it"
    )
    storage: StorageSpec | None = key(
        "a mapping with bandwidth, per and latency; the node's own storage without it"
    )
    pinned: bool | None = key(
        "true or false, whether copies leave page-locked memory alongside computation; true "
        "without it"
    )
    cores: Degree | None = key(
        "a whole number, cores of a node that its workers share; the node's without it"
    )
    device_decode: Duration | None = key(
        "a time with its unit, such as '0.2 ms', of the device's own decoder for one sample, "
        "in place of cores"
    )


class DataSpec(Section):
    """What one step consumes."""

    sequence_length: Tokens | None = key(
        "a whole number, tokens per sample; left out where samples have none"
    )
    global_batch: Samples = Field(description="a whole number, samples per step over all replicas")
    document_length: Tokens | None = key(
        "a whole number, mean tokens of the documents that samples are packed of, each of which "
        "attends to itself alone; without it a sample is one"
    )
    loader: str | LoaderSpec | None = key(
        "a known input pipeline, such as imagenet-jpeg, or a mapping with workers, decode and "
        "sample_bytes"
    )
    source: str | None = key(
        "synthetic-regression, synthetic-classification, digits or a Python function such as "
        "'data.py:dataset' (which train runs), what is trained on"
    )
    samples: Samples | None = key(
        "a whole number, samples of a synthetic source; without it 16 batches, at least 256"
    )
    prompt_length: Tokens | None = key(
        "a whole number, tokens of each prompt, for the workload generate"
    )
    generate_length: Tokens | None = key(
        "a whole number, tokens generated after it, for the workload generate"
    )


class CollectiveSpec(Section):
    """How one kind of collective is carried out."""

    algorithm: str = key("'auto', 'nccl' or an algorithm such as ring", "auto")
    protocol: Literal["ll", "ll128", "simple"] | None = key(
        "'ll', 'll128' or 'simple', the protocol of NCCL"
    )


class CheckpointSpec(Section):
    """When and where `train` saves."""

    dir: str = Field(description="a folder")
    every: Steps = Field(description="a whole number, steps between checkpoints")


class TrainingSpec(Section):
    """The whole run, read by `train`; its length by limits of `plan` (unless --tokens) as well."""

    steps: Steps = key("a whole number, steps of the run", 1)
    seed: Seed = key("a whole number, the random seed", 0)
    learning_rate: Rate | None = key("a number, such as 1e-3; the optimizer's usual one without it")
    target_loss: Loss | None = key(
        "a number above 0, the mean loss of ten steps at which training ends"
    )
    checkpoint: CheckpointSpec | None = key("a mapping with dir and every")
    failures: Rate | None = key(
        "a number, failures that end the run, per 1,000 devices and day; 0 for none"
    )
    restart: Restart | None = key(
        "a time with its unit, such as '10 min', from a failure until it trains again"
    )
    checkpoint_rate: Bandwidth | None = key(
        "a rate with its unit, such as '1 GB/s', at which a node writes and reads checkpoints"
    )


class EmbodiedSpec(Section):
    """Emissions of making the hardware."""

    device: MadeCarbon = Field(description="a mass for one device, such as '150 kgCO2e'")
    node: MadeCarbon = key("a mass for a node without its devices, such as '1300 kgCO2e'", 0.0)
    lifetime: Lifetime = Field(description="how long the hardware is used, such as '1460 d'")


class EnergySpec(Section):
    """What energy and devices cost, and what they emit."""

    price: EnergyPrice | None = key(
        "a price of energy, such as '0.12 USD/kWh'; the site's if not given"
    )
    device_price: DevicePrice | None = key(
        "the rent of one device, such as '2.5 USD/h'; the catalog's if not"
    )
    carbon: Intensity | None = key(
        "a grid intensity, such as '56 gCO2e/kWh'; the site's if not given"
    )
    series: str | None = key(
        "the path of a CSV file with the columns hour, gCO2e/kWh, USD/kWh or both, in place of "
        "carbon and price"
    )
    embodied: EmbodiedSpec | None = key(
        "a mapping with device, node and lifetime, the emissions of making them"
    )


#: Begins top-level keys that are not read, for anchors of YAML, as in files of Docker Compose.
NOTE = "x-"


class JobFile(Section):
    """A job: training, forward passes or generation."""

    workload: Literal["train", "forward", "generate"] = key(
        "train, forward (forward passes alone) or generate (tokens, with a KV cache)", "train"
    )

    model: str | ModelSpec = Field(
        description="a catalog name, the path of a config.json, a Python function such as "
        "model.py:build (which is run), or a mapping with name, transformer, ffn or module"
    )
    data: DataSpec = Field(description="a mapping with sequence_length and global_batch")
    precision: str = key(
        "a number format: fp32, tf32, bf16 (default; devices without it: fp16, else fp32), "
        "fp16, fp8 (one scale per tensor), mxfp8 (one per block), nvfp4 (4 bits, so also "
        "for mxfp4), int8 (on TPUs), or amp: fp16 by autocast",
        "bf16",
    )
    optimizer: str = key(
        "adagrad, adam, adamw, adamw8bit, adafactor, lamb, lars, lion, momentum (of SGD), muon "
        "(AdamW outside of hidden layers' matrices), rmsprop, rmsprop_momentum or sgd",
        "adamw",
    )
    cluster: ClusterSpec = Field(description="a mapping with node and nodes, or with pools")
    strategy: str | OptionsSpec | TreeSpec = key(
        "'auto', the name of a preset, a preset with its degrees, or a tree", "auto"
    )
    software: str = key("a software family such as megatron-core, or auto", "auto")
    released: str | int | float | None = key(
        "the month of the software's release, such as 2024-12, or torchtitan's version (0.2.2, "
        "0.3); the newest if not"
    )
    traits: dict[str, Any] = Field(
        default_factory=dict, description="defaults of the software to replace, by trait name"
    )
    compile: bool | None = key(
        "true or false, whether a compiler merges operators; the software's default"
    )
    collectives: str | dict[CollectiveKind, str | CollectiveSpec] = key(
        "'auto', 'nccl' or an algorithm such as ring, or a mapping of all_reduce, all_gather, "
        "reduce_scatter and all_to_all to one",
        "auto",
    )
    energy: EnergySpec = Field(
        default_factory=EnergySpec,
        description="a mapping with price, device_price, carbon, series or embodied",
    )
    training: TrainingSpec = Field(
        default_factory=TrainingSpec, description="a mapping with steps, seed, learning_rate"
    )
    place: PlaceSpec | None = key(
        "a mapping with first_device, devices or nodes; the whole cluster if not"
    )
    neighbours: list[NeighbourSpec] | None = key(
        "a list of mappings of job and its devices: what shares the fabric"
    )


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of a job file (draft 2020-12)."""
    schema = JobFile.model_json_schema()
    schema["patternProperties"] = {f"^{NOTE}": {}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
