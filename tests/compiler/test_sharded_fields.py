"""Strategies of image and recommendation models: what is sent, held and refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.compiler.by_hand import BATCH, WIDTH, by_hand
from tests.compiler.jobs import Job, small_cluster
from tests.compiler.vision import dlrm, mlp, vgg
from tests.sim.reference import reference_events
from wattree.capture import load_model
from wattree.cost import load_calibration
from wattree.cost.rates import pool_rates
from wattree.errors import StrategyError
from wattree.graph import ModelGraph, Phase, TaskKind, window_dims
from wattree.hardware import Precision
from wattree.lowering.passes.propagate import operator_splits
from wattree.sim import execute
from wattree.strategy import (
    Offload,
    StrategyOptions,
    Traffic,
    TreeNode,
)
from wattree.strategy.presets import options_of_preset, strategy_of

ROWS, CHANNELS = 32, 16


def kinds(job: Job, block: str, phase: str) -> list[tuple[str, float]]:
    """Return kind and bytes of a block's collectives."""
    return [(c.kind, c.size_bytes) for c in job.collectives(block) if c.phase == phase]


# ---------------------------------------------------------------- rows of images


def test_windows_reach_into_the_rows_of_neighbours() -> None:
    """A 5 x 5 window needs 4 rows beyond its part, stride 2 and 3 x 3 one, a 2 x 2 pool none."""
    job = Job.of(vgg(), options_of_preset("spatial", {"cp": 2, "micro_batch": BATCH}))

    row = BATCH * CHANNELS * ROWS * WIDTH
    after_pool = BATCH * CHANNELS * (ROWS // 2) * WIDTH
    assert kinds(job, "features", "forward")[:2] == [("halo", 4 * row), ("halo", after_pool)]
    assert kinds(job, "features", "backward")[-2:] == [("halo", after_pool), ("halo", 4 * row)]


def test_what_lies_at_the_edges_is_kept_for_backward_with_the_rest() -> None:
    """The gradient of a window's weights reads it again."""
    job = Job.of(vgg(), options_of_preset("spatial", {"cp": 2, "micro_batch": BATCH}))
    program = job.program()
    features = next(p for p in program.programs if p.block == "features")
    sizes = {t.name: float(job.scale(program).value(t.size)[0]) for t in features.saved}

    assert sizes["1.edges.0"] == BATCH * CHANNELS * 4 * ROWS
    assert sizes["1"] == BATCH * CHANNELS * ROWS * ROWS / 2


def test_every_layer_that_cannot_be_split_by_hand_is_named() -> None:
    """Odd parts where the split is inherited, and windows beyond the neighbour."""
    job = by_hand(
        vgg(rows=8), {"": TreeNode(), "features.2": TreeNode(compute={"height": ("cp",)})}, cp=8
    )
    with pytest.raises(StrategyError) as caught:
        job.compiled()

    assert caught.value.misfits == {
        "features.2": "its window reaches 2 rows beyond its part, but the neighbour over cp (8) "
        "has 1; use a smaller degree, or do not split this layer: {height: []}",
        "features.4": "4 output rows of 'height' do not divide over cp (8); split this layer by "
        "another dim, or not: {height: []}",
        "features.5": "2 output rows of 'height' do not divide over cp (8); split this layer by "
        "another dim, or not: {height: []}",
    }


def test_the_preset_gathers_where_rows_no_longer_divide() -> None:
    """Such layers get whole samples."""
    job = Job.of(vgg(rows=8), options_of_preset("spatial", {"cp": 4, "micro_batch": BATCH}))

    assert ("all_gather", BATCH * CHANNELS * 16 * WIDTH) in kinds(job, "features", "forward")
    job.compiled()


def test_a_model_without_images_is_refused() -> None:
    """There are no rows to split."""
    with pytest.raises(StrategyError, match="slides a window over any; use dp or tp"):
        strategy_of(StrategyOptions(cp=2, context="spatial"), model=mlp(), global_batch=BATCH)


def test_channels_alternate_between_parts_and_sums() -> None:
    """A convolution split by outputs leaves parts, which the next one sums over."""
    split = TreeNode(compute={"out": ("tp",)})
    job = by_hand(vgg(), {"": TreeNode(), "features.0": split}, tp=2)

    # 1 inherits the channels, 2 sums over them, and 3 wants whole sums.
    whole = BATCH * CHANNELS * ROWS**2 * WIDTH
    assert kinds(job, "features", "forward") == [("all_reduce", whole)]
    job.compiled()


# ---------------------------------------------------------------- batch norm


@pytest.mark.parametrize("options", [{"dp": 2}, {"cp": 2, "context": "spatial"}])
def test_statistics_are_summed_both_ways_where_asked(options: dict[str, object]) -> None:
    """Two values by channel, in fp32; nothing where they stay local."""
    local = Job.of(vgg(norm=True), StrategyOptions(**options))  # type: ignore[arg-type]
    synced = Job.of(vgg(norm=True), StrategyOptions(**options, sync_batch_norm=True))  # type: ignore[arg-type]

    def reductions(job: Job) -> list[str]:
        return [c.phase for c in job.collectives("features") if c.kind == "all_reduce"]

    assert reductions(local) == []
    assert reductions(synced) == ["forward", "backward"]
    graph = synced.compiled().graph
    sent = graph.link_traffic_bytes[graph.name_ids == graph.names.index("norm.statistics")]
    assert sent[0] == pytest.approx(2 * 2 * CHANNELS * 4.0 / 2)  # 2 (n - 1) / n of two sums


# ---------------------------------------------------------------- one process


def test_the_first_device_sends_sums_and_updates() -> None:
    """Parameters go out before forward, gradients come back after, and it alone updates."""
    graph = Job.of(vgg(), options_of_preset("data_parallel", {"dp": 4})).compiled().graph
    optimizer = graph.memory_traffic_bytes[graph.name_ids == graph.names.index("optimizer")]
    elements = vgg().parameters
    sent = {
        name: float(graph.link_traffic_bytes[graph.name_ids == graph.names.index(name)][0])
        for name in ("parameters.broadcast", "gradients.reduce")
    }

    software = Job.of(vgg(), StrategyOptions()).software
    assert graph.class_ranks.tolist() == [1, 3]
    assert optimizer[0] > 0
    assert optimizer[1] == 0
    assert sent["parameters.broadcast"] == pytest.approx(elements * software.parameter_bytes)
    assert sent["gradients.reduce"] == pytest.approx(elements * software.reduce_bytes)


def test_the_first_device_holds_more() -> None:
    """Sums of gradients, optimizer state, and the outputs of all replicas."""
    graph = Job.of(vgg(), options_of_preset("data_parallel", {"dp": 4})).compiled().graph
    peak = execute(graph).peak_bytes
    software = Job.of(vgg(), StrategyOptions()).software
    per_parameter = software.gradient_bytes + software.master_bytes + 8.0

    assert peak[0] - peak[1] >= vgg().parameters * per_parameter


def test_forward_of_all_replicas_is_launched_by_one_process() -> None:
    """Launch-bound, forward takes as many times as long as there are devices; backward does not."""
    spans = []
    for dp in (1, 4):
        job = Job.of(vgg(rows=8), options_of_preset("data_parallel", {"dp": dp}), global_batch=4)
        given = pool_rates(job.cluster, job.software, Precision.BF16, load_calibration())
        slow_host = tuple(replace(rates, launch_s=1e-3) for rates in given)
        graph = replace(job, rates=slow_host).compiled().graph  # type: ignore[arg-type]
        own = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]] == 0
        computes = own & (graph.kind == TaskKind.COMPUTE)
        spans.append(
            [
                graph.work_s[computes & (graph.phase == phase)].sum()
                for phase in (Phase.FORWARD, Phase.BACKWARD)
            ]
        )

    assert spans[1][0] / spans[0][0] == pytest.approx(4, rel=0.05)
    assert spans[1][1] / spans[0][1] == pytest.approx(1, rel=0.05)


def test_what_one_process_cannot_do_is_listed() -> None:
    """Other axes, sharded state, several micro-batches."""
    with pytest.raises(StrategyError) as caught:
        strategy_of(
            StrategyOptions(single_process=True, dp=2, tp=2, sharding="zero1", micro_batch=2),
            model=vgg(),
            global_batch=BATCH,
        )
    assert sorted(caught.value.misfits) == [
        "strategy.micro_batch",
        "strategy.sharding",
        "strategy.tp",
    ]
    job = Job.of(
        vgg(),
        options_of_preset("data_parallel", {"dp": 4}),
        cluster=small_cluster(4, per_node=2),
    )
    with pytest.raises(StrategyError, match="drives the devices of one node"):
        job.compiled()


# ---------------------------------------------------------------- layer by layer


def test_fully_connected_layers_split_over_replicas_need_no_reduction() -> None:
    """Samples are gathered before them, and gradients of samples are summed after."""
    job = Job.of(vgg(), options_of_preset("op_shard", {"dp": 4}))
    found = kinds(job, "classifier", "forward") + kinds(job, "classifier", "backward")

    assert not any(group.reduce_axes for group in job.synchronised("classifier"))
    assert {"all_gather", "reduce_scatter"} <= {kind for kind, _ in found}


def test_roles_split_pairs_of_captured_layers() -> None:
    """Column then row: one reduction by pair and direction, as with our own layers."""
    job = Job.of(mlp(), StrategyOptions(tp=2), global_batch=16)

    assert set(job.strategy.tree.nodes) == {"", "model.pairs.*.up", "model.pairs.*.down"}
    assert [kind for kind, _ in kinds(job, "pair", "forward")] == ["all_reduce"]
    assert [kind for kind, _ in kinds(job, "pair", "backward")] == ["all_reduce"]


def test_layers_of_captured_models_are_recomputed_by_their_own_paths() -> None:
    """Every second of them, or all."""
    trees = [
        set(Job.of(mlp(), StrategyOptions(recompute=how)).strategy.tree.nodes)
        for how in ("block_2", "full")
    ]

    assert trees[0] >= {"model.pairs.0", "model.pairs.2"}
    assert "model.pairs.*" in trees[1]


def test_a_window_over_padded_positions_of_a_sequence_is_not_split() -> None:
    """No pass exchanges rows of a sequence; its length and padding passed for rows of an image."""
    operators = load_model("falcon-h1-0.5b").operators
    windows = [each for each in operators if each.window is not None]

    assert windows
    assert {window_dims(each) for each in windows} == {()}


def test_positions_of_recurrent_layers_are_not_split() -> None:
    """Their scan goes through all of them; what splits such layers is named."""
    job = Job.of(load_model("falcon-h1-0.5b"), StrategyOptions(cp=2, context="ring"))

    with pytest.raises(StrategyError, match=r"chunked_scan: dim 'seq' .*; use tp or pp instead of"):
        job.compiled()


def test_what_runs_in_turn_is_not_split() -> None:
    """Steps of a recurrent product follow each other."""
    model = mlp()
    block = model.blocks["pair"]
    turns = tuple(replace(o, in_turn="in") if o.path == "up" else o for o in block.operators)
    model = replace(model, blocks={**model.blocks, "pair": replace(block, operators=turns)})
    job = by_hand(model, {"model.pairs.*.up": TreeNode(compute={"in": ("tp",)})}, tp=2)

    with pytest.raises(StrategyError, match="runs over 'in' step by step"):
        job.compiled()


def test_windows_over_a_sequence_get_whole_sequences() -> None:
    """A linear layer of attention slides over positions, which tensor ranks split before it."""
    block = load_model("qwen3-next-80b-a3b").blocks["Qwen3NextDecoderLayer"]
    slides = next(o for o in block.operators if o.path == "linear_attn.convolution")
    read = slides.inputs[0]
    layouts = {read.tensor: {"tp": read.dims.index("length")}}
    alone: Any = SimpleNamespace(operators=(slides,))

    assert window_dims(slides) == ()
    assert operator_splits(alone, [MagicMock(compute={})], layouts, frozenset({"tp"}), "") == ({},)


# ---------------------------------------------------------------- all of them


CHOICES: dict[str, tuple[ModelGraph, dict[str, object]]] = {
    "spatial": (vgg(norm=True), {"cp": 2, "dp": 2, "context": "spatial", "sync_batch_norm": True}),
    "op shard": (vgg(), {"dp": 4, "op_shard": True}),
    "one process": (vgg(), {"dp": 4, "single_process": True}),
    "tables": (dlrm(), {"dp": 4, "tables": "table-wise"}),
    "tables by rows": (dlrm(), {"dp": 4, "tables": "row-wise"}),
    "tables of both": (dlrm(), {"dp": 2, "fsdp": 2, "tables": "auto"}),
    "far tables": (
        dlrm(),
        {"dp": 4, "tables": "auto", "traffic": Traffic(offload=Offload(tables="host", hits=0.5))},
    ),
    "tensor": (mlp(), {"tp": 2, "dp": 2, "recompute": "full"}),
}


@pytest.mark.parametrize("per_node", [2, 4])
@pytest.mark.parametrize("name", sorted(CHOICES))
def test_folding_and_the_fast_executor_change_nothing(name: str, per_node: int) -> None:
    """One class for ranks that do the same, played fast or plainly."""
    model, options = CHOICES[name]
    cluster = small_cluster(4, per_node=4 if name == "one process" else per_node)
    job = Job.of(
        model,
        StrategyOptions(**options),  # type: ignore[arg-type]
        cluster=cluster,
        traits={"sparse_gradients": True},
    )
    folded, whole = job.compiled().graph, job.compiled(fold=False).graph
    merged = job.compiled(detail=False).graph
    trace, unfolded = execute(folded), execute(whole)

    assert trace.makespan_s == pytest.approx(unfolded.makespan_s, rel=1e-9)
    assert execute(merged).makespan_s == pytest.approx(trace.makespan_s, rel=1e-9)
    peaks = np.sort(np.repeat(trace.peak_bytes, folded.class_ranks))
    assert peaks == pytest.approx(np.sort(unfolded.peak_bytes), rel=1e-9)
    slow, _ = reference_events(folded)
    assert slow.end_s == pytest.approx(trace.end_s, rel=1e-9)
    assert slow.start_s == pytest.approx(trace.start_s, rel=1e-9)
    # What is taken is given back, on every rank.
    task = np.repeat(np.arange(whole.tasks), np.diff(whole.stream_offsets))
    of_task = np.unique(np.stack([task, whole.stream_class[whole.stream_ids]], axis=1), axis=0)
    taken = np.bincount(of_task[:, 1], weights=whole.alloc_bytes[of_task[:, 0]])
    freed = np.bincount(of_task[:, 1], weights=whole.free_bytes[of_task[:, 0]])
    assert freed == pytest.approx(taken, rel=1e-9)
