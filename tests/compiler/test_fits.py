"""A strategy that does not fit is refused with every misfit, each in full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.jobs import Job, dense, mixture, small_cluster
from wattree.capture import load_model
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.lowering.legality import misfits
from wattree.strategy import (
    MemoryChoice,
    Mesh,
    Schedule,
    Strategy,
    StrategyOptions,
    StrategyTree,
    TreeNode,
)
from wattree.strategy.presets import strategy_of


def found(
    model: ModelGraph,
    options: StrategyOptions,
    *,
    devices: int | None = None,
    batch: int = 16,
    sequence: int = 64,
) -> dict[str, str]:
    """Return the misfits of a preset on a cluster of eight-device nodes."""
    return misfits(
        model,
        strategy_of(options, model=model, global_batch=batch),
        small_cluster(devices or options.ranks, per_node=min(devices or options.ranks, 8)),
        global_batch=batch,
        sequence=sequence,
    )


def by_hand(tree: dict[str, TreeNode], **mesh: int) -> dict[str, str]:
    """Return the misfits of a hand-written tree for a small dense model."""
    strategy = Strategy(mesh=Mesh.of(mesh), schedule=Schedule(), tree=StrategyTree(nodes=tree))
    ranks = strategy.mesh.ranks
    return misfits(dense(), strategy, small_cluster(ranks), global_batch=16, sequence=64)


def test_what_fits_has_no_misfits() -> None:
    """Everything that the messages below ask for, at once."""
    options = StrategyOptions(dp=2, tp=4, pp=2, sequence_parallel=True, sharding="zero1")

    assert found(dense(), options) == {}


def test_too_many_ranks() -> None:
    """The product is shown as it was written, and what the cluster has."""
    assert found(dense(), StrategyOptions(dp=2, tp=8), devices=8) == {
        "strategy.mesh": "dp 2 x tp 8 = 16 ranks, but the cluster has 8 devices; use smaller "
        "degrees or more nodes"
    }


def test_ranks_that_do_not_fill_the_cluster_evenly() -> None:
    """Leaving devices idle is allowed, unequal parts of nodes are not."""
    assert found(dense(), StrategyOptions(dp=3), devices=8, batch=12) == {}
    assert found(dense(), StrategyOptions(dp=12), devices=16, batch=12) == {
        "strategy.mesh": "dp 12 = 12 ranks do not divide the cluster's 16 devices; use degrees "
        "whose product is 16"
    }


def test_heads_that_do_not_divide() -> None:
    """A rank computes whole heads; the largest smaller degree that works is named."""
    model = dense(heads=6, hidden=48)

    assert found(model, StrategyOptions(tp=4)) == {
        "layers.0.attention.qkv": "6 key/value heads do not divide over axis 'tp' (4); use a "
        "degree that divides 6, such as 3",
        "layers.0.attention.out": "6 heads do not divide over axis 'tp' (4); use a degree that "
        "divides 6, such as 3",
    }


def test_more_ranks_than_key_value_heads() -> None:
    """Ranks hold copies where they are a multiple of the heads and share the queries evenly."""
    assert found(dense(heads=8, kv_heads=2), StrategyOptions(tp=4)) == {}
    assert found(dense(heads=12, hidden=48, kv_heads=3), StrategyOptions(tp=4)) == {
        "layers.0.attention.qkv": "3 key/value heads do not divide over axis 'tp' (4); use a "
        "degree that divides 3, such as 3"
    }
    assert "layers.0.attention.qkv" in found(
        dense(heads=6, hidden=48, kv_heads=2), StrategyOptions(tp=4)
    )


def test_experts_that_do_not_divide() -> None:
    """Experts are spread over `ep` and `tp` together."""
    reason = (
        "6 experts do not divide over axes ep, tp (4); use a degree that divides 6, such as 3, or "
        "expert_over_tensor: false, where tensor ranks split each expert"
    )

    assert found(mixture(experts=6), StrategyOptions(ep=2, tp=2)) == {
        "layers.0.moe.experts.up": f"{reason} (here and at 2 more operators)"
    }


def test_positions_that_do_not_divide() -> None:
    """Context parallelism splits every operator by position."""
    problems = found(dense(), StrategyOptions(cp=8), sequence=60)

    assert problems["embedding.embedding.tokens"] == (
        "60 positions do not divide over axis 'cp' (8); use a degree that divides 60, such as 6 "
        "(here and at 14 more operators)"
    )


@pytest.mark.parametrize("virtual_stages", [1, 2])
def test_an_encoder_may_lie_apart_from_its_decoder(virtual_stages: int) -> None:
    """Its output is sent on through every stage."""
    options = StrategyOptions(pp=2, virtual_stages=virtual_stages)

    assert found(load_model("t5-small"), options) == {}


def test_features_that_do_not_divide() -> None:
    """The feed-forward part has no units of its own."""
    assert found(dense(ffn=130), StrategyOptions(tp=4)) == {
        "layers.0.mlp.up": "130 units of 'out' do not divide over axis 'tp' (4); use a degree that "
        "divides 130, such as 2",
        "layers.0.mlp.down": "130 units of 'in' do not divide over axis 'tp' (4); use a degree "
        "that divides 130, such as 2",
    }


def test_a_vocabulary_divides_once_padded() -> None:
    """Frameworks pad tables to a multiple of 128 rows before they split them."""
    assert found(dense(vocab=250), StrategyOptions(tp=8)) == {}


def test_a_batch_that_does_not_split() -> None:
    """A hand-written schedule names its micro-batches itself."""
    strategy = Strategy(
        mesh=Mesh.of({"dp": 4}),
        schedule=Schedule(micro_batches=3),
        tree=StrategyTree(nodes={"": TreeNode(compute={"batch": ("dp",)})}),
    )

    problems = misfits(dense(), strategy, small_cluster(4), global_batch=16, sequence=64)

    assert problems == {
        "data.global_batch": "16 samples cannot be split over 4 replicas x 3 micro-batches; use a "
        "multiple of 12"
    }


def test_a_preset_s_batch_that_does_not_split() -> None:
    """Presets work the number of micro-batches out, and say so earlier."""
    with pytest.raises(StrategyError) as caught:
        strategy_of(StrategyOptions(dp=4, micro_batch=3), model=dense(2), global_batch=16)

    assert str(caught.value) == (
        "strategy rejected, 1 problem(s):\n  at data.global_batch: 16 samples cannot be split into "
        "micro-batches of 3 on 4 replicas; use a multiple of 12"
    )


def test_a_batch_that_processes_share_is_refused_in_the_job_s_numbers() -> None:
    """The share of one process is no number of the job's."""
    options = StrategyOptions(dp=1, micro_batch=256, processes_per_device=2)
    with pytest.raises(StrategyError, match="share 256 samples, 128 each") as caught:
        strategy_of(options, model=dense(2), global_batch=256)

    assert "use a multiple" not in str(caught.value)


# ---------------------------------------------------------------- stages


def test_more_stages_than_layers_can_fill() -> None:
    """Embedding and head can be stages of their own, so two layers fill four."""
    assert found(dense(2), StrategyOptions(pp=4)) == {}
    assert found(dense(2), StrategyOptions(pp=8)) == {
        "strategy.schedule": "8 stages x 1 virtual stages are more chunks than the model's 2 "
        "layers can fill; use fewer"
    }


def test_layers_per_chunk_that_do_not_add_up() -> None:
    """Both numbers are shown with what they should be."""
    assert found(dense(4), StrategyOptions(pp=2, stage_layers=(1, 2))) == {
        "strategy.schedule.stage_layers": "found 2 chunks with 3 layers, expected 2 chunks with 4 "
        "layers"
    }


def test_an_inner_chunk_without_layers() -> None:
    """It would have nothing to hand on."""
    assert found(dense(4), StrategyOptions(pp=4, stage_layers=(2, 0, 1, 1))) == {
        "strategy.schedule.stage_layers": "chunk 2 of 4 is given 0 layers; only one that holds "
        "the embedding or the head may be given 0"
    }


def test_virtual_stages_that_the_schedule_does_not_know() -> None:
    """1F1B would leave every second chunk out."""
    strategy = strategy_of(StrategyOptions(pp=2), model=dense(4), global_batch=16)
    strategy = replace(strategy, schedule=replace(strategy.schedule, virtual_stages=2))

    problems = misfits(dense(4), strategy, small_cluster(2), global_batch=16, sequence=64)

    assert problems == {
        "strategy.schedule.name": "1f1b runs one chunk on each stage, found 2 virtual stages; use "
        "interleaved"
    }


def test_virtual_stages_without_stages() -> None:
    """A stage would send to itself."""
    assert found(dense(4), StrategyOptions(virtual_stages=2)) == {
        "strategy.schedule.virtual_stages": "found 2 virtual stages without pipeline stages; use "
        "pp above 1, or 1"
    }


# ---------------------------------------------------------------- hand-written trees


ROOT = {"": TreeNode(compute={"batch": ("dp",)})}


def test_a_pattern_that_matches_nothing() -> None:
    """The nearest path is suggested, layer numbers as a wildcard."""
    column = TreeNode(compute={"out": ("tp",)})

    assert by_hand({**ROOT, "layers.*.attention.qvk": column}, tp=2) == {
        "strategy.tree.'layers.*.attention.qvk'": "matches no operator of small; did you mean "
        "'layers.*.attention.qkv'?"
    }


def test_a_pattern_that_resembles_nothing() -> None:
    """The parts of the model are listed."""
    assert by_hand({**ROOT, "zzz": TreeNode()}, dp=2) == {
        "strategy.tree.'zzz'": "matches no operator of small; parts: embedding, layers, layers.*, "
        "head"
    }


def test_a_pattern_of_a_layer_that_is_not_there() -> None:
    """Two layers have the numbers 0 and 1."""
    tree = {**ROOT, "layers.1": TreeNode(), "layers.2": TreeNode()}

    assert by_hand(tree, dp=2) == {
        "strategy.tree.'layers.2'": "matches no operator of small; did you mean 'layers.*'?"
    }


def test_a_dim_that_no_matched_operator_has() -> None:
    """Products call their columns `out`."""
    assert by_hand({**ROOT, "layers.*.mlp.up": TreeNode(compute={"outs": ("tp",)})}, tp=2) == {
        "strategy.tree.'layers.*.mlp.up'": "no operator here has a dim 'outs'; did you mean 'out'? "
        "they have batch, seq, out, in"
    }


def test_an_unknown_axis() -> None:
    """In compute and in memory alike."""
    tree = {
        "": TreeNode(compute={"batch": ("data",)}),
        "layers.*": TreeNode(memory=MemoryChoice(optimizer=("zero",))),
    }
    known = "expected one of dp, pp, fsdp, ep, cp, tp"

    assert by_hand(tree, dp=2) == {
        "strategy.tree.''": f"unknown axis 'data'; {known}",
        "strategy.tree.'layers.*'": f"unknown axis 'zero'; {known}",
    }


def test_a_dim_that_cannot_be_split() -> None:
    """A norm needs whole rows."""
    tree = {**ROOT, "head.final_norm": TreeNode(compute={"hidden": ("tp",)})}

    assert by_hand(tree, tp=2) == {
        "head.final_norm": "dim 'hidden' cannot be split (over axis 'tp', 2); dims that can: "
        "batch, seq"
    }


def test_an_axis_that_splits_two_dims() -> None:
    """Ranks of one axis cannot differ in both."""
    tree = {"layers.*.mlp.up": TreeNode(compute={"out": ("tp",), "in": ("tp",)})}

    assert by_hand(tree, tp=2)["layers.0.mlp.up"] == (
        "axis 'tp' splits both 'out' and 'in'; choose one"
    )


def test_presets_may_name_what_a_model_lacks() -> None:
    """Their patterns cover experts, encoders and decoders, which a dense stack has not."""
    assert found(dense(), StrategyOptions(ep=2)) == {}


# ---------------------------------------------------------------- all at once


def test_every_misfit_is_reported_at_once() -> None:
    """One message for ranks, stages, heads and features."""
    model = dense(2, heads=6, hidden=48, ffn=130)
    options = StrategyOptions(tp=4, pp=5)

    with pytest.raises(StrategyError) as caught:
        Job.of(model, options, cluster=small_cluster(8)).compiled()

    assert set(caught.value.misfits) == {
        "strategy.mesh",
        "strategy.schedule",
        "layers.0.attention.qkv",
        "layers.0.attention.out",
        "layers.0.mlp.up",
        "layers.0.mlp.down",
    }


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "gpt2", "bert-base"])
def test_catalogue_models_take_the_usual_strategies(name: str) -> None:
    """Four replicas of two tensor ranks divide their heads, experts and vocabulary."""
    options = StrategyOptions(dp=4, tp=2, sequence_parallel=True, sharding="zero1")

    assert found(load_model(name), options) == {}


def test_a_step_too_large_to_play_is_refused_before_it_is_built() -> None:
    """Memory must not fill up without a word."""
    job = Job.of(dense(4), StrategyOptions(dp=2), global_batch=8_000_000)

    with pytest.raises(
        StrategyError, match=r"4,000,000 micro-batches make [\d,]+ tasks, more than"
    ):
        job.compiled()
