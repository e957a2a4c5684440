"""Stages may split their layers unlike each other: tensors change layout before they are sent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.jobs import Job, dense, small_cluster
from wattree.lowering.legality import misfits
from wattree.lowering.program import BlockProgram, CollectiveInstruction
from wattree.strategy import Mesh, Schedule, Strategy, StrategyTree, TreeNode

#: Two stages of eight ranks, which are two replicas of four ranks or four of two.
MESH = Mesh(axes=(("stage", 2), ("d", 2), ("x", 2), ("y", 2)), stage_axis="stage")
WIDE, NARROW = (("d",), ("x", "y")), (("d", "x"), ("y",))
_PRODUCTS = {"attention.qkv": "out", "attention.out": "in", "mlp.up": "out", "mlp.down": "in"}
Degrees = tuple[tuple[str, ...], tuple[str, ...]]


def job(first: Degrees, second: Degrees, *, micro_batches: int = 2) -> Job:
    """Return a job of four layers, two to a stage, each with axes of samples and of features."""
    nodes = {"": TreeNode(compute={"batch": ("d",)})}
    for layer, (samples, features) in enumerate((first, first, second, second)):
        nodes[f"layers.{layer}"] = TreeNode(compute={"batch": samples})
        for path, dim in _PRODUCTS.items():
            nodes[f"layers.{layer}.{path}"] = TreeNode(compute={dim: features})
    schedule = Schedule(micro_batches=micro_batches, stage_layers=(2, 2))
    return Job(
        model=dense(4),
        strategy=Strategy(mesh=MESH, schedule=schedule, tree=StrategyTree(nodes=nodes)),
        cluster=small_cluster(16),
    )


def program_of(of: Job, layer: int) -> BlockProgram:
    """Return the program of a layer."""
    program = of.program()
    return program.programs[program.instances[1 + layer]]


def collectives(of: Job, layer: int) -> dict[str, list[tuple[str, tuple[str, ...], float]]]:
    """Return kind, axes and elements of what a layer exchanges forward and backward."""
    program, scale = program_of(of, layer), of.scale(of.program())
    return {
        phase: [
            (each.kind.value, each.axes, float(scale.value(each.size)[0]))
            for each in instructions
            if isinstance(each, CollectiveInstruction)
        ]
        for phase, instructions in (("forward", program.forward), ("backward", program.backward))
    }


def test_layers_inside_a_stage_do_what_they_do_where_all_stages_are_alike() -> None:
    """Degrees of other stages are none of their business."""
    mixed = job(WIDE, NARROW)

    assert program_of(mixed, 0) == program_of(job(WIDE, WIDE), 0)
    assert program_of(mixed, 2) == program_of(job(NARROW, NARROW), 2)


def test_activations_are_sent_as_the_next_stage_wants_them() -> None:
    """Samples are cut over x before they are sent, and gradients gathered when they arrive."""
    mixed, whole = job(WIDE, NARROW), 16 / 2 / 2 * 64 * 32  # of one of the root's two replicas

    last = collectives(mixed, 1)
    ((_, sent),) = program_of(mixed, 1).boundary_tensors

    assert last["forward"][-1] == ("all_reduce", ("x", "y"), whole)
    assert mixed.scale(mixed.program()).value(sent) == whole / 2
    assert last["backward"][0] == ("all_gather", ("x",), whole)


def test_a_wider_stage_gathers_what_it_is_sent() -> None:
    """The sender has parts by samples; the receiver works on all of them."""
    mixed, whole = job(NARROW, WIDE), 16 / 2 / 2 * 64 * 32

    assert collectives(mixed, 1)["forward"][-1] == ("all_gather", ("x",), whole)


def test_a_pipeline_of_both_kinds_computes_what_either_does() -> None:
    """Half of each, counted over all devices."""
    flop = {
        name: job(*degrees).compiled().graph.flop.sum()
        for name, degrees in {
            "wide": (WIDE, WIDE),
            "mixed": (WIDE, NARROW),
            "narrow": (NARROW, NARROW),
        }.items()
    }

    assert flop["mixed"] == pytest.approx((flop["wide"] + flop["narrow"]) / 2)


def test_one_stage_may_split_positions_and_the_next_features() -> None:
    """Context degrees differ by stage: positions are gathered at the border, gradients cut."""
    rest = {"batch": ("d",)}
    apart, together = ("x", "y"), job(WIDE, WIDE)
    nodes = {**together.strategy.tree.nodes}
    for layer in (0, 1):  # by positions, as attention too
        for path in ("", *(f".{path}" for path in _PRODUCTS)):
            nodes.pop(f"layers.{layer}{path}")
        nodes[f"layers.{layer}"] = TreeNode(compute={**rest, "seq": apart})
    mixed = replace(together, strategy=replace(together.strategy, tree=StrategyTree(nodes=nodes)))
    whole = 16 / 2 / 2 * 64 * 32

    first = collectives(mixed, 1)
    assert first["forward"][-1] == ("all_gather", apart, whole)
    assert mixed.compiled().graph.flop.sum() == together.compiled().graph.flop.sum()


def test_samples_of_a_micro_batch_divide_over_the_ranks_of_every_layer() -> None:
    """Only the root's replicas count for the number of micro-batches."""
    wanted = job(WIDE, NARROW, micro_batches=8)  # one sample for each of the root's replicas

    found = misfits(
        wanted.model, wanted.strategy, wanted.cluster, global_batch=16, sequence=wanted.sequence
    )

    assert list(found.values()) == [
        "2 samples of a micro-batch do not divide over d, x (4); use fewer micro-batches, or fewer "
        "ranks (here and at 21 more operators)"
    ]
