"""Which layers become phantom layers, and which cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.compiler.jobs import Job, dense, small_cluster
from tests.compiler.phantom_stacks import WIDTH, changed_job, phantom, stack
from wattree.errors import StrategyError
from wattree.graph import ModelGraph, TaskKind
from wattree.lowering.passes.phantom import with_phantoms
from wattree.lowering.passes.widest import with_widest_parts
from wattree.sim import execute
from wattree.strategy import PhantomLayers, StrategyOptions, StrategyTree, TreeNode

# ---------------------------------------------------------------- which layers, and which cannot


def _refused(model: ModelGraph, tree: StrategyTree, **degrees: int) -> str:
    with pytest.raises(StrategyError) as caught:
        with_phantoms(model, tree, degrees)
    return str(caught.value)


def _tree(pattern: str, ghosts: int = 4, **more: Any) -> StrategyTree:
    return StrategyTree(nodes={pattern: TreeNode(phantom=PhantomLayers(ghosts=ghosts, **more))})


def test_a_pattern_turns_what_lies_below_it() -> None:
    """Linear layers only; two kinds of instances of one block are two blocks."""
    model, tree = with_phantoms(stack(64, 5), _tree("layers.[12]"), {"tp": 4})
    paths = {
        instance.path: [operator.path for operator in model.blocks[instance.block].operators]
        for instance in model.instances
    }

    changed = ["activation", "linear.compress", "linear.local", "linear.decompress"]
    assert paths["layers.1"] == paths["layers.2"] == changed
    assert paths["layers.3"] == ["activation", "linear"]
    assert tree.nodes["layers.[12]"].compute == {"rank": ("tp",)}
    assert model.parameters == 3 * 64**2 + 2 * (64**2 // 4 + 64 * 4 * 4)


def test_a_model_without_phantom_layers_is_left_alone() -> None:
    """The very same object, so that nothing else can have changed."""
    model, tree = stack(64), StrategyTree(nodes={"": TreeNode(compute={"batch": ("dp",)})})

    assert with_phantoms(model, tree, {"tp": 4}) == (model, tree)
    assert with_phantoms(model, tree, {"tp": 4})[0] is model


@pytest.mark.parametrize("variant", ["pair", "shared"])
@pytest.mark.parametrize("width", [65, 66, 67])
def test_uneven_blocks_take_what_the_widest_rank_does(width: int, variant: str) -> None:
    """Products, exchanges, memory and time of the width that divides; parameters of its own."""
    options = phantom(4, 5, variant=variant, micro_batch=8)
    uneven, even = (
        Job.of(stack(size, loss="cross_entropy"), options, global_batch=8) for size in (width, 68)
    )
    ours, theirs = uneven.compiled(), even.compiled()
    matrices = [graph.kind == TaskKind.COMPUTE for graph in (ours.graph, theirs.graph)]

    assert ours.graph.flop[matrices[0]].tolist() == theirs.graph.flop[matrices[1]].tolist()
    sent = [float(each.graph.link_traffic_bytes.sum()) for each in (ours, theirs)]
    assert sent[0] == pytest.approx(sent[1], rel=0.01)  # the last output, whole for the loss
    assert ours.program.model.parameters == theirs.program.model.parameters
    executed = [execute(each.graph).makespan_s for each in (ours, theirs)]
    assert executed[0] == pytest.approx(executed[1], rel=0.005)

    # First ranks have one more, as the runtime lays them.
    widths = [width // 4 + (rank < width % 4) for rank in range(4)]
    sources = 3 if variant == "pair" else 1
    tree = StrategyTree(
        nodes={"layers.*": TreeNode(phantom=PhantomLayers(ghosts=5, variant=variant))}
    )
    exact, _ = with_phantoms(uneven.model, tree, {"tp": 4}, counted=True)
    assert exact.parameters == 3 * sum(m * (m + 5 + sources * 5) for m in widths)


@pytest.mark.parametrize(
    "options", [StrategyOptions(tp=4), StrategyOptions(tp=4, tensor_pairs=True)]
)
def test_uneven_stacks_are_split_exactly_too(options: StrategyOptions) -> None:
    """Between the widths that divide: what is whole on all ranks keeps its size."""
    times, flop = [], []
    for width in (1024, 1026, 1028):
        compiled = Job.of(stack(width), replace(options, micro_batch=8), global_batch=8).compiled()
        times.append(execute(compiled.graph).makespan_s)
        flop.append(float(compiled.graph.flop.sum()))

    assert times == sorted(times)
    assert flop[0] < flop[1] < flop[2]
    even = Job.of(stack(1024), StrategyOptions(tp=4, micro_batch=8), global_batch=8)
    assert with_widest_parts(even.model, even.strategy.tree, {"tp": 4}) is even.model


def test_what_cannot_be_a_phantom_layer_is_refused_with_the_reason() -> None:
    """Each once, at the first layer where it shows."""
    assert "are more than the 16 features of its input" in _refused(
        stack(64), _tree("layers.*", 17), tp=4
    )
    narrow = _refused(stack(3), _tree("layers.*", 1), tp=4)
    assert "3 features of 'in' are fewer than the 4 ranks of 'tp'" in narrow
    assert "(here and in 2 more layers)" in narrow
    # The narrowest rank of 66 over 4 has 16.
    assert "more than the 16 features" in _refused(stack(66), _tree("layers.*", 17), tp=4)
    assert "of one rank are linear layers" in _refused(stack(64), _tree("layers.*"), tp=1)
    assert "axis 'cp' of one rank" in _refused(stack(64), _tree("layers.*", axis="cp"), tp=4)
    tied = dense(2, tied_embedding=True)
    assert "shares its weight" in _refused(tied, _tree("head.logits"), tp=4)
    heads = dense(2, kv_heads=2)
    assert "2 heads of 'out'" in _refused(heads, _tree("layers.*.attention.qkv", 2), tp=4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ghosts": None}, "strategy.ghosts: is missing"),
        ({"sequence_parallel": True}, "strategy.sequence_parallel: does not go with"),
        ({"op_shard": True}, "strategy.op_shard: does not go with"),
        ({"tensor_pairs": True}, "strategy.tensor_pairs: does not go with"),
        ({"single_process": True}, "strategy.single_process: does not go with"),
        ({"context": "spatial"}, "strategy.context: does not go with"),
        (
            {"exchange": "activations", "regather": True},
            "strategy.regather: found with exchange activations",
        ),
        ({"ghosts": -1}, "strategy.ghosts: found -1"),
        ({"exchange": "all"}, "strategy.exchange: found 'all'"),
        ({"variant": "both"}, "strategy.variant: found 'both'"),
        ({"variant": "shared", "regather": True}, "strategy.regather: found with variant shared"),
    ],
    ids=str,
)
def test_choices_that_contradict_each_other_are_refused(options: Any, said: str) -> None:
    """Before any model is looked at."""
    given = {"phantom": True, "tp": 4, "ghosts": 4}
    with pytest.raises(StrategyError) as caught:
        StrategyOptions(**{**given, **options})
    place, reason = said.split(": ")
    assert place in str(caught.value)
    assert reason in str(caught.value)


def test_ghosts_go_with_phantom_layers_only() -> None:
    """Said without them they would be lost in silence."""
    with pytest.raises(StrategyError, match="is of phantom layers"):
        StrategyOptions(tp=4, ghosts=4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (phantom(1, 4, dp=4), "found 1 with phantom layers"),
        (phantom(4, 4, phantom_layers=("linaer",)), "matches no linear layer of ffn; it has"),
    ],
)
def test_layers_that_are_not_there_are_refused(options: StrategyOptions, said: str) -> None:
    """With what there is."""
    with pytest.raises(StrategyError, match=said):
        Job.of(stack(64), options)


def test_a_model_without_linear_layers_of_its_own_is_refused() -> None:
    """Experts are no plain linear layers."""
    model = dense(2, experts=4, top_k=2)
    with pytest.raises(StrategyError, match="finds no linear layers"):
        Job.of(model, phantom(2, 2), cluster=small_cluster(2))


# ---------------------------------------------------------------- transformers


def test_hidden_states_between_phantom_layers_are_whole() -> None:
    """Norms need them: one gather behind the feed-forward part, one of the gradient ahead of it."""
    job = changed_job(Job.of(dense(), phantom(4, 4), family="pytorch"))
    found = job.collectives("layer")
    tokens = 64 * job.scale(job.program()).micro_batch[0] * WIDTH
    ghosts, hidden = 4 * 4 * tokens, 32 * tokens

    def sizes(phase: str, kind: str) -> list[float]:
        return [c.size_bytes for c in found if c.phase == phase and c.kind == kind]

    assert sizes("forward", "all_gather") == [ghosts, ghosts, hidden]
    assert sizes("forward", "all_reduce") == [hidden]  # attention, as in tensor parallelism
    assert sizes("backward", "reduce_scatter") == [ghosts, ghosts]
    assert sizes("backward", "all_gather") == [hidden]


def test_projections_of_attention_become_phantom_layers_where_named() -> None:
    """Whole heads stay with their rank."""
    options = phantom(4, 4, phantom_layers=("mlp.*", "attention.*"))
    model = changed_job(Job.of(dense(), options)).model
    paths = {operator.path for operator in model.blocks["layer"].operators}

    for layer in ("attention.qkv", "attention.out", "mlp.up", "mlp.down"):
        assert f"{layer}.local" in paths
        assert layer not in paths
    per_layer = sum((a * b) // 4 + (a + 3 * b) * 4 for a, b in _WIDTHS)
    assert model.blocks["layer"].parameter_elements == per_layer + _NORMS


#: Inputs and outputs of qkv, out, up and down of the small transformer; its two norms.
_WIDTHS = ((32, 96), (32, 32), (32, 128), (128, 32))
_NORMS = 2 * 2 * 32
