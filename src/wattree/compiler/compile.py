"""Model, strategy, cluster → execution graph: the passes in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.arrays import (
    PortRates,
    StageClasses,
    TransferCosts,
    execution_graph,
)
from wattree.compiler.block import ModelProgram, compile_model
from wattree.compiler.block_tasks import BlockTasks, Pipelining, block_tasks
from wattree.compiler.chunk import BlockParts, ChunkContext
from wattree.compiler.evaluate import BlockCosts, Placement, block_costs
from wattree.compiler.fits import check_fits
from wattree.compiler.fold import folded_classes
from wattree.compiler.merge import merged
from wattree.compiler.program import Scale
from wattree.compiler.stage import StageProgram, Update, chunk_tables, stage_program
from wattree.compiler.stages import cut_chunks
from wattree.compiler.storage import (
    Storage,
    SyncGroup,
    block_storage,
    optimizer_state_bytes,
)
from wattree.compiler.tasks import CATEGORIES, TASK, Names
from wattree.compiler.topology import MeshTopology
from wattree.cost import Software
from wattree.cost.rates import Rates
from wattree.graph import ExecutionGraph, ModelGraph, StageLabel, TaskKind
from wattree.hardware import Cluster
from wattree.strategy import Strategy
from wattree.strategy.schedules import stage_order

__all__ = ["DEFAULT_BUCKET_BYTES", "Compilation", "compile_job", "update_traffic_bytes"]

#: PyTorch DDP's default bucket (torch.nn.parallel.DistributedDataParallel, bucket_cap_mb).
DEFAULT_BUCKET_BYTES = 25.0 * 2**20
#: Bytes the optimiser moves per updated parameter besides reading and writing its state: fp32
#: gradient read and cleared, 16-bit parameter written.
_UPDATE_BYTES = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What compiling a job yields.

    Attributes:
        graph: To play.
        program: Block programs.
        costs: Costs of each program, one strategy wide.
        topology: The mesh on the cluster.
        class_of: Class of every rank, numbered over all stages.
    """

    graph: ExecutionGraph
    program: ModelProgram
    costs: tuple[BlockCosts, ...]
    topology: MeshTopology


def compile_job(
    model: ModelGraph,
    strategy: Strategy,
    cluster: Cluster,
    *,
    rates: Rates,
    software: Software,
    optimizer: str,
    sequence: int,
    global_batch: int,
    fold: bool = True,
    detail: bool = True,
) -> Compilation:
    """Return the execution graph of one training step.

    Args:
        model: What to train.
        strategy: How.
        cluster: On what; its devices beyond the mesh stay idle.
        rates: What its devices reach.
        software: Habits of the software.
        optimizer: Name of the optimiser.
        sequence: Tokens per sample.
        global_batch: Samples per step.
        fold: One class for ranks that do the same; otherwise every rank is played.
        detail: A task per operator; otherwise runs of undisturbed compute are merged, which
            changes no time.

    Raises:
        StrategyError: The strategy fits neither the model nor the cluster; every misfit listed.
    """
    active = frozenset(axis for axis, degree in strategy.mesh.axes if degree > 1)
    check_fits(model, strategy, cluster, global_batch=global_batch, sequence=sequence)
    program = compile_model(model, strategy.tree, active)
    topology = MeshTopology(mesh=strategy.mesh, cluster=cluster)
    scale = _scale(strategy, program, sequence, global_batch)
    placement = Placement(
        inside={axis: topology.group((axis,)).inside for axis in active}
    )
    costs = tuple(block_costs(p, scale, placement, rates, software) for p in program.programs)
    state = optimizer_state_bytes(optimizer)
    storages = tuple(block_storage(p, scale, software, state) for p in program.programs)
    graph = _graph(
        program,
        strategy,
        topology,
        costs,
        storages,
        rates,
        software,
        state,
        fold,
        detail,
        global_batch,
    )
    return Compilation(graph=graph, program=program, costs=costs, topology=topology)


def update_traffic_bytes(
    elements: NDArray[np.float64], state_bytes: float, software: Software
) -> NDArray[np.float64]:
    """Return the memory traffic of updating `elements` parameters. [B]"""
    return elements * (2 * (state_bytes + software.master_bytes) + _UPDATE_BYTES)


def _scale(
    strategy: Strategy, program: ModelProgram, sequence: int, global_batch: int
) -> Scale:
    replicas = strategy.mesh.size(program.batch_axes)
    micro_batch = global_batch / (strategy.schedule.micro_batches * replicas)
    return Scale(
        micro_batch=np.array([micro_batch]),
        sequence=float(sequence),
        degrees={axis: np.array([float(degree)]) for axis, degree in strategy.mesh.axes},
        batch_axes=program.batch_axes,
    )


def _habit(choice: bool | None, software: bool) -> bool:
    return software if choice is None else choice


def _graph(
    program: ModelProgram,
    strategy: Strategy,
    topology: MeshTopology,
    costs: Sequence[BlockCosts],
    storages: Sequence[Storage],
    rates: Rates,
    software: Software,
    state_bytes: float,
    fold: bool,
    detail: bool,
    global_batch: int,
) -> ExecutionGraph:
    names = Names()
    axes_index: dict[tuple[str, ...], int] = {}
    overlap_tensor = _habit(strategy.overlap_tensor, software.overlap_tensor)
    pipelining = Pipelining(
        tensor_exposed_share=rates.tensor_exposed_share if overlap_tensor else 1.0,
        context_exposed_share=0.0,
    )
    parts = tuple(
        BlockParts(tasks=_tasks(c, pipelining, names, axes_index, detail), storage=s)
        for c, s in zip(costs, storages, strict=True)
    )
    context = ChunkContext(
        rates=rates,
        group=topology.group,
        name=names,
        axes=lambda axes: axes_index.setdefault(axes, len(axes_index)),
        bucket_bytes=strategy.bucket_bytes or DEFAULT_BUCKET_BYTES,
        overlap_gradients=_habit(strategy.overlap_gradients, software.overlap_gradients),
        overlap_parameters=_habit(strategy.overlap_parameters, software.overlap_parameters),
    )
    stages = strategy.mesh.degree("pp")
    schedule = strategy.schedule
    chunks = cut_chunks(program, stages, schedule)
    tables: dict[tuple[int, ...], object] = {}
    programs: list[StageProgram] = []
    residents: list[np.ndarray] = []
    transfer = _transfer(costs, names)
    for stage in range(stages):
        own = [chunks[v * stages + stage] for v in range(schedule.virtual_stages)]
        chunk_parts = []
        for instances in own:
            key = tuple(program.instances[i] for i in instances)
            if key not in tables:
                tables[key] = chunk_tables([parts[i] for i in key], context)
            chunk_parts.append(tables[key])
        blocks = [parts[program.instances[i]] for instances in own for i in instances]
        updated = float(sum(block.storage.updated_elements[0] for block in blocks))
        traffic = float(update_traffic_bytes(np.array(updated), state_bytes, software))
        programs.append(
            stage_program(
                stage_order(
                    schedule.name,
                    stage=stage,
                    stages=stages,
                    chunks=schedule.virtual_stages,
                    micro_batches=schedule.micro_batches,
                ),
                chunk_parts,  # type: ignore[arg-type]
                blocks,
                context,
                Update(
                    time_s=traffic / rates.memory_bytes_per_s,
                    traffic_bytes=traffic,
                    overhead_s=rates.step_overhead_s,
                    input_s=_input_time_s(topology.cluster, costs, global_batch, strategy),
                ),
                is_first=stage == 0,
                is_last=stage == stages - 1,
                micro_batches=schedule.micro_batches,
                transfer=transfer,
                blocking_transfers=stages > 1 and not software.overlap_pipeline,
            )
        )
        residents.append(_resident(blocks, software, stages))
    classes = _classes(strategy, topology, axes_index, residents, transfer, rates, fold)
    return execution_graph(
        programs,
        classes,
        [],
        ports=PortRates(
            scale_up_bytes_per_s=rates.links.scale_up_bytes_per_s,
            adapter_bytes_per_s=rates.links.adapter_bytes_per_s,
        ),
        names=tuple(names.index),
        compute_rate_while_communicating=rates.overlap_compute_rate,
        communication_rate_while_computing=1.0,
    )


def _tasks(
    costs: BlockCosts,
    pipelining: Pipelining,
    names: Names,
    axes_index: dict[tuple[str, ...], int],
    detail: bool,
) -> BlockTasks:
    tasks = block_tasks(costs, pipelining, names, axes_index)
    if detail:
        return tasks
    return BlockTasks(forward=merged(tasks.forward), backward=merged(tasks.backward))


#: Bytes of one token id as loaders hand it to the device (int64).
_TOKEN_BYTES = 8.0


def _input_time_s(
    cluster: Cluster, costs: Sequence[BlockCosts], global_batch: int, strategy: Strategy
) -> float:
    """Time until the first micro-batch is on the device: read from storage, copied over. [s]"""
    replicas = max(strategy.mesh.ranks // strategy.mesh.degree("pp"), 1)
    del costs
    samples = global_batch / strategy.schedule.micro_batches / replicas
    host = cluster.node.host
    size = samples * _TOKEN_BYTES
    return size * cluster.node.devices / host.storage_read_bytes_per_s + size / (
        cluster.node.device.host_link_bytes_per_s
    )


def _transfer(costs: Sequence[BlockCosts], names: Names) -> np.void:
    """Return the record of a transfer between stages; its costs depend on the class."""
    task = np.zeros(1, TASK)
    task["kind"], task["axes"] = TaskKind.TRANSFER, -1
    task["stage"] = StageLabel.COMMUNICATING
    task["name"] = names("stage boundary")
    task["wire_bytes"] = max(float(c.boundary_bytes[0]) for c in costs)
    return task[0]


def buffer_bytes(sync: Sequence[SyncGroup], software: Software, stages: int) -> float:
    """Return the communication buffers of a sharded optimiser. [B]"""
    sharded = any(group.update_axes for group in sync)
    return software.zero_buffer_bytes if sharded and stages == 1 else 0.0


def _resident(blocks: Sequence[BlockParts], software: Software, stages: int) -> np.ndarray:
    row = np.zeros(len(CATEGORIES))
    sync = [group for block in blocks for group in block.storage.sync]
    row[CATEGORIES.index("overhead")] = buffer_bytes(sync, software, stages)
    for block in blocks:
        row[CATEGORIES.index("parameters")] += block.storage.parameters[0]
        row[CATEGORIES.index("gradients")] += block.storage.gradients[0]
        row[CATEGORIES.index("optimizer")] += block.storage.optimizer[0]
    return row


def _classes(
    strategy: Strategy,
    topology: MeshTopology,
    axes_index: dict[tuple[str, ...], int],
    residents: Sequence[np.ndarray],
    transfer: np.void,
    rates: Rates,
    fold: bool,
) -> list[StageClasses]:
    mesh = strategy.mesh
    stages = mesh.degree("pp")
    by_stage = np.stack([topology.stage_ranks(stage) for stage in range(stages)])
    ahead = np.arange(mesh.ranks)
    behind = np.arange(mesh.ranks)
    if stages > 1:
        for stage in range(stages):
            ahead[by_stage[stage]] = by_stage[(stage + 1) % stages]
            behind[by_stage[stage]] = by_stage[(stage - 1) % stages]
    nodes = max(mesh.ranks / topology.cluster.node.devices, 1.0)
    slowdown = np.full(mesh.ranks, 1.0 + rates.straggling * np.log2(nodes))
    for device, factor in topology.cluster.slowdown.items():
        if device < mesh.ranks:
            slowdown[device] *= factor
    groups = {number: mesh.groups(axes) for axes, number in axes_index.items()}
    crosses_next = topology.crosses(np.arange(mesh.ranks), ahead)
    crosses_previous = topology.crosses(np.arange(mesh.ranks), behind)
    if fold:
        start = np.zeros(mesh.ranks, dtype=np.int64)
        for stage in range(stages):
            start[by_stage[stage]] = stage
        speeds = np.unique(slowdown, return_inverse=True)[1]
        start = ((start * (speeds.max() + 1) + speeds) * 2 + crosses_next) * 2 + crosses_previous
        colours = folded_classes(start, list(groups.values()), [ahead, behind])
    else:
        colours = np.arange(mesh.ranks)
    local = [np.unique(colours[ranks], return_index=True, return_inverse=True) for ranks in by_stage]
    result = []
    for stage in range(stages):
        _, first, inverse = local[stage]
        ranks = by_stage[stage]
        chosen = ranks[first]  # one rank stands for each class
        place = np.full(mesh.ranks, -1)
        place[ranks] = inverse
        result.append(
            StageClasses(
                ranks=np.bincount(inverse),
                slowdown=slowdown[chosen],
                orbits={n: _orbits(members, place, len(chosen)) for n, members in groups.items()},
                next_class=local[(stage + 1) % stages][2][first],
                previous_class=local[(stage - 1) % stages][2][first],
                to_next=_transfer_costs(transfer, crosses_next[chosen], rates),
                to_previous=_transfer_costs(transfer, crosses_previous[chosen], rates),
                resident=np.tile(residents[stage], (len(chosen), 1)),
                name=f"stage {stage}" if stages > 1 else "ranks",
            )
        )
    return result


def _orbits(members: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    """Return for each class the number of the group kind it takes part in."""
    groups = np.sort(place[members[place[members[:, 0]] >= 0]], axis=1)
    _, kinds = np.unique(groups, axis=0, return_inverse=True)
    orbit = np.zeros(count, dtype=np.int64)
    orbit[groups.ravel()] = np.repeat(kinds.ravel(), groups.shape[1])
    return orbit


def _transfer_costs(transfer: np.void, crosses: np.ndarray, rates: Rates) -> TransferCosts:
    links = rates.links
    size = np.full(len(crosses), float(transfer["wire_bytes"]))
    inside, outside = size / links.scale_up_bytes_per_s, size / links.adapter_bytes_per_s
    alpha = links.alpha_s / 2  # a message, not a collective of several steps
    return TransferCosts(
        latency_s=np.where(crosses, alpha + links.alpha_network_s, alpha),
        work_s=np.where(crosses, outside, inside),
        scale_up_bytes=np.where(crosses, 0.0, size),
        adapter_bytes=np.where(crosses, size, 0.0),
        wire_bytes=size,
    )
