"""Stages on meshes of their own: other degrees, other numbers of ranks, other devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.jobs import check_plays, small_cluster
from tests.compiler.meshes import Axes, apart, drawn, figures, together
from tests.compiler.reshard_reference import Region, part
from wattree.compiler import compile_job
from wattree.graph import Extent, Made, TaskKind
from wattree.lowering.mesh_borders import BorderMessages, MeshSide, mesh_border
from wattree.lowering.mesh_parts import mesh_spans, stage_chunks
from wattree.lowering.placed import checked_parts
from wattree.lowering.reshard import TensorPlacement
from wattree.lowering.started import started
from wattree.sim import execute
from wattree.strategy import Schedule


@pytest.mark.parametrize("seed", range(16))
def test_folded_ranks_come_to_what_all_ranks_do(seed: int) -> None:
    """A class may send to several and be sent to by several; links may be shared or slow."""
    job = drawn(seed)

    assert figures(job) == pytest.approx(figures(job, fold=False), rel=1e-9)


@pytest.mark.parametrize("seed", range(100, 104))
def test_the_plain_executor_agrees_and_memory_balances(seed: int) -> None:
    """What is taken is given back, and merged tasks take the same time."""
    job = drawn(seed)
    even = replace(job.cluster, slowdown={})  # so that no class shares a task with another

    strategy = replace(job.strategy, schedule=Schedule(micro_batches=2))
    check_plays(replace(job, strategy=strategy, cluster=even))


@pytest.mark.parametrize("kind", ["", "sequence"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("axes", [(("dp", 2), ("tp", 4)), (("tp", 2), ("dp", 2)), (("dp", 4),)])
def test_equal_meshes_are_the_stages_of_one(axes: Axes, name: str, kind: str) -> None:
    """Written apart or as an axis of stages: the same pipeline."""
    ranks = 2 * int(np.prod([degree for _, degree in axes]))
    cluster, schedule = small_cluster(ranks, per_node=4), Schedule(name=name, micro_batches=4)

    one = figures(together(axes, cluster, schedule=schedule, sequence=bool(kind)))
    two = figures(apart(axes, axes, cluster, schedule=schedule, sequence=bool(kind)))

    assert two == pytest.approx(one, rel=1e-12)


def test_names_of_axes_make_no_difference() -> None:
    """What an axis is, the tree says."""
    cluster = small_cluster(16, per_node=8)
    plain = apart((("dp", 2), ("tp", 4)), (("dp", 4), ("tp", 2)), cluster)
    renamed = apart((("dp", 2), ("tp", 4)), (("d2", 4), ("t2", 2)), cluster)

    assert figures(renamed) == pytest.approx(figures(plain), rel=1e-12)


def test_stages_of_other_degrees_and_sizes_do_the_same_work() -> None:
    """Half of the layers on fewer ranks, or with fewer replicas: the model is the same."""
    schedule = Schedule(micro_batches=4)
    even = figures(
        together((("dp", 2), ("tp", 4)), small_cluster(16), schedule=schedule, sequence=True)
    )
    halved = apart((("dp", 4), ("tp", 2)), (("dp", 2), ("tp", 4)), small_cluster(16), sequence=True)
    smaller = apart((("dp", 4),), (("dp", 2), ("tp", 2)), small_cluster(8), sequence=True)

    assert figures(halved)["flop"] == pytest.approx(even["flop"])
    assert figures(smaller)["flop"] == pytest.approx(even["flop"])
    assert figures(halved)["ranks"] == 16
    assert figures(smaller)["ranks"] == 8


def borders(seed: int) -> list[tuple[BorderMessages, MeshSide, MeshSide]]:
    """Return what crosses the border of a drawn job, forward and back, with its two ends."""
    job = drawn(seed)
    spans = mesh_spans(job.model, job.strategy)
    left, right = (
        started(part, job.cluster, (), None, span)
        for part, span in zip(checked_parts(job.placed, job.cluster), spans, strict=True)
    )
    found = mesh_border(
        left.last, right.first, stage_chunks(job.model, job.strategy), left.rates[0]
    )
    return [(found.forward, left.last, right.first), (found.backward, right.first, left.last)]


def whole_shape(side: MeshSide) -> tuple[int, int, int]:
    """Return samples, positions and features of a micro-batch."""
    replicas = side.scale.degree(side.scale.batch_axes)
    return round(float(side.scale.micro_batch[0] * replicas[0])), 512, 512


def has_of(side: MeshSide, rank: int) -> Region:
    """Return the part of what crosses that a rank has, enumerated from its place on the mesh."""
    mesh = side.grid.mesh
    model = side.program.model
    before = model.blocks["layer"].outputs[0]
    # Of samples, positions and features.
    layout = side.layout(Made(2, before), [Extent(batch=1), Extent(seq=1), Extent(coefficient=512)])
    at = TensorPlacement(
        shards=tuple(tuple(a for a, _ in mesh.axes if layout.get(a) == dim) for dim in range(3))
    )
    return part(mesh, at, whole_shape(side), rank)


@pytest.mark.parametrize("seed", range(16))
def test_every_rank_gets_its_part_once(seed: int) -> None:
    """Bytes are those of parts that are enumerated afresh; of what it gathers, its share."""
    for crossing, _, target in borders(seed):
        mesh = target.grid.mesh
        came = np.bincount(crossing.receivers, weights=crossing.size_bytes, minlength=mesh.ranks)
        shares = np.prod([mesh.size(arrival.axes) for arrival in crossing.arrivals])
        needed = [
            2.0 * np.prod([dim.stop - dim.start for dim in has_of(target, rank)])
            for rank in range(mesh.ranks)
        ]

        assert came == pytest.approx(np.array(needed) / shares)


@pytest.mark.parametrize("seed", range(16))
def test_ranks_send_what_they_have(seed: int) -> None:
    """A message is as large as what both ends have in common, or a share of it to be gathered."""
    for crossing, source, target in borders(seed):
        messages = zip(
            crossing.senders.tolist(),
            crossing.receivers.tolist(),
            crossing.size_bytes.tolist(),
            strict=True,
        )
        for sender, receiver, size in messages:
            both = zip(has_of(source, sender), has_of(target, receiver), strict=True)
            common = [min(a.stop, b.stop) - max(a.start, b.start) for a, b in both]

            assert min(common) > 0
            assert size <= 2.0 * np.prod(common)


def test_a_wide_mesh_gathers_what_is_sent_once() -> None:
    """Between nodes, each of eight ranks gets an eighth, and they exchange the rest inside."""
    cluster = small_cluster(16, per_node=8)
    job = apart((("dp", 8),), (("tp", 8),), cluster)
    compiled = job.compiled()
    graph = compiled.graph
    name = np.array(graph.names)[graph.name_ids] == "stage boundary"
    gathers = graph.kind[name] == TaskKind.COLLECTIVE

    assert gathers.sum() == job.strategy.schedule.micro_batches
    whole = 32 / 4 * 512 * 512 * 2.0
    sent = figures(job)["sent"] / job.strategy.schedule.micro_batches
    assert sent == pytest.approx(2 * whole)  # once ahead, once back


def test_a_mesh_may_lie_on_any_devices() -> None:
    """Inside of nodes devices are alike; across them the border costs more."""
    job = apart((("dp", 2), ("tp", 4)), (("dp", 4), ("tp", 2)), small_cluster(16, per_node=8))
    swapped = [1, 0, 3, 2, *range(4, 16)]
    mixed = [*range(0, 16, 2), *range(1, 16, 2)]

    def step_s(devices: list[int]) -> float:
        placed = replace(job.placed, devices=np.array(devices))
        return execute(compile_job(placed, job.cluster).graph).makespan_s

    assert step_s(swapped) == pytest.approx(figures(job)["step"], rel=1e-12)
    assert step_s(mixed) > figures(job)["step"] * (1 + 1e-4)
