"""A step of a few layers, simulated, for tests of what moves behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.compiler.jobs import Job, small_cluster
from tests.compiler.test_movement import with_tiers
from tests.compiler.test_pipeline import free_links, layers_only
from wattree.cost.rates import Rates
from wattree.graph import Phase, TaskKind
from wattree.hardware import Cluster
from wattree.sim import execute
from wattree.strategy import StrategyOptions, Traffic
from wattree.trace import Trace

__all__ = ["LAYERS", "Played", "play_layers"]

LAYERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A trace of one rank class and its tasks by name."""

    trace: Trace

    def spans(self, name: str) -> list[tuple[float, float]]:
        """Return start and end of the tasks called `name`."""
        graph = self.trace.graph
        chosen = np.flatnonzero(graph.name_ids == graph.names.index(name))
        return [(float(self.trace.start_s[t]), float(self.trace.end_s[t])) for t in chosen]

    def computing(self, phase: Phase) -> list[tuple[float, float]]:
        """Return start and end of computation of a phase."""
        graph = self.trace.graph
        chosen = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (graph.phase == phase))
        return [(float(self.trace.start_s[t]), float(self.trace.end_s[t])) for t in chosen]


def play_layers(
    traffic: Traffic,
    *,
    layers: int = LAYERS,
    cluster: Cluster | None = None,
    rates: Rates | None = None,
    accumulated: int = 1,
    family: str = "megatron-core",
    **options: object,
) -> Played:
    """Play equal layers, computation of a layer and phase as one task."""
    chosen = StrategyOptions(traffic=traffic, **options)  # type: ignore[arg-type]
    job = Job.of(
        layers_only(layers),
        chosen,
        cluster=cluster or with_tiers(small_cluster(chosen.ranks)),
        rates=rates or free_links(),
        global_batch=chosen.replicas * accumulated,
        family=family,
    )
    trace = execute(job.compiled(detail=False).graph)
    return Played(trace=trace)
