"""A whole strategy: mesh, schedule and tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from wattree.errors import StrategyError
from wattree.strategy.colocation import Colocation
from wattree.strategy.expert_load import ExpertLoad
from wattree.strategy.mesh import Mesh
from wattree.strategy.schedules import (
    PLACEMENTS,
    ChunkPlacement,
    Order,
    Shortened,
    shortened,
    stage_orders,
)
from wattree.strategy.schedules.orders import check_orders, pipeline_schedule, schedule_misfits
from wattree.strategy.traffic import Traffic
from wattree.strategy.tree import OWNER, StrategyTree

#: Dims of positions inside a sample: of tokens, and of the outermost dim of images and volumes.
POSITIONS = frozenset({"seq", "depth", "height", "width", "length"})


class AxisRole(StrEnum):
    """What differs between the ranks along an axis, named as the presets name the axis."""

    PIPELINE = "pp"  # layers: they are stages
    DATA = "dp"  # samples: they are replicas, or do the same where nothing is split
    EXPERT = "ep"  # experts; samples elsewhere
    CONTEXT = "cp"  # positions of the same samples
    TENSOR = "tp"  # parts of the same operators


def tensor_degrees(tree: StrategyTree, degrees: Mapping[str, int]) -> dict[str, int]:
    """Return tensor-parallel axis → degree."""
    roles = axis_roles(tree).items()
    return {axis: degrees.get(axis, 1) for axis, role in roles if role is AxisRole.TENSOR}


@lru_cache(maxsize=256)  # strategies of a search share their trees
def axis_roles(tree: StrategyTree) -> Mapping[str, AxisRole]:
    """Return axis → role of every axis over which the tree splits computation.

    An axis that splits samples is `DATA`, or `EXPERT` if it splits experts too; one that splits
    features is `TENSOR`, however it splits positions besides (sequence parallelism); one that
    splits positions, and perhaps heads for them (Ulysses), is `CONTEXT`. Of an axis that splits
    samples in some places and features in others, the root tells.
    """
    root = tree.nodes.get("")
    samples = () if root is None else root.compute.get("batch", ())
    dims: dict[str, set[str]] = {}
    for node in tree.nodes.values():
        for dim, axes in node.compute.items():
            for axis in axes:
                dims.setdefault(axis, set()).add(dim)
        if node.phantom is not None:
            dims.setdefault(node.phantom.axis, set()).add("phantom")
    return {axis: _role(used, is_root=axis in samples) for axis, used in dims.items()}


@lru_cache(maxsize=256)
def replica_axes(tree: StrategyTree) -> frozenset[str]:
    """Return the axes that split samples everywhere and nothing else.

    Ranks along them run the same program on samples of their own, as under data parallelism: they
    exchange gradients, sharded parameters and the statistics of synchronized norms, nothing else.
    """
    nodes = tree.nodes.values()
    root = tree.nodes.get("")
    elsewhere = {n.phantom.axis for n in nodes if n.phantom is not None}
    for node in nodes:
        for dim, axes in node.compute.items():
            elsewhere.update(axes if dim != "batch" else ())
    found = set(() if root is None else root.compute.get("batch", ()))
    for node in nodes:
        found.intersection_update(node.compute.get("batch", found))
    return frozenset(found - elsewhere)


def _role(dims: set[str], *, is_root: bool) -> AxisRole:
    features = dims - POSITIONS - {"batch", OWNER, "expert", "heads"}
    if is_root or (dims & {"batch", OWNER} and not features):
        return AxisRole.EXPERT if "expert" in dims else AxisRole.DATA
    if features:
        return AxisRole.TENSOR
    if dims & POSITIONS:
        return AxisRole.CONTEXT
    return AxisRole.EXPERT if "expert" in dims else AxisRole.TENSOR


#: Name of a schedule whose order the user brings.
CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How micro-batches flow through the pipeline stages.

    Attributes:
        name: One of `SCHEDULES`.
        micro_batches: Micro-batches per step and replica.
        virtual_stages: Chunks of layers that each pipeline rank holds, where the schedule leaves
            that open.
        stage_layers: Layers of each chunk in model order; None for the most even split.
        order: What each stage does, for the schedule `custom`.
        placement: How chunks lie on stages, for the schedule `custom`: one of `PLACEMENTS`.
    """

    name: str = "1f1b"
    micro_batches: int = 1
    virtual_stages: int = 1
    stage_layers: tuple[int, ...] | None = None
    order: tuple[Order, ...] | None = None
    placement: str = "looped"

    def placed(self, stages: int) -> ChunkPlacement:
        """Return the placement of chunks on `stages`."""
        if self.name == CUSTOM:
            return PLACEMENTS[self.placement](stages, self.virtual_stages)
        schedule = pipeline_schedule(self.name_on(stages))
        return schedule.placement(stages, schedule.chunks or self.virtual_stages)

    def orders(self, stages: int) -> tuple[Order, ...]:
        """Return the checked orders of `stages`.

        Raises:
            StrategyError: The orders break a dependency, deadlock, or keep more than promised.
        """
        if self.name != CUSTOM:
            return stage_orders(
                self.name_on(stages),
                stages=stages,
                chunks=self.placed(stages).chunks,
                micro_batches=self.micro_batches,
            )
        assert self.order is not None
        check_orders(
            self.order,
            self.placed(stages),
            self.micro_batches,
            path="strategy.schedule.order",
        )
        return self.order

    def shorter(self, stages: int, *, after: int) -> Shortened | None:
        """Return shorter orders, as `shortened` does; None for orders that the user brings."""
        if self.name == CUSTOM:
            return None
        return shortened(
            self.name_on(stages),
            stages=stages,
            chunks=self.placed(stages).chunks,
            micro_batches=self.micro_batches,
            after=after,
        )

    def name_on(self, stages: int) -> str:
        """Return the effective schedule: without a pipeline, chunks are merged."""
        several = (pipeline_schedule(self.name).chunks or 1) > 1
        return "1f1b" if stages == 1 and several else self.name

    def misfits(self, stages: int) -> dict[str, str]:
        """Return path → why it cannot run on `stages`, for any model."""
        if self.name != CUSTOM:
            found = schedule_misfits(self.name, stages=stages, chunks=self.virtual_stages)
            return {f"strategy.schedule.{key}": why for key, why in found.items()}
        if self.order is None:
            return {"strategy.schedule.order": "is missing; give the order of each stage"}
        if len(self.order) != stages:
            return {
                "strategy.schedule.order": f"found {len(self.order)} stages, expected {stages}, "
                "the degree of pp"
            }
        try:
            self.orders(stages)
        except StrategyError as error:
            return error.misfits
        return {}


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Strategy:
    """A complete answer to "who computes and stores what, and when".

    Attributes:
        meshes: Ranks as grids, in the order of the pipeline; most strategies have one. Ranks of a
            mesh follow those of the meshes before it.
        preset: Names of the presets it was composed from, for people.
        traffic: How data moves while ranks compute.
        expert_load: How many tokens the experts of each rank get; None: all the same.
        single_process: One process drives all devices (`nn.DataParallel`): parameters are sent from
            the first device before each forward, gradients summed and used there alone.
        colocation: Processes on each device; the mesh counts devices, and micro-batches are those
            of one process.
    """

    meshes: tuple[Mesh, ...]
    schedule: Schedule
    tree: StrategyTree
    preset: tuple[str, ...] = field(default=())
    traffic: Traffic = field(default_factory=Traffic)
    expert_load: ExpertLoad | None = None
    single_process: bool = False
    colocation: Colocation = field(default_factory=Colocation)

    def __init__(
        self,
        *,
        schedule: Schedule,
        tree: StrategyTree,
        mesh: Mesh | None = None,
        meshes: Sequence[Mesh] = (),
        preset: tuple[str, ...] = (),
        traffic: Traffic | None = None,
        expert_load: ExpertLoad | None = None,
        single_process: bool = False,
        colocation: Colocation | None = None,
    ) -> None:
        """Make a strategy of one `mesh`, or of several.

        `mesh` replaces `meshes` if both are given, so that `dataclasses.replace` accepts it.
        """
        given = {
            "meshes": tuple(meshes) if mesh is None else (mesh,),
            "schedule": schedule,
            "tree": tree,
            "preset": preset,
            "traffic": Traffic() if traffic is None else traffic,
            "expert_load": expert_load,
            "single_process": single_process,
            "colocation": Colocation() if colocation is None else colocation,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def mesh(self) -> Mesh:
        """The only mesh.

        Raises:
            StrategyError: There are several, and who asks knows of one.
        """
        if len(self.meshes) > 1:
            names = ", ".join(mesh.name for mesh in self.meshes)
            raise StrategyError(
                {
                    "strategy.meshes": f"found {len(self.meshes)} meshes ({names}), expected one "
                    "here; simulate takes several, the closed form, searches and runs do not"
                }
            )
        return self.meshes[0]

    @property
    def parts(self) -> tuple[Strategy, ...]:
        """One strategy for the ranks of each mesh."""
        if len(self.meshes) == 1:
            return (self,)
        return tuple(replace(self, meshes=(mesh,)) for mesh in self.meshes)

    @property
    def ranks(self) -> int:
        """Number of ranks of all meshes."""
        return sum(mesh.ranks for mesh in self.meshes)

    @property
    def stages(self) -> int:
        """Number of pipeline stages, of all meshes."""
        return self.meshes[0].pipeline

    def micro_batch(self, samples: int) -> float:
        """Return the samples of one forward pass of a replica.

        Args:
            samples: Of a step of one process on each device.
        """
        own = self.parts[-1]  # of several meshes, that of the loss
        replicas = own.mesh.size(own.tree.choices("").compute.get("batch", ()))
        return samples / (replicas * own.schedule.micro_batches)

    @property
    def roles(self) -> dict[str, AxisRole]:
        """What every axis of the mesh is; one that the tree does not use is what it is called."""
        named = {role.value: role for role in AxisRole}
        used = {**named, **axis_roles(self.tree), self.mesh.stage_axis: AxisRole.PIPELINE}
        return {axis: used.get(axis, AxisRole.DATA) for axis, _ in self.mesh.axes}

    @property
    def degrees(self) -> dict[str, int]:
        """Role → product of the degrees of its axes, for every role."""
        roles = self.roles
        return {
            role.value: self.mesh.size(axis for axis, own in roles.items() if own is role)
            for role in AxisRole
        }
