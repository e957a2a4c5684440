"""The cost of each executed task: its own, its class's transfers', or its slowest member's."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.compiler.folding.kernels import FROM_TASK
from wattree.compiler.folding.stage_classes import StageClasses, TransferCosts
from wattree.compiler.folding.task_instances import TaskInstances
from wattree.distinct import distinct
from wattree.graph import TaskKind
from wattree.lowering.streams import Stream

#: Transfers whose costs depend on the class, by field of `StageClasses`; the last one's are those
#: of one byte.
BY_CLASS = ("to_next", "to_previous", "to_mirror")
_TO_MIRROR = len(BY_CLASS) - 1


def cost_rows(tasks: TaskInstances) -> Integers:
    """Return the row of `BY_CLASS` with a record's cost, or `FROM_TASK` if the record has it."""
    stream, rows = tasks.records["stream"], np.full(len(tasks.records), FROM_TASK, dtype=np.int64)
    sends = tasks.records["kind"] == TaskKind.TRANSFER
    rows[sends & (stream == Stream.SEND_NEXT)] = BY_CLASS.index("to_next")
    rows[sends & (stream == Stream.SEND_PREVIOUS)] = BY_CLASS.index("to_previous")
    mirrored = np.array([stage.to_mirror is not None for stage in tasks.classes])
    if mirrored.any():
        exchanged = sends & (stream == Stream.REDUCE)
        rows[exchanged & mirrored[tasks.stage_of_record]] = _TO_MIRROR
    return rows


def by_class(tasks: TaskInstances, row: int, name: str) -> Floats:
    """Return a figure of the transfers of one row of `BY_CLASS`, for the classes of all stages."""
    parts = []
    for stage in tasks.classes:
        costs = getattr(stage, BY_CLASS[row])
        known = costs is not None and hasattr(costs, name)  # copies to the host have no class
        parts.append(getattr(costs, name) if known else np.zeros(len(stage.ranks)))
    return np.concatenate(parts)


def times(tasks: TaskInstances, costs: Integers) -> tuple[Floats, Floats, Floats]:
    """Return latency, work and bytes sent of all instances."""
    records = tasks.records
    alike = np.ones(len(records), dtype=bool)
    compute = records["kind"] == TaskKind.COMPUTE
    slowed = np.ones(len(records))
    for number, stage in enumerate(tasks.classes):
        own = compute & (tasks.stage_of_record == number)
        if (stage.slowdown == stage.slowdown[0]).all():
            slowed[own] = stage.slowdown[0]
        else:
            alike[own] = False
    latency_s = tasks.column("latency_s")
    work_s = tasks.column("work_s", slowed)
    wire_bytes = tasks.column("wire_bytes")
    if not alike.all():
        instance, _, owner = tasks.instances_of(~alike)
        work_s[instance] *= np.concatenate([stage.slowdown for stage in tasks.classes])[owner]
    if len(tasks.by_level) > 1:
        _slowest_member(tasks, tasks.mixed(), latency_s, work_s)
    for row in distinct(costs[costs != FROM_TASK]).tolist():
        instance, record, owner = tasks.instances_of(costs == row)
        latency_s[instance] = by_class(tasks, row, "latency_s")[owner]
        work_s[instance] = by_class(tasks, row, "work_s")[owner] * records["wire_bytes"][record]
        sent = [_sent(stage, row) for stage in tasks.classes]
        if any(own is not None for own in sent):
            share = [
                np.ones(len(stage.ranks)) if own is None else own
                for stage, own in zip(tasks.classes, sent, strict=True)
            ]
            moved = np.concatenate(share)[owner] * records["wire_bytes"][record]
            wire_bytes[instance] = moved
    return latency_s, work_s, wire_bytes


def _sent(stage: StageClasses, row: int) -> Floats | None:
    """Return the bytes of a stage's classes by record, where classes differ."""
    costs: TransferCosts | None = getattr(stage, BY_CLASS[row])
    return None if costs is None else costs.sent


def _slowest_member(tasks: TaskInstances, mixed: Flags, latency_s: Floats, work_s: Floats) -> None:
    """Give tasks of several levels of ranks the time of their slowest member, in place."""
    instance, row, owner = tasks.members_of(mixed)
    kind = tasks.level[owner]
    first = np.flatnonzero(np.diff(instance, prepend=-1))
    latency = np.stack([records["latency_s"] for records in tasks.by_level])[kind, row]
    work = np.stack([records["work_s"] for records in tasks.by_level])[kind, row]
    slowdown = np.concatenate([stage.slowdown for stage in tasks.classes])[owner]
    work = np.where(tasks.records["kind"][row] == TaskKind.COMPUTE, work * slowdown, work)
    latency_s[instance[first]] = np.maximum.reduceat(latency, first)
    work_s[instance[first]] = np.maximum.reduceat(work, first)
