"""Presets by name, and their combination into one tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.errors import StrategyError, UnknownNameError
from wattree.graph import ModelGraph
from wattree.strategy.mesh import Mesh
from wattree.strategy.options import StrategyOptions
from wattree.strategy.phantom import ACTIVATIONS
from wattree.strategy.presets.context import context_parallel
from wattree.strategy.presets.data import data_parallel
from wattree.strategy.presets.expert import expert_parallel
from wattree.strategy.presets.op_shard import split_matmuls
from wattree.strategy.presets.phantom import (
    check_phantom,
    others_stay_whole,
    phantom_parallel,
)
from wattree.strategy.presets.recompute import recomputation
from wattree.strategy.presets.single_process import (
    check_single_process,
    samples_of_a_device,
    single_process,
)
from wattree.strategy.presets.spatial import spatial_dim
from wattree.strategy.presets.tables import sharded_tables
from wattree.strategy.presets.tensor import sequence_parallel, tensor_parallel
from wattree.strategy.specs import SPATIAL
from wattree.strategy.strategy import Schedule, Strategy
from wattree.strategy.tree import StrategyTree
from wattree.units import counted

#: Preset → the options it sets; degrees come from the user (or, for `dp`, from what is left).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "ddp": {"sharding": "none"},
    "zero1": {"sharding": "zero1"},
    "zero2": {"sharding": "zero2"},
    "zero3": {"sharding": "zero3"},
    "fsdp": {"sharding": "zero3"},
    "hsdp": {"sharding": "hybrid"},
    "tensor": {"sharding": "none", "sequence_parallel": False},
    "megatron": {"sharding": "zero1", "sequence_parallel": True, "tensor_pairs": True},
    "phantom": {"sharding": "none", "phantom": True},
    "low_rank": {"sharding": "none", "phantom": True, "exchange": ACTIVATIONS},
    "spatial": {"sharding": "none", "context": "spatial"},
    "data_parallel": {"sharding": "none", "single_process": True},
    "op_shard": {"sharding": "none", "op_shard": True},
    "dlrm": {"sharding": "none", "tables": "auto"},
}

#: Schedules that stand for the interleaved one where there are several chunks.
_ONE_CHUNK = ("1f1b",)


def unknown_preset(name: str, *others: str) -> UnknownNameError:
    """Return the error of a name that no preset has, with the one of that sharding if it is one's.

    Args:
        name: As the user wrote it.
        others: Names that are taken besides presets'.
    """
    same = [preset for preset, sets in PRESETS.items() if sets == {"sharding": name}]
    hint = f"; did you mean '{same[0]}', whose sharding is '{name}'?" if same else ""
    return UnknownNameError(kind="strategy preset", name=name, known=[*others, *PRESETS], hint=hint)


def options_of_preset(name: str, overrides: Mapping[str, Any]) -> StrategyOptions:
    """Return the options of preset `name` with `overrides` on top.

    Raises:
        UnknownNameError: There is no such preset.
        StrategyError: An override is unknown or impossible; all are listed.
    """
    if name not in PRESETS:
        raise unknown_preset(name)
    return StrategyOptions(**{**PRESETS[name], **overrides})


def tree_of(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the tree that `options` give for `model`."""
    tree = data_parallel(options).merged(context_parallel(options, model))
    if not others_stay_whole(options, model):
        tree = tree.merged(tensor_parallel(options, model))
    if options.parallelism.sequence_parallel:
        tree = tree.merged(sequence_parallel(options, model))
    tree = tree.merged(expert_parallel(options, model))
    tree = tree.merged(sharded_tables(options, model))
    tree = tree.merged(split_matmuls(options, model))
    tree = tree.merged(phantom_parallel(options, model))
    if options.parallelism.single_process:
        tree = tree.merged(single_process(model))
    return tree.merged(recomputation(options, model))


def schedule_of(options: StrategyOptions, micro_batches: int) -> Schedule:
    """Return the schedule of a step; 1F1B with several chunks is interleaved."""
    pipeline = options.pipeline
    return Schedule(
        name=schedule_of_chunks(pipeline.schedule, pipeline.virtual_stages),
        micro_batches=micro_batches,
        virtual_stages=pipeline.virtual_stages,
        stage_layers=pipeline.stage_layers,
        order=pipeline.order,
        placement=pipeline.placement,
    )


def schedule_of_chunks(schedule: str, virtual_stages: int) -> str:
    """Return the effective schedule of a schedule and the chunks of a stage."""
    return "interleaved" if virtual_stages > 1 and schedule in _ONE_CHUNK else schedule


def strategy_of(options: StrategyOptions, *, model: ModelGraph, global_batch: int) -> Strategy:
    """Return the strategy that `options` describe.

    Args:
        global_batch: Samples per step, of all processes of each device that share a batch.

    Raises:
        StrategyError: The batch does not split into whole micro-batches.
    """
    check_single_process(options, global_batch)
    check_phantom(options, model)
    whole, global_batch = global_batch, options.colocation.process_batch(global_batch)
    micro_batch = max(1, samples_of_a_device(options, global_batch))
    share = options.replicas * micro_batch
    if global_batch % share:
        raise StrategyError(
            {
                "data.global_batch": f"{counted(global_batch, 'sample')} cannot be split into "
                f"micro-batches of {micro_batch} on {counted(options.replicas, 'replica')}; use a "
                f"multiple of {share}"
                if whole == global_batch
                else f"the processes of a device share {whole} samples, {global_batch} each, which "
                f"cannot be split into micro-batches of {micro_batch} on "
                f"{counted(options.replicas, 'replica')}; use a smaller strategy.micro_batch, or "
                "batch_rule: fixed-per-process"
            }
        )
    if options.memory.sharding == "hybrid" and options.fsdp == 1:
        raise StrategyError(
            {
                "strategy.sharding": "'hybrid' shards over the axis 'fsdp', found degree 1; "
                "set fsdp above 1, or use zero3 to shard over all replicas"
            }
        )
    if options.parallelism.context == SPATIAL and options.cp > 1 and spatial_dim(model) is None:
        raise StrategyError(
            {
                "strategy.context": f"'spatial' splits rows of images, but nothing in {model.name} "
                "slides a window over any; use dp or tp"
            }
        )
    return Strategy(
        mesh=Mesh.of({axis: degree for axis, degree in options.degrees.items() if degree > 1}),
        schedule=schedule_of(options, global_batch // share),
        tree=tree_of(options, model),
        preset=(options.memory.sharding,),
        traffic=options.traffic,
        expert_load=options.parallelism.expert_load,
        single_process=options.parallelism.single_process,
        colocation=options.colocation,
    )
