"""Measurements of all ranks, collected on rank 0."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from wattree.energy.stages import all_reduce_sent_bytes
from wattree.runtime.layers import RowParallelLinear, ShardedLinear
from wattree.runtime.models.experts import experts_of
from wattree.runtime.models.vocabulary import VocabularyEmbedding
from wattree.runtime.recipe import Recipe
from wattree.runtime.regions import local_part
from wattree.runtime.train.record import Span, SpanRecorder
from wattree.runtime.train.session import RankSession
from wattree.runtime.transfers import SentTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccount:
    """The measurements of one rank.

    Attributes:
        rank: Its number.
        origin_s: When all ranks began, on its clock. [s]
        steps: Spans of its last steps.
        sent_bytes: Kind of collective → payload sent over all measured steps. [B]
        calls: Collectives over all measured steps.
        peak_bytes: Most memory that the process held. [B]
        parameters: Elements that it has and no other rank of its replica.
        copies: Elements that every rank of its replica has.
        trained: Elements of both that are trained.
        stored: Elements that it stores between steps: its shards, where they are sharded.
        waited_s: What it waited for a core in all measured steps; NaN where that is not known. [s]
    """

    rank: int
    origin_s: float
    steps: tuple[tuple[Span, ...], ...]
    sent_bytes: dict[str, float]
    calls: int
    peak_bytes: float
    parameters: int
    copies: int
    trained: int
    stored: int
    waited_s: float


class Counted:
    """What is counted of the measured steps.

    Attributes:
        waited_s: What this thread waited for a core; NaN where that is not known. [s]
    """

    def __init__(self, traffic: SentTraffic) -> None:
        self._traffic, self._begun_s, self.waited_s = traffic, math.nan, math.nan

    def begin(self) -> None:
        """Count anew."""
        self._traffic.reset()
        self._begun_s = _waited_for_core_s()

    def end(self) -> None:
        """Take what this thread waited; bytes that are sent are counted on."""
        self.waited_s = _waited_for_core_s() - self._begun_s


def _waited_for_core_s() -> float:
    """Return how long this thread could run and had no core so far; NaN where not known. [s]

    Source: the Linux kernel's Documentation/scheduler/sched-stats.rst, `/proc/<pid>/schedstat`.
    """
    try:
        text = Path("/proc/thread-self/schedstat").read_text(encoding="ascii")
    except OSError:
        return math.nan
    return int(text.split()[1]) * 1e-9


def ring_bytes(module: nn.Module, replicas: int) -> float:
    """Return the bytes that a rank sends to reduce gradients over replicas, in a ring. [B]"""
    elements = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    return all_reduce_sent_bytes(elements, replicas)


def peak_memory_bytes(device: torch.device) -> float:
    """Return the most memory that this process held: on its device, or on the host. [B]"""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_reserved(device))
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        import resource

        unit = 1 if os.uname().sysname == "Darwin" else 1024
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    peak = next((line for line in lines if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return float(peak.split()[1]) * 1024.0


def gathered(
    session: RankSession,
    recorder: SpanRecorder,
    origin: Any,
    module: nn.Module,
    waited_s: float,
    *,
    measured_steps: int,
    copied: int,
) -> Sequence[RankAccount]:
    """Return the measurements of all ranks on rank 0; empty on others. A collective call."""
    traffic, recipe = session.group.traffic, session.recipe
    sent = {name: float(count) for name, count in traffic.sent_bytes.items()}
    calls = sum(traffic.calls.values())
    if recipe.processes_per_device > 1:
        sent["gradients"] = sent.pop("all_reduce", 0.0)  # to other devices, as it was counted
    elif session.data_group is not None and recipe.backward and not recipe.is_fully_sharded:
        sent["gradients"] = ring_bytes(module, recipe.holders) * measured_steps
        calls += measured_steps
    own, copies = _elements(module, recipe)
    mine = RankAccount(
        rank=session.rank,
        origin_s=recorder.seconds(origin),
        steps=tuple(map(tuple, recorder.steps())),
        sent_bytes=sent,
        calls=calls,
        peak_bytes=peak_memory_bytes(session.device),
        parameters=own - copied,
        copies=copies,
        trained=sum(_weighed(module, recipe, trained=True).values()),
        stored=sum(local_part(p).numel() for p in module.parameters()),
        waited_s=waited_s,
    )
    found: list[RankAccount | None] | None = (
        [None] * recipe.options.ranks if session.rank == 0 else None
    )
    dist.gather_object(mine, found, dst=0, group=session.control)
    return [each for each in found if each is not None] if found else []


def _weighed(module: nn.Module, recipe: Recipe, *, trained: bool = False) -> dict[int, int]:
    """Return id → elements of parameters, those of experts as often as ranks of ep have others."""
    spread = {id(each) for each in experts_of(module)}
    return {
        id(each): each.numel() * (recipe.options.ep if id(each) in spread else 1)
        for each in module.parameters()
        if each.requires_grad or not trained
    }


def _elements(module: nn.Module, recipe: Recipe) -> tuple[int, int]:
    """Return the elements that only this rank of its replica has, and those that all have."""
    every = _weighed(module, recipe)
    if recipe.options.tp == 1:
        return sum(every.values()), 0
    cut = (ShardedLinear, VocabularyEmbedding)
    own = {
        id(parameter)
        for layer in module.modules()
        if isinstance(layer, cut)
        for name, parameter in layer.named_parameters(recurse=False)
        if not (isinstance(layer, RowParallelLinear) and name == "bias")
    }
    if recipe.expert_over_tensor:
        own |= {id(each) for each in experts_of(module)}
    total = sum(every[each] for each in own)
    return total, sum(every.values()) - total
