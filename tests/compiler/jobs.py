"""Small jobs for the tests of the compiler, and their collectives written down plainly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.sim.reference import execute_reference
from wattree.capture.transformer import TransformerShape, build_transformer
from wattree.compiler import Compilation, compile_job
from wattree.cost import Software, load_calibration, software_family
from wattree.cost.rates import Rates, pool_rates
from wattree.graph import ExecutionGraph, ModelGraph, TaskKind
from wattree.hardware import Cluster, Node, Pool, Precision, load_fabric, load_node, load_site
from wattree.lowering import ModelProgram, PlacedJob
from wattree.lowering.block import compile_model
from wattree.lowering.optimizer_state import update_kinds
from wattree.lowering.program import CollectiveInstruction, Scale
from wattree.lowering.storage import SyncGroup, block_storage
from wattree.sim import execute
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of

__all__ = [
    "Collective",
    "Job",
    "check_plays",
    "counted",
    "cut_node",
    "dense",
    "mixed_cluster",
    "mixture",
    "moved_bytes",
    "small_cluster",
]

SEQUENCE = 64
HIDDEN = 32
HEADS = 8
VOCABULARY = 256
#: Bytes of a bf16 activation.
WIDTH = 2.0


def dense(layers: int = 2, **changes: object) -> ModelGraph:
    """Return a small dense transformer without position table or dropout."""
    given: dict[str, object] = {
        "layers": layers,
        "hidden": HIDDEN,
        "heads": HEADS,
        "vocab": VOCABULARY,
        "ffn": 4 * HIDDEN,
        "norm": "layer",
        "positions": "rotary",
        "name": "small",
    }
    return build_transformer(TransformerShape(**{**given, **changes}))  # type: ignore[arg-type]


def mixture(layers: int = 2, *, experts: int = 8, top_k: int = 2, **changes: object) -> ModelGraph:
    """Return a small mixture-of-experts transformer."""
    return dense(layers, experts=experts, top_k=top_k, gated=True, norm="rms", **changes)


def small_cluster(
    devices: int,
    *,
    per_node: int | None = None,
    slowdown: Mapping[int, float] | None = None,
    free_links: bool = False,
) -> Cluster:
    """Return H100 nodes cut down to `per_node` devices, if asked with links that cost nothing."""
    per_node = per_node or min(devices, 8)
    node = load_node("dgx-h100")
    scale_up = replace(node.scale_up, domain_devices=per_node)
    node = replace(node, devices=per_node, nics=per_node, scale_up=scale_up)
    fabric = load_fabric("rail-optimised-ndr")
    if free_links:
        node = replace(
            node,
            nic_bandwidth_bytes_per_s=1e30,
            nic_latency_s=0.0,
            scale_up=replace(scale_up, bandwidth_bytes_per_s=1e30),
        )
        fabric = replace(fabric, switch_latency_s=0.0)
    return Cluster(
        node=node,
        nodes=-(-devices // per_node),
        fabric=fabric,
        site=load_site("world-average"),
        slowdown=dict(slowdown or {}),
    )


def cut_node(name: str, devices: int, *, nics: int | None = None, title: str = "") -> Node:
    """Return a node of the catalog with so many devices, an adapter for each if not said."""
    node = load_node(name)
    return replace(
        node,
        name=title or f"{name}-cut",
        devices=devices,
        nics=devices if nics is None else nics,
        scale_up=replace(node.scale_up, domain_devices=devices),
    )


def mixed_cluster(
    *pools: tuple[Node, int],
    oversubscription: float = 1.0,
    leaf_nodes: int = 32,
    kind: str = "rail-optimised",
    slowdown: Mapping[int, float] | None = None,
    slow_links: Mapping[int, float] | None = None,
) -> Cluster:
    """Return pools of nodes on one fabric."""
    fabric = load_fabric("rail-optimised-ndr")
    return Cluster(
        pools=tuple(Pool(node=node, nodes=nodes) for node, nodes in pools),
        fabric=replace(fabric, oversubscription=oversubscription, leaf_nodes=leaf_nodes, kind=kind),
        site=load_site("world-average"),
        slowdown=dict(slowdown or {}),
        slow_links=dict(slow_links or {}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective of the compiled program: what it is, between whom, and its whole buffer."""

    phase: str
    kind: str
    axes: tuple[str, ...]
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model and a strategy, ready to be compiled on a small cluster."""

    model: ModelGraph
    strategy: Strategy
    cluster: Cluster
    global_batch: int = 16
    sequence: int = SEQUENCE
    family: str = "megatron-core"
    optimizer: str = "adamw"
    rates: Rates | None = None
    traits: Mapping[str, object] | None = None

    @classmethod
    def of(
        cls,
        model: ModelGraph,
        options: StrategyOptions,
        *,
        cluster: Cluster | None = None,
        global_batch: int = 16,
        **rest: object,
    ) -> Job:
        """Return the job of a preset."""
        strategy = strategy_of(options, model=model, global_batch=global_batch)
        return cls(
            model=model,
            strategy=strategy,
            cluster=cluster or small_cluster(options.ranks),
            global_batch=global_batch,
            **rest,  # type: ignore[arg-type]
        )

    @property
    def software(self) -> Software:
        """Defaults of the job's software."""
        return software_family(self.family).with_traits(self.traits or {})

    def compiled(self, *, fold: bool = True, detail: bool = True) -> Compilation:
        """Return the compiled job."""
        return compile_job(self.placed, self.cluster, fold=fold, detail=detail)

    @property
    def placed(self) -> PlacedJob:
        """The job as the compiler takes it."""
        rates = self.rates or pool_rates(
            self.cluster, self.software, Precision.BF16, load_calibration()
        )
        return PlacedJob(
            model=self.model,
            strategy=self.strategy,
            rates=rates,
            software=self.software,
            optimizer=self.optimizer,
            sequence=self.sequence,
            global_batch=self.global_batch,
        )

    def program(self) -> ModelProgram:
        """Return the block programs, sizes symbolic."""
        active = frozenset(axis for axis, degree in self.strategy.mesh.axes if degree > 1)
        return compile_model(self.model, self.strategy.tree, active)

    def scale(self, program: ModelProgram) -> Scale:
        """Return the values of the program's symbols."""
        mesh = self.strategy.mesh
        replicas = mesh.size(program.batch_axes)
        samples = self.global_batch / (self.strategy.schedule.micro_batches * replicas)
        return Scale(
            micro_batch=np.array([samples]),
            sequence=float(self.sequence),
            degrees={axis: np.array([float(degree)]) for axis, degree in mesh.axes},
            batch_axes=program.batch_axes,
            replica_axes=program.replica_axes,
        )

    def collectives(self, block: str) -> list[Collective]:
        """Return the activation collectives of one block, in program order."""
        program = self.program()
        scale = self.scale(program)
        (found,) = (p for p in program.programs if p.block == block)
        return [
            Collective(
                phase=phase,
                kind=step.kind.value,
                axes=step.axes,
                size_bytes=float(scale.value(step.size)[0]) * WIDTH,
            )
            for phase in ("forward", "recomputation", "backward")
            for step in getattr(found, phase)
            if isinstance(step, CollectiveInstruction)
        ]

    def synchronised(self, block: str) -> list[SyncGroup]:
        """Return the parameter and gradient traffic of one block."""
        program = self.program()
        (found,) = (p for p in program.programs if p.block == block)
        state = update_kinds(self.optimizer, self.software)
        return list(block_storage(found, self.scale(program), self.software, state).sync)


def counted(collectives: Sequence[Collective], phase: str) -> Counter[tuple[object, ...]]:
    """Return how often each (kind, axes, bytes) occurs in a phase."""
    return Counter((c.kind, c.axes, c.size_bytes) for c in collectives if c.phase == phase)


def moved_bytes(graph: ExecutionGraph, *names: str) -> float:
    """Return the bytes that one rank of the only class sends in the tasks with these names."""
    chosen = np.isin(graph.name_ids, [graph.names.index(name) for name in names])
    return float(graph.link_traffic_bytes[chosen & (graph.kind != TaskKind.COMPUTE)].sum())


def check_plays(job: Job) -> None:
    """Check that folded, whole, merged and reference plays agree, and that memory balances."""
    folded = job.compiled().graph
    traces = {
        "folded": execute(folded),
        "reference": execute_reference(folded),
        "whole": execute(job.compiled(fold=False).graph),
        "merged": execute(job.compiled(detail=False).graph),
    }
    times = [trace.makespan_s for trace in traces.values()]

    assert times == pytest.approx([times[0]] * 4, rel=1e-9)
    peaks = [float(traces[kind].peak_bytes.max()) for kind in ("folded", "reference", "whole")]
    assert peaks == pytest.approx([peaks[0]] * 3, rel=1e-9)
    assert folded.alloc_bytes.sum() == pytest.approx(folded.free_bytes.sum(), rel=1e-9)
