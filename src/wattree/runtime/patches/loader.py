"""Loaders that take a process's share of its device's batch, and of its workers."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from wattree.errors import JobError
from wattree.runtime.colocation.batch import batch_share
from wattree.runtime.colocation.environment import ColocatedProcess
from wattree.runtime.colocation.layout import share_of
from wattree.runtime.patches import UNPATCHED
from wattree.runtime.patches.changed_once import ChangedNumber
from wattree.runtime.patches.ending import end_by

_SOURCE = "DataLoader(batch_size=…)"


def change_loader(colocation: ColocatedProcess, *, batch: bool, workers: bool) -> None:
    """Let every loader that the script makes take this process's share.

    Args:
        batch, workers: What is shared.
    """
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def begin(self: Any, *given: Any, **named: Any) -> None:
        asked = signature.bind(self, *given, **named)
        asked.apply_defaults()
        values = asked.arguments
        changed: dict[str, Any] = {}
        size, count = values["batch_size"], values["num_workers"]
        is_whole = values["batch_sampler"] is None and size is not None
        if batch and is_whole and not isinstance(size, ChangedNumber):
            changed["batch_size"] = ChangedNumber(end_by(lambda: _batch(values, colocation)))
        if workers and count > 0 and not isinstance(count, ChangedNumber):
            share = _workers(count, colocation)
            changed["num_workers"] = ChangedNumber(share)
            if share == 0:  # what only holds with workers is refused without
                changed |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        for name in list(signature.parameters)[1 : len(given) + 1]:
            changed.setdefault(name, values[name])
        original(self, **(named | changed))

    DataLoader.__init__ = begin


def _batch(values: dict[str, Any], colocation: ColocatedProcess) -> int:
    """Return the samples of a batch of this process.

    Raises:
        JobError: Processes would have batches of different sizes, or none.
    """
    size = int(values["batch_size"])
    is_shared = isinstance(values["sampler"], DistributedSampler) or isinstance(
        values["dataset"], IterableDataset
    )
    if size == 1 and not is_shared:
        return 1  # every process goes through all samples, one by one: an evaluation
    share = batch_share(
        size, colocation.processes, colocation.device_rank, colocation.batch_rule, source=_SOURCE
    )
    if not share.is_even:
        raise JobError(
            _SOURCE,
            [
                f"found {size}, expected a multiple of {colocation.processes}: the processes of a "
                "device would take different numbers of steps; use such a batch, another number of "
                f"processes, or --batch-rule fixed-per-process; {UNPATCHED}=batch leaves batches "
                "to the script, as of an evaluation in which each process takes all samples"
            ],
        )
    return share.samples


def _workers(workers: int, colocation: ColocatedProcess) -> int:
    if colocation.loader_workers is not None:
        return colocation.loader_workers
    return max(1, share_of(workers, colocation.processes, colocation.device_rank))
