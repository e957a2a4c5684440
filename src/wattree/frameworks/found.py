"""Facts found in a configuration, completed by the user's options: sizes, batch, replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from wattree.frameworks.framework import Imported
from wattree.frameworks.models import catalog_name
from wattree.frameworks.read import flattened
from wattree.frameworks.settings import OPTIONS, Settings
from wattree.job.problems import Problems
from wattree.strategy import AXES


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Facts found in a configuration; None if not stated.

    Attributes:
        model: As a job has it.
        sequence_length: Tokens of a sample.
        global_batch, micro_batch: Samples of a step; of a forward pass and replica.
        accumulation: Micro-batches of a step and replica.
        precision, optimizer: As a job has them.
        steps: Of the run.
        compiled: A compiler fuses operators; None leaves it to the software.
        devices, nodes: Ranks, and machines that they are on.
        strategy: Keys of the job's strategy; the data-parallel degree is what devices leave.
        traits: Keys of `traits`.
        assumed: What it leaves open and was assumed, one sentence each.
        not_understood: Settings that no reader knows, by dotted key.
        usual: Attribute that is None → what the program takes where nothing is stated.
    """

    model: str | Mapping[str, Any] | None = None
    sequence_length: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    precision: str = "bf16"
    optimizer: str | None = None
    learning_rate: float | None = None
    steps: int | None = None
    compiled: bool | None = None
    devices: int | None = None
    nodes: int | None = None
    strategy: Mapping[str, Any] = field(default_factory=dict)
    traits: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    usual: Mapping[str, int] = field(default_factory=dict)


def reader(
    find: Callable[[Settings, Problems], Found | None],
    parse: Callable[..., Mapping[str, Any]],
) -> Callable[[Settings], Imported]:
    """Return the reader of a framework.

    Args:
        find: Reads a configuration and adds its problems to the list.
    """

    def read(settings: Settings) -> Imported:
        problems = Problems(str(settings.path))
        found = find(settings, problems)
        for line in problems.lines:
            settings.problem("", line)
        settings.check()
        assert found is not None
        unknown = tuple(f"{key}." for key in found.not_understood)  # also of whole sections
        for key in flattened(parse(settings.path)):
            if not f"{key}.".startswith(unknown):
                settings.value(key)
        for key in found.not_understood:  # flags of a command are in no settings
            if key not in settings:
                settings.put(key, value=True)
        for sentence in found.assumed:
            settings.assume(sentence)
        return completed(found, settings)

    return read


def completed(found: Found, settings: Settings) -> Imported:
    """Return the job, after listing missing and contradictory values."""
    whole = _with_ranks(_named(_merged(found, settings), settings), settings)
    strategy = dict(whole.strategy)
    _spread(whole, strategy, settings)
    batch = batch_of(settings, strategy, whole.micro_batch, whole.accumulation, whole.global_batch)
    for name in ("model", "sequence_length"):
        settings.need(name, getattr(whole, name))
    if whole.optimizer is None:
        settings.assume("optimizer adamw: the file names none")
    training = {"steps": whole.steps, "learning_rate": whole.learning_rate}
    return Imported(
        model=whole.model or "",
        data={"sequence_length": whole.sequence_length, "global_batch": batch},
        strategy=strategy,
        precision=whole.precision,
        optimizer=whole.optimizer or "adamw",
        compiled=whole.compiled,
        traits=whole.traits,
        nodes=whole.nodes,
        training={key: value for key, value in training.items() if value is not None},
    )


def _merged(found: Found, settings: Settings) -> Found:
    """Return it with the given values added; two different values are a problem.

    A model that is given replaces one: files name repositories and folders of others. Adapters are
    those of the file.
    """
    changes: dict[str, Any] = {}
    for name in sorted({each.name for each in fields(Found)} & OPTIONS.keys()):
        said, added = getattr(found, name), getattr(settings.given, name)
        if name == "model" and added is not None:
            adapts = isinstance(said, Mapping) and "lora" in said
            changes[name] = {**said, "name": added} if adapts else added
        else:
            changes[name] = settings.fact(name, said, usual=found.usual.get(name))
    return replace(found, **changes)


def _named(found: Found, settings: Settings) -> Found:
    """Return it with the catalog's name of its model, which files name by its repository."""
    model = found.model
    if isinstance(model, Mapping) and isinstance(name := model.get("name"), str):
        return replace(found, model={**model, "name": catalog_name(name, settings)})
    if isinstance(model, str):
        return replace(found, model=catalog_name(model, settings))
    return found


def _with_ranks(found: Found, settings: Settings) -> Found:
    """Return it with the ranks that follow from the batch, if neither file nor user gives them."""
    batch, micro = found.global_batch, found.micro_batch
    if found.devices is not None or settings.devices is not None or not batch or not micro:
        return found
    if batch % (micro * (found.accumulation or 1)):
        return found  # of no number of ranks: its problem is reported with that of the cluster
    if found.accumulation is None:
        settings.assume("one micro-batch per step: the file does not say how many")
    steps = found.accumulation or 1
    sharing = math.prod(found.strategy.get(axis, 1) for axis in ("tp", "cp", "pp"))
    return replace(found, devices=batch // (micro * steps) * sharing, accumulation=steps)


def _spread(found: Found, strategy: dict[str, Any], settings: Settings) -> None:
    """Fill in the degrees of data parallelism."""
    devices, per_node = found.devices or 0, settings.devices_per_node
    if found.nodes is not None and found.nodes < (needed := -(-devices // per_node)):
        settings.assume(
            f"{needed} nodes: {devices} processes, on {found.nodes} in the file, are more than "
            f"nodes of {per_node} devices hold"
        )
    others = math.prod(strategy.get(axis, 1) for axis in AXES if axis != "dp")
    if devices % (found.nodes or 1):
        settings.problem("", f"{devices} processes do not divide into {found.nodes} machines")
    elif found.devices is not None and not _holds(settings, devices, found.nodes):
        settings.problem(
            "",
            f"the file is for {found.devices} devices, the cluster has {settings.devices}; leave "
            "out --nodes, or change the file",
        )
    elif "dp" in strategy:
        ranks, there = strategy["dp"] * others, found.devices or settings.devices
        if there not in {None, ranks}:
            settings.problem("", f"its degrees multiply to {ranks}, there are {there} devices")
    elif found.devices is None:
        strategy["dp"] = settings.replicas(others)
    elif found.devices % others:
        settings.problem("", f"its degrees multiply to {others}, found {found.devices} devices")
    else:
        strategy["dp"] = found.devices // others
    if strategy.get("sharding") == "hybrid" and "fsdp" not in strategy:
        # FSDP1 shards within a node, and says no degree.
        strategy["fsdp"] = math.gcd(strategy.get("dp", 1), settings.devices_per_node)
        strategy["dp"] = strategy.get("dp", 1) // strategy["fsdp"]


def _holds(settings: Settings, devices: int, machines: int | None) -> bool:
    """Whether a cluster that is named is that of a file: all of its devices, or a part of each."""
    if settings.devices in {None, devices}:
        return True
    needed = machines or -(-devices // settings.devices_per_node)
    nodes = (settings.devices or 0) // settings.devices_per_node
    return devices < (settings.devices or 0) and nodes == needed and devices % nodes == 0


def batch_of(
    settings: Settings,
    strategy: dict[str, Any],
    micro: int | None,
    steps: int | None,
    batch: int | None,
) -> int:
    """Return samples per step; two of micro-batch, accumulation and step determine the third.

    Args:
        settings: Take what is missing, contradictory or assumed.
        strategy: With its degrees; it gets the micro-batch.
        micro, steps, batch: Samples of a forward pass, micro-batches, samples of a step.
    """
    replicas = math.prod(strategy.get(axis, 1) for axis in ("dp", "fsdp", "ep"))
    if micro is None and batch is None:
        settings.problem("", "the file does not say a batch; add --micro-batch or --global-batch")
        return 1
    if steps is None and (micro is None or batch is None):
        settings.assume("one micro-batch per step: the file does not say how many")
        steps = 1
    if micro is None:
        micro = max(1, (batch or 1) // (replicas * (steps or 1)))
    if steps is None:
        steps = max(1, (batch or 1) // (replicas * micro))
    whole: int = micro * steps * replicas
    if batch not in {None, whole}:
        settings.problem(
            "",
            f"a step of {batch} samples is not {steps} micro-batches of {micro} on each of "
            f"{replicas} replicas, which is {whole}",
        )
    strategy["micro_batch"] = micro
    return whole
