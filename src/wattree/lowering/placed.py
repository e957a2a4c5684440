"""One job on its devices, as its step is lowered from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Integers
from wattree.cost import Software
from wattree.cost.loading import Loader
from wattree.cost.rates import Rates
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.hardware import Cluster
from wattree.lowering.changed import changed_model
from wattree.lowering.colocation import colocation_misfits
from wattree.lowering.legality import check_fits, check_ring
from wattree.lowering.setting import Setting
from wattree.strategy import TIME_SLICED, AxisRole, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """One job on its devices: all that its step is lowered from.

    Attributes:
        rates: What its devices reach, by pool; of a single pool just that.
        software: What its software does by default.
        optimizer: Name of the optimizer.
        sequence: Tokens per sample.
        global_batch: Samples per step.
        devices: Device of each rank; None puts rank r on device r.
        label: What the names of its rank classes begin with.
        loader: How its data is loaded; None where nothing is known of that.
        spilled: Share of what has no place of its own that lies in expanded memory.
    """

    model: ModelGraph
    strategy: Strategy
    rates: Rates | Sequence[Rates]
    software: Software
    optimizer: str
    sequence: int
    global_batch: int
    devices: Integers | None = None
    label: str = ""
    loader: Loader | None = None
    spilled: float = 0.0

    @classmethod
    def of(
        cls, setting: Setting, strategy: Strategy, *, label: str = "", spilled: float = 0.0
    ) -> PlacedJob:
        """Return the job of a setting under one strategy."""
        job = setting.job
        return cls(
            model=setting.model,
            strategy=strategy,
            rates=setting.pool_rates,
            software=setting.software,
            optimizer=job.optimizer,
            sequence=job.data.sequence_length,
            global_batch=job.data.global_batch,
            devices=None if job.devices is None else np.array(job.devices, dtype=np.int64),
            label=label,
            loader=job.data.loader,
            spilled=spilled,
        )


def checked_parts(job: PlacedJob, cluster: Cluster) -> list[PlacedJob]:
    """Return the job of one process on each device and of the model that it trains, if it fits.

    Of several meshes, that on the ranks of each.

    Raises:
        StrategyError: It does not fit.
    """
    several = len(job.strategy.meshes) > 1
    if not several:
        if misfits := colocation_misfits(job.strategy, cluster):
            raise StrategyError(misfits)
        job = with_processes(with_changes(job))
    check_fits(
        job.model,
        job.strategy,
        cluster,
        global_batch=job.global_batch,
        sequence=job.sequence,
        devices=None if job.devices is None else len(job.devices),
    )
    parts = [with_changes(part) for part in on_meshes(job)] if several else [job]
    if any(part.strategy.degrees[AxisRole.CONTEXT] > 1 for part in parts):
        check_ring(job.strategy.tree, job.software)
    return parts


def on_meshes(job: PlacedJob) -> list[PlacedJob]:
    """Return the job on the ranks of each of its meshes, which use its devices in order."""
    strategy, first, found = job.strategy, 0, []
    devices = np.arange(strategy.ranks) if job.devices is None else job.devices
    for part in strategy.parts:
        own = devices[first : first + part.ranks]
        found.append(replace(job, strategy=part, devices=own))
        first += part.ranks
    return found


def with_changes(job: PlacedJob) -> PlacedJob:
    """Return the job with the model that its strategy makes of its own.

    Raises:
        StrategyError: Layers cannot be what the strategy wants of them.
    """
    strategy = job.strategy
    degrees = dict(strategy.mesh.axes)
    model, tree = changed_model(job.model, strategy.tree, degrees)
    return (
        job
        if model is job.model
        else replace(job, model=model, strategy=replace(strategy, tree=tree))
    )


def with_processes(job: PlacedJob) -> PlacedJob:
    """Return the job of one process per device, with the share of the device left by others.

    Raises:
        StrategyError: The processes cannot share the batch evenly.
    """
    colocation = job.strategy.colocation
    if not colocation.is_several:
        return job
    count, in_turn = colocation.processes, colocation.sharing == TIME_SLICED
    given = (job.rates,) if isinstance(job.rates, Rates) else job.rates
    return replace(
        job,
        rates=tuple(rates.shared(count, in_turn=in_turn) for rates in given),
        global_batch=colocation.process_batch(job.global_batch),
        loader=None if job.loader is None else job.loader.shared(count),
    )
