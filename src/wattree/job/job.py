"""A training job as typed values: the content of `job.yaml` with units resolved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from wattree.cost import AUTO_SOFTWARE
from wattree.cost.loading import Loader
from wattree.cost.releases import earlier_traits
from wattree.cost.requests import CollectiveRequests
from wattree.errors import StrategyError
from wattree.hardware import Cluster
from wattree.job.energy import EnergyTerms
from wattree.job.module import ModuleSource, working_folder
from wattree.strategy import Strategy, StrategyOptions

CROSS_ENTROPY: Final = "cross_entropy"
#: What trains adapters of layers in 4 bits where a job does not name it.
_QUANTIZED: Final = "hf-trainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ffn:
    """A stack of `depth` linear layers, an activation after each but the last, and a loss.

    Attributes:
        width: Neurons of every hidden layer.
        inputs: Values of a sample, which the first layer reads.
        outputs: Values, or classes, that the last layer makes.
        activation: `relu`, `gelu`, `silu`, `tanh` or `sigmoid`, as `torch.nn.functional` has them.
        bias: Whether layers add a bias.
        loss: `mse`, the mean over samples and outputs, or `cross_entropy` over the outputs.
    """

    width: int
    depth: int
    inputs: int
    outputs: int
    activation: str = "relu"
    bias: bool = True
    loss: str = "mse"

    @property
    def widths(self) -> tuple[int, ...]:
        """Features ahead of the first layer, and behind each, `depth + 1` numbers."""
        return (self.inputs, *(self.width for _ in range(self.depth - 1)), self.outputs)


#: The strategy of a job that leaves it to `plan`.
AUTO = "auto"
#: The family of inference engines: software of jobs that generate tokens and name none.
INFERENCE = "inference"


class WorkloadKind(StrEnum):
    """The use of the model in a job."""

    TRAIN = "train"  # steps of an optimizer
    FORWARD = "forward"  # forward passes alone: evaluation, embedding
    GENERATE = "generate"  # tokens one after another, with a KV cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters on frozen weights.

    Attributes:
        rank: Rank of the update.
        targets: Operator paths that get one, as patterns (`attention.*`, `mlp.up`).
        base: Format of the frozen linear layers, `int8`, `nf4` or `nf4-double`; empty: as others.
    """

    rank: int
    targets: tuple[str, ...] = ("attention.qkv", "attention.out")
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where the model comes from: exactly one of `name`, `transformer`, `ffn` and `module`.

    Attributes:
        name: Catalog name, or path of a `config.json`.
        transformer: Keys of a plain `transformer:` block.
        ffn: Shape of the built-in stack of linear layers.
        module: A Python function that builds it; using it runs code.
        capture: A named one is built and captured even where its family can be read.
        arguments: Options of the catalog's model called `name`.
        lora: Adapters to add, if any.
        freeze: Patterns of operators whose parameters are not trained.
        folder: Where a name that the catalog does not have is looked for, as a file or folder.
        start: The current folder when it was read, where relative paths start.
    """

    name: str | None = None
    transformer: Mapping[str, Any] | None = None
    ffn: Ffn | None = None
    module: ModuleSource | None = None
    capture: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    lora: Lora | None = None
    freeze: tuple[str, ...] = ()
    folder: Path = Path()
    start: Path = field(default_factory=working_folder, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSource:
    """The data source of a real run: one of `name` and `module`.

    Attributes:
        name: `synthetic-regression`, `synthetic-classification` or `digits`.
        module: A Python function that returns the samples; using it runs code.
        samples: Of a synthetic source; None leaves that to it.
    """

    name: str | None = None
    module: ModuleSource | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The samples of one step.

    Attributes:
        sequence_length: Tokens per sample; 1 where samples have none.
        global_batch: Samples per step over all replicas.
        has_sequence: The job gives a sequence length. Models of tokens need one.
        document_length: Mean tokens of the documents that a sample is packed of; None: it is one.
        loader: How samples get to the devices; None where the job does not say.
        source: The data of `train`; no prediction depends on it.
        generate_length: Tokens that are generated of each sample, whose `sequence_length` is then
            that of its prompt; 0 where nothing is generated.
    """

    sequence_length: int = 1
    global_batch: int
    has_sequence: bool = True
    document_length: int | None = None
    loader: Loader | None = None
    source: SampleSource = field(default_factory=SampleSource)
    generate_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """When and where `train` saves.

    Attributes:
        every: Steps between them.
    """

    folder: Path
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The whole run.

    Attributes:
        steps: Its length; limits of `plan` are those of as many steps, too.
        seed: Of weights, data and their order.
        learning_rate: None leaves it to the optimizer's usual one.
        target_loss: It ends earlier once this is reached.
        checkpoint: When and where it is saved; None: never.
        failures_per_device_s: That end the run; None for those of the calibration. [1/s]
        restart_s: From a failure until it trains again; None as before. [s]
        checkpoint_bytes_per_s: At which a node writes and reads checkpoints; likewise. [B/s]
    """

    steps: int = 1
    seed: int = 0
    learning_rate: float | None = None
    target_loss: float | None = None
    checkpoint: CheckpointOptions | None = None
    failures_per_device_s: float | None = None
    restart_s: float | None = None
    checkpoint_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        model: Where the model comes from.
        data: Batch and sequence.
        precision: Number format of matrix work, such as `bf16`.
        optimizer: `adamw`, `adam`, `sgd`, `momentum`, `lion`, `lamb`, `lars`, `adafactor`,
            `adamw8bit`, `adagrad`, `muon`, `rmsprop`, `rmsprop_momentum`.
        cluster: Hardware.
        strategy: A full strategy, options of the combined presets, or `AUTO`.
        software: Software family whose defaults and calibration apply.
        training: Options of `train`.
        software_name: Its name as the file has it, where that is none of a family; empty otherwise.
        source: File of the job, for messages.
        traits: Overrides of the software family's defaults, by trait name.
        released: The month of the software's release; None: the newest.
        collectives: Algorithms of collectives, by kind.
        warnings: Settings of its file that have no effect, one line each; commands print them.
        devices: Device of each rank; None puts rank r on device r.
        neighbours: Other jobs on the same cluster, on other devices.
        terms: Its section on money and carbon; prices and intensity are in the cluster too.
        left_open: Keys of its strategy that it leaves to its software (`wattree.job.usual`).
        assumed: Assumptions where the file states nothing, one sentence each.
        workload: Whether it trains, only runs forward passes, or generates tokens.
    """

    model: ModelSource
    data: Data
    precision: str
    optimizer: str
    cluster: Cluster
    strategy: Strategy | StrategyOptions | str
    software: str
    software_name: str = ""
    training: TrainingOptions = field(default_factory=TrainingOptions)
    source: str = "job"
    traits: Mapping[str, Any] = field(default_factory=dict)
    released: str | None = None
    collectives: CollectiveRequests = field(default_factory=CollectiveRequests)
    warnings: tuple[str, ...] = ()
    devices: tuple[int, ...] | None = None
    neighbours: tuple[Neighbour, ...] = ()
    terms: EnergyTerms = field(default_factory=EnergyTerms)
    left_open: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    workload: WorkloadKind = WorkloadKind.TRAIN

    def __hash__(self) -> int:
        return hash((self.source, self.precision, self.data.global_batch))

    @property
    def taken_software(self) -> str:
        """Software that the job names, or the one that has what only one has; else `auto`.

        Of the families here, the transformers library alone loads frozen layers in NF4
        (`BitsAndBytesConfig`).
        """
        lora = self.model.lora
        is_quantized = lora is not None and bool(lora.base) and self.workload is WorkloadKind.TRAIN
        return _QUANTIZED if is_quantized and self.software == AUTO_SOFTWARE else self.software

    def traits_of(self, family: str, engine: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the traits of its release of a software family, of its engine and those it states.

        Each goes before the ones named before it.
        """
        return {**earlier_traits(family, self.released), **(engine or {}), **self.traits}

    def lasting(
        self,
        *,
        steps: float | None = None,
        tokens: float | None = None,
        samples: float | None = None,
    ) -> Job:
        """Return the job with so many steps, or as many as it takes to see, or generate, so much.

        Args:
            steps, tokens, samples: One of them; the job itself with none.
        """
        if tokens is not None:
            samples = tokens / (self.data.generate_length or self.data.sequence_length)
        if samples is not None:
            batch = self.data.global_batch
            if not isinstance(self.strategy, str):  # processes with a batch each take more in one
                batch = self.strategy.colocation.samples(batch)
            steps = samples / batch
        if steps is None:
            return self
        whole = max(math.ceil(steps - 1e-9), 1)
        return replace(self, training=replace(self.training, steps=whole))

    def capped(self, power_limit_w: float) -> Job:
        """Return the job with a power limit on every device, its neighbors' included. [W]"""
        return replace(
            self,
            cluster=self.cluster.limited(power_limit_w),
            neighbours=tuple(
                replace(other, job=other.job.capped(power_limit_w)) for other in self.neighbours
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another job on the same fabric.

    Attributes:
        job: The other job; it has the cluster of the first job, and its `devices` are given.
        offset_s: Time by which its step begins before the first job's; None if nothing is known of
            that. [s]
    """

    job: Job
    offset_s: float | None = None


@contextmanager
def naming(job: Job) -> Iterator[None]:
    """Name the job's file and the key of each misfit in errors about its strategy.

    Raises:
        StrategyError: In place of one that says what is wrong and not where.
    """
    try:
        yield
    except StrategyError as error:
        if error.source:
            raise
        raise StrategyError(error.misfits, source=job.source) from error
