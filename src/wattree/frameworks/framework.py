"""Interface of a training framework: how its files are written and read.

One file per framework declares a `Framework` and registers it. `export.py` and `imports.py` do
what all have in common; they know no framework by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from wattree.capture import TransformerShape
from wattree.cost import Software
from wattree.frameworks.settings import Settings
from wattree.graph import ModelGraph
from wattree.job import Job
from wattree.registry import Registry
from wattree.strategy import StrategyOptions, chunk_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcreteJob:
    """A fully specified job, as writers take it.

    Attributes:
        job: The job; its traits and its strategy are those that it states.
        options: Its strategy in the one form that strategies of the same meaning share.
        model: Graph of its model.
        model_name: Name in the catalog; empty if the catalog has no such model.
        shape: The model in numbers; None if it is no transformer of a known family.
        config: Keys of its `config.json`, where it has one.
        software: Its software, with the job's traits; for writers, that of the framework.
        compiled: A compiler merges chains of operators.
    """

    job: Job
    options: StrategyOptions
    model: ModelGraph
    model_name: str
    shape: TransformerShape | None
    software: Software
    config: Mapping[str, Any] = field(default_factory=dict)
    compiled: bool = False

    @property
    def title(self) -> str:
        """Name of the model for people: of a file elsewhere, the file's name alone."""
        path = Path(self.model.name)
        return path.name if path.is_absolute() else self.model.name

    @property
    def hosts(self) -> list[list[int]]:
        """Devices of each host that the job runs on, by their number there, in order of ranks."""
        ranks, per_node = self.options.ranks, self.job.cluster.node.devices
        devices = (self.job.devices or range(ranks))[:ranks]
        rows = groupby(devices, lambda device: device // per_node)
        return [[device % per_node for device in row] for _, row in rows]

    @property
    def nodes(self) -> int:
        """Hosts that the job runs on."""
        return len(self.hosts)

    @property
    def devices_per_node(self) -> int:
        """Ranks on each host."""
        return len(self.hosts[0])

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Layers of each chunk of the pipeline, in model order."""
        pipeline = self.options.pipeline
        chunks = self.options.pp * pipeline.virtual_stages
        return pipeline.stage_layers or chunk_layers(self.model.layers, chunks)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each replica in a step."""
        samples = self.options.replicas * self.options.pipeline.micro_batch
        return max(1, self.job.data.global_batch // samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a writer made of a job.

    Attributes:
        files: Name → text, without README.md and `launch.sh`.
        launch: The script that starts the job, without its first line.
        fill_in: What the user has to fill in, one sentence each.
        assumed: What was assumed, one sentence each.
        misfits: Key of the job → why the framework cannot express it.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    launch: str = ""
    fill_in: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    misfits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a reader found in a configuration. What it assumed is noted in the `Settings`.

    Attributes:
        model: Name in the catalog, or a mapping as the key `model` of a job has it.
        data: Keys of `data`.
        strategy: Keys of `strategy`, with every degree above 1.
        precision, optimizer: As in a job.
        compiled: A compiler merges chains of operators; None leaves it to the software.
        traits: Keys of `traits`.
        training: Keys of `training`.
        software: Family, where it is not the framework's first.
        nodes: Machines that the ranks are evenly on; None: as few as hold them.
        released: Month of the last release that reads the file; empty: the newest does.
    """

    model: str | Mapping[str, Any]
    data: Mapping[str, Any]
    strategy: Mapping[str, Any]
    precision: str = "bf16"
    optimizer: str = "adamw"
    compiled: bool | None = None
    traits: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    software: str = ""
    nodes: int | None = None
    released: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A program that people train with.

    Attributes:
        name: As `--to` and `--from` take it.
        title: For people.
        versions: That its files are written for, such as `torchtitan 0.2.2`.
        source: Where its settings are documented.
        since: Month of the first release that its files start as such a job predicts it; empty: of
            the newest only.
        software: Families of `job/offers.yaml` that it stands for; jobs are imported as the first.
        knobs: Keys of a strategy that it has settings for; any other key that a job sets is
            refused. Degrees, `micro_batch`, `sharding`, `recompute`, `schedule`,
            `virtual_stages`, `sequence_parallel` and `context` are up to the writer.
        precisions, optimizers: That it has settings for.
        traits: Trait of a job → values that it has a setting for; any other that a job states and
            its software does not have by default is refused. Compilation is up to the writer.
        adapts: Its writer has settings for low-rank adapters.
        predicts: Its writer has settings for multi-token prediction.
        ignored: Patterns of settings that cannot matter to a step.
        left_out: Patterns of those that change what is trained and no step; an import names them.
        programs: That start it, whose files are read too; no other framework reads them.
        write: Makes files of a job; None where its files are only read.
        parse: Reads a file into plain values.
        read: Makes a job of settings.
    """

    name: str
    title: str
    versions: str
    source: str
    since: str = ""
    software: tuple[str, ...]
    knobs: frozenset[str] = frozenset()
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    traits: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    adapts: bool = False
    predicts: bool = False
    ignored: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    write: Callable[[ConcreteJob], Written] | None
    parse: Callable[[Path], Mapping[str, Any]]
    read: Callable[[Settings], Imported]


FRAMEWORKS: Final[Registry[Framework]] = Registry(kind="framework", group="wattree.frameworks")


def written_frameworks() -> tuple[str, ...]:
    """Return the names of the frameworks that jobs are exported to."""
    return tuple(name for name in FRAMEWORKS if FRAMEWORKS[name].write is not None)
