"""Transfers from the last stage of one mesh to the first of the next, and back.

Stages with equal layouts send rank to rank, as pipelines do. Elsewhere the
change of layout is planned: whole values cross once, by messages from ranks that have them, and may
land as parts that the receivers then gather.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost.rates import Rates
from wattree.errors import StrategyError
from wattree.graph import BlockDataflow, Extent, Made
from wattree.lowering.block import ModelProgram
from wattree.lowering.dataflow import entering
from wattree.lowering.layout import Layout
from wattree.lowering.program import CollectiveKind, Scale
from wattree.lowering.reshard import DeviceGrid, LinkTime, TensorPlacement, plan_reshard
from wattree.lowering.reshard.moves import MoveKind
from wattree.lowering.reshard.placement import regions, volumes
from wattree.lowering.reshard.steps import ReshardStep
from wattree.lowering.topology import MeshTopology
from wattree.strategy import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A collective that builds the wanted layout from the received parts.

    Attributes:
        axes: Of the receivers' mesh.
        size_bytes: Of its whole buffer. [B]
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    size_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderMessages:
    """Messages between two stages for one micro-batch.

    Attributes:
        senders, receivers: Places of ranks in their stages, by message; no pair twice.
        size_bytes: Of each message. [B]
        arrivals: Collectives of the receivers, in order.
    """

    senders: Integers
    receivers: Integers
    size_bytes: Floats
    arrivals: tuple[Arrival, ...] = ()

    @property
    def most_bytes(self) -> float:
        """Return the largest total that any rank sends. [B]"""
        return float(_summed(self.senders, self.size_bytes).max(initial=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshBorder:
    """The border between stages of two meshes.

    Attributes:
        forward, backward: Messages of activations and of gradients.
    """

    forward: BorderMessages
    backward: BorderMessages


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSide:
    """A stage at a border.

    Attributes:
        program: Of the model, as its mesh runs it.
        scale: Values of the program's symbols.
        topology: Its mesh on the cluster.
        stage: Its number in the pipeline.
    """

    program: ModelProgram
    scale: Scale
    topology: MeshTopology
    stage: int

    @property
    def grid(self) -> DeviceGrid:
        """Its ranks."""
        mesh = self.topology.mesh
        axes = tuple((a, degree) for a, degree in mesh.axes if a != mesh.stage_axis and degree > 1)
        devices = self.topology.device_of(self.topology.stage_ranks(self.stage))
        return DeviceGrid(mesh=Mesh(axes=axes), devices=tuple(devices.tolist()))

    def layout(self, made: Made, extents: Sequence[Extent]) -> Layout:
        """Return the layout of a boundary tensor on this side; replicas have samples of their own.

        Args:
            extents: Of its dims.
        """
        layout = self.program.layouts[self.program.instances[made.instance]][made.tensor]
        samples = next((at for at, extent in enumerate(extents) if extent.batch), None)
        if samples is None:
            return layout
        return {**layout, **dict.fromkeys(self.program.replica_axes, samples)}

    def shape(self, extents: Sequence[Extent]) -> tuple[int, ...]:
        """Return the whole shape of a tensor of a micro-batch."""
        samples = self.scale.micro_batch * self.scale.degree(self.scale.batch_axes)
        values = (
            extent.value(micro_batch=float(samples[0]), sequence=self.scale.sequence)
            for extent in extents
        )
        return tuple(max(round(value), 1) for value in values)


def mesh_border(
    before: MeshSide, after: MeshSide, chunks: Sequence[Sequence[int]], rates: Rates
) -> MeshBorder:
    """Return the messages between two stages on different meshes.

    Args:
        chunks: Block instances of each stage of the pipeline.

    Raises:
        StrategyError: The layout of a tensor cannot be sent.
    """
    given = entering(before.program, chunks, range(len(chunks)))[after.stage - 1]
    extents = _extents(before.program)
    link = LinkTime(cluster=before.topology.cluster, rates=rates, element_bytes=rates.element_bytes)
    ahead, back = (_Price(gathers_on=side.grid, link=link) for side in (after, before))
    return MeshBorder(
        forward=_together(
            [_crossing(made, extents[made], before, after, ahead) for made in given.forward]
        ),
        backward=_together(
            [_crossing(made, extents[made], after, before, back) for made in given.backward]
        ),
    )


def _extents(program: ModelProgram) -> Mapping[Made, tuple[Extent, ...]]:
    """Return the dims of every tensor that flows between blocks."""
    model, dataflow = program.model, BlockDataflow(program.model)
    return {
        made: tensor.extents
        for instance, sources in zip(model.instances, dataflow.sources, strict=True)
        for tensor, made in zip(model.blocks[instance.block].inputs, sources, strict=True)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """Return the time of a step of a layout change; only messages and gathers are allowed."""

    gathers_on: DeviceGrid
    link: LinkTime

    def __call__(self, step: ReshardStep) -> float:
        if step.kind in {MoveKind.LOCAL, MoveKind.TRANSFER} and not self.link.cluster.is_mixed:
            return self.link(step)
        if step.kind in {MoveKind.LOCAL, MoveKind.TRANSFER}:
            return float(step.sent_elements)
        if step.source != self.gathers_on or self.link.cluster.is_mixed:
            return float("inf")
        return self.link(step)


def _crossing(
    made: Made, extents: Sequence[Extent], source: MeshSide, target: MeshSide, price: _Price
) -> BorderMessages:
    """Return the messages that bring one tensor from one stage to another."""
    shape, width = source.shape(extents), price.link.element_bytes
    start, end = source.grid, target.grid
    have = _placement(source.layout(made, extents), len(shape), start.mesh, made, source)
    want = _placement(target.layout(made, extents), len(shape), end.mesh, made, target)
    if _by_place(have, start.mesh) == _by_place(want, end.mesh):
        ranks = np.arange(start.mesh.ranks)
        sizes = np.asarray(volumes(regions(start.mesh, have, shape)) * width, dtype=np.float64)
        return BorderMessages(senders=ranks, receivers=ranks, size_bytes=sizes)
    found = BorderMessages(senders=_NONE, receivers=_NONE, size_bytes=np.zeros(0))
    arrivals = []
    for step in plan_reshard(shape, (start, have), (end, want), price):
        if step.kind is MoveKind.TRANSFER:
            found = _messages(step, width, price.link)
        elif step.kind is not MoveKind.LOCAL:
            whole = step.wanted if step.kind is MoveKind.ALL_GATHER else step.held
            arrivals.append(
                Arrival(
                    kind=CollectiveKind(step.kind.value),
                    axes=step.axes,
                    size_bytes=float(volumes(whole).max()) * width,
                )
            )
    return BorderMessages(
        senders=found.senders,
        receivers=found.receivers,
        size_bytes=found.size_bytes,
        arrivals=tuple(arrivals),
    )


_NONE = np.zeros(0, dtype=np.int64)


def _messages(step: ReshardStep, width: float, link: LinkTime) -> BorderMessages:
    senders, receivers, parts = step.sent(link.distance)
    return BorderMessages(
        senders=_places(senders, step.source.devices),
        receivers=_places(receivers, step.target.devices),
        size_bytes=np.asarray(volumes(parts) * width, dtype=np.float64),
    )


def _places(devices: Integers, of_ranks: Sequence[int]) -> Integers:
    """Return the position of each device among a stage's ranks."""
    own = np.array(of_ranks)
    order = np.argsort(own)
    return np.asarray(order[np.searchsorted(own, devices, sorter=order)])


def _placement(
    layout: Layout, dims: int, mesh: Mesh, made: Made, side: MeshSide
) -> TensorPlacement:
    """Return a layout as a placement: of several axes that split a dim, the mesh's order holds."""
    here = {axis: at for axis, at in layout.items() if mesh.degree(axis) > 1}
    if any(at < 0 for at in here.values()):
        maker = side.program.model.instances[made.instance].path
        raise StrategyError(
            {
                "strategy.meshes": f"{maker} has '{made.tensor}' whole on one rank of "
                f"{', '.join(axis for axis, at in here.items() if at < 0)}, which a stage cannot "
                "hand over to another mesh; split it, or end the mesh elsewhere"
            }
        )
    return TensorPlacement(
        shards=tuple(
            tuple(axis for axis, _ in mesh.axes if here.get(axis) == dim) for dim in range(dims)
        )
    )


def _by_place(placement: TensorPlacement, mesh: Mesh) -> object:
    """Return a placement with its axes replaced by their positions."""
    number = {axis: place for place, (axis, _) in enumerate(mesh.axes)}
    shards = tuple(tuple(number[axis] for axis in axes) for axes in placement.shards)
    return tuple(degree for _, degree in mesh.axes), shards


def _together(parts: Sequence[BorderMessages]) -> BorderMessages:
    """Return the transfers of several tensors merged: one message per pair of ranks."""
    if not parts:
        return BorderMessages(senders=_NONE, receivers=_NONE, size_bytes=np.zeros(0))
    pairs = np.concatenate([np.stack([p.senders, p.receivers], axis=1) for p in parts])
    sizes = np.concatenate([part.size_bytes for part in parts])
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    return BorderMessages(
        senders=distinct[:, 0],
        receivers=distinct[:, 1],
        size_bytes=_summed(number.ravel(), sizes, len(distinct)),
        arrivals=tuple(arrival for part in parts for arrival in part.arrivals),
    )


def _summed(places: Integers, values: Floats, count: int = 0) -> Floats:
    """Return the sums of values by place."""
    return np.asarray(np.bincount(places, weights=values, minlength=count), dtype=np.float64)
