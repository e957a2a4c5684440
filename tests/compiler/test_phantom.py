"""Phantom layers: what they hold, compute, send and keep, counted against the closed formulas.

The formulas are derived in docs/design/0022-phantom-in-the-tree.md: for layers of width n over p
ranks with m = n / p, k ghosts, a batch of B, per rank and layer,

| | pair | shared |
| weights | m^2 + n k | m^2 + 2 m k |
| forward FLOP | 2 B (m^2 + n k) | 2 B (m^2 + 2 m k) |
| elements sent, both directions | 2 (p - 1) k B | 4 (p - 1) k B / p |
| kept | own inputs m B, ghosts p k B | own inputs m B, ghosts k B |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, check_plays, dense, small_cluster
from wattree.capture import build_ffn
from wattree.errors import StrategyError
from wattree.graph import ModelGraph, Phase, TaskKind
from wattree.job import Ffn
from wattree.lowering.passes.phantom import with_phantoms
from wattree.lowering.passes.widest import with_widest_parts
from wattree.sim import execute
from wattree.strategy import PhantomLayers, StrategyOptions, StrategyTree, TreeNode

#: Bytes of an element at bf16.
WIDTH = 2.0


def stack(width: int, depth: int = 3, **changes: Any) -> ModelGraph:
    """Return a stack of square layers without biases."""
    given: dict[str, Any] = {"width": width, "depth": depth, "bias": False}
    return build_ffn(Ffn(**{**given, "inputs": width, "outputs": width, **changes}))


def phantom(ranks: int, ghosts: int, **changes: Any) -> StrategyOptions:
    """Return phantom layers over `ranks`."""
    return StrategyOptions(phantom=True, tp=ranks, ghosts=ghosts, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A stack of phantom layers."""

    ranks: int
    own: int  # neurons of a rank
    ghosts: int
    batch: int
    depth: int
    variant: str

    @property
    def job(self) -> Job:
        """The job, eager and at bf16."""
        options = phantom(self.ranks, self.ghosts, variant=self.variant, micro_batch=self.batch)
        return Job.of(
            stack(self.ranks * self.own, self.depth),
            options,
            global_batch=self.batch,
            family="pytorch",
            traits={"autocast": False},
        )

    @property
    def weights(self) -> int:
        """Of one layer, on one rank."""
        sources = self.ranks - 1 if self.variant == "pair" else 1
        return self.own * (self.own + self.ghosts + sources * self.ghosts)

    @property
    def sent(self) -> float:
        """Elements that a rank sends of one layer, in both directions."""
        others = self.ranks - 1
        if self.variant == "pair":
            return 2.0 * others * self.ghosts * self.batch
        return 4.0 * others * self.ghosts * self.batch / self.ranks

    @property
    def ghosts_kept(self) -> int:
        """Elements of ghosts that a rank keeps of one layer."""
        count = self.ranks if self.variant == "pair" else 1
        return count * self.ghosts * self.batch


shapes = st.builds(
    Shape,
    ranks=st.sampled_from((2, 3, 4, 8)),
    own=st.sampled_from((8, 24, 64)),
    ghosts=st.integers(1, 8),
    batch=st.sampled_from((1, 5, 16)),
    depth=st.integers(1, 4),
    variant=st.sampled_from(("pair", "shared")),
)


@settings(max_examples=25)
@given(shape=shapes)
def test_counts_are_those_of_the_formulas(shape: Shape) -> None:
    """Weights, FLOP, traffic and what is kept, exactly."""
    job, layers, batch = shape.job, shape.depth, shape.batch
    compiled = job.compiled()
    graph, program = compiled.graph, compiled.program
    costs = [compiled.costs[number] for number in program.instances]

    assert program.model.parameters == shape.ranks * layers * shape.weights
    compute = graph.kind == TaskKind.COMPUTE
    forward = compute & (graph.phase == Phase.FORWARD)
    assert graph.flop[forward].sum() == 2 * batch * layers * shape.weights
    # The samples have no gradient: neither the local product nor the compressor of the first layer
    # passes one on.
    first = 2 * batch * shape.own * (shape.own + shape.ghosts)
    backward = compute & (graph.phase == Phase.BACKWARD)
    assert graph.flop[backward].sum() == 4 * batch * layers * shape.weights - first
    collectives = graph.kind == TaskKind.COLLECTIVE
    sent = float(graph.link_traffic_bytes[collectives].sum())
    assert sent == pytest.approx(layers * shape.sent * WIDTH, rel=1e-12)
    kept = sum(float(cost.saved_bytes.sum()) for cost in costs) / WIDTH
    outputs = shape.own * batch  # which the loss keeps
    own = layers * shape.own * batch
    assert kept == outputs + own + layers * shape.ghosts_kept


@settings(max_examples=10)
@given(shape=shapes)
def test_gradients_stay_on_their_ranks(shape: Shape) -> None:
    """No parameter is shared inside the group, so nothing is reduced but over replicas."""
    program = shape.job.compiled().program
    groups = [group for each in program.programs for group in each.parameters]

    assert {group.partial_axes for group in groups} == {()}
    assert {group.elements.divisors for group in groups} == {("tp",)}


@pytest.mark.parametrize("variant", ["pair", "shared"])
def test_replicas_reduce_what_they_share(variant: str) -> None:
    """A product with data parallelism around: a p-th of the changed model's gradients."""
    options = phantom(2, 4, variant=variant, dp=4, micro_batch=4)
    job = Job.of(stack(64), options)
    synced = [
        sync for block in ("first", "layer", "last") for sync in _changed(job).synchronised(block)
    ]

    assert {sync.reduce_axes for sync in synced} == {("dp",)}
    elements = sum(float(sync.reduce_bytes[0]) for sync in synced) / job.software.reduce_bytes
    assert elements * 2 == _changed(job).model.parameters


def _changed(job: Job) -> Job:
    """Return the job with the model that is trained."""
    model, tree = with_phantoms(job.model, job.strategy.tree, dict(job.strategy.mesh.axes))
    return replace(job, model=model, strategy=replace(job.strategy, tree=tree))


def test_without_ghosts_only_the_diagonal_is_left() -> None:
    """Block-diagonal layers send nothing."""
    compiled = Job.of(stack(64), phantom(4, 0)).compiled()

    assert not (compiled.graph.kind == TaskKind.COLLECTIVE).any()
    assert compiled.program.model.parameters == 3 * 64 * 64 / 4


@settings(max_examples=15)
@given(shape=shapes)
def test_exchanged_activations_are_counted_as_the_formulas_have_them(shape: Shape) -> None:
    """The same function and local work; (p-1) m (B + k) elements sent each way, n (B + k) kept."""
    others, own, batch = shape.ranks - 1, shape.own, shape.batch
    k, layers = shape.ghosts, shape.depth
    options = phantom(
        shape.ranks, k, variant=shape.variant, micro_batch=batch, exchange="activations"
    )
    job = replace(
        shape.job,
        strategy=Job.of(shape.job.model, options, global_batch=batch).strategy,
    )
    compiled = job.compiled()
    graph = compiled.graph

    assert compiled.program.model.parameters == shape.ranks * layers * shape.weights
    forward = (graph.kind == TaskKind.COMPUTE) & (graph.phase == Phase.FORWARD)
    sources = others if shape.variant == "pair" else 1
    products = own * own + own * k * others + own * k * sources
    assert graph.flop[forward].sum() == 2 * batch * layers * products
    collectives = graph.kind == TaskKind.COLLECTIVE
    sent = float(graph.link_traffic_bytes[collectives].sum())
    unwanted = others * own * batch  # no one wants the gradient of the samples
    each = 2 * others * own * (batch + k)
    assert sent == pytest.approx((layers * each - unwanted) * WIDTH, rel=1e-12)
    counted, _ = with_phantoms(job.model, job.strategy.tree, {"tp": shape.ranks}, counted=True)
    assert counted.parameters == compiled.program.model.parameters
    assert {
        o.path for b in counted.blocks.values() for o in b.operators if "hand" in o.path
    } == set()


def test_single_layers_have_ghosts_of_their_own() -> None:
    """The first pattern that names a layer decides; others have the number for all."""
    counts = (("layers.0", 2), ("layers.[01]", 7))
    job = Job.of(stack(64, 4), phantom(4, 5, layer_ghosts=counts))
    found = _changed(job).model

    ghosts = [
        sum(p.elements for o in found.blocks[i.block].operators for p in o.parameters) // (2 * 4)
        for i in found.instances
    ]
    own = 4 * 16 * 16
    assert ghosts == [(own + k * 64 * 4) // 8 for k in (2, 7, 5, 5)]


def test_all_ghosts_are_as_many_as_tensor_parallelism_sends() -> None:
    """With as many ghosts as neurons the traffic is that of gathered rows."""
    rows = StrategyOptions(tp=4, micro_batch=16)
    sent = [
        Job.of(stack(64), options, global_batch=16).compiled().graph.link_traffic_bytes.sum()
        for options in (phantom(4, 16, micro_batch=16), rows)
    ]
    # The first layer's rows have no gradient to scatter; its ghosts have.
    assert sent[0] / sent[1] == pytest.approx(6 / 5)


# ---------------------------------------------------------------- what runs alongside what


def _times(options: StrategyOptions, *names: str, **traffic: Any) -> dict[str, tuple[float, float]]:
    """Return when the tasks of the only layer with these names start and end, in forward. [s]"""
    job = Job.of(stack(8192, 1), options, global_batch=4096, family="pytorch")
    if traffic:
        strategy = job.strategy
        job = replace(job, strategy=replace(strategy, traffic=replace(strategy.traffic, **traffic)))
    graph = job.compiled().graph
    trace = execute(graph)
    found = {}
    for name in names:
        (task,) = np.flatnonzero(
            (graph.name_ids == graph.names.index(name)) & (graph.phase == Phase.FORWARD)
        )
        found[name] = (float(trace.start_s[task]), float(trace.end_s[task]))
    return found


@pytest.mark.parametrize(
    ("variant", "exchange"), [("pair", "linear.ghosts"), ("shared", "linear.total")]
)
def test_ghosts_travel_beside_the_local_product(variant: str, exchange: str) -> None:
    """Sent as soon as they are compressed, awaited only by what decompresses them."""
    options = phantom(8, 256, variant=variant, micro_batch=4096)
    names = ("linear.compress", "linear.local", exchange, "linear.decompress")
    if variant == "shared":  # its sum over one rank's ghosts is a task of the same name
        names = ("linear.compress", "linear.local", "linear.others", "linear.decompress")
    times = _times(options, *names)

    compress, local, sent, decompress = (times[name] for name in names)
    assert local[0] == compress[1]
    if variant == "pair":
        assert sent[0] == compress[1]
        assert sent[1] < local[1] == decompress[0]
    else:
        assert sent[0] == local[1]  # the sum has long been there
        assert sent[1] == decompress[0]


def test_in_line_nothing_travels_beside() -> None:
    """Without overlap the gather has the computation's stream for itself."""
    names = ("linear.local", "linear.ghosts", "linear.decompress")
    times = _times(phantom(8, 256, micro_batch=4096), *names, in_line=("tensor",))

    local, sent, decompress = (times[name] for name in names)
    assert local[1] <= sent[0] < sent[1] <= decompress[0]


def test_ghosts_are_gathered_again_instead_of_kept() -> None:
    """Less memory for one more all-gather a layer."""
    kept, again = (
        Job.of(
            stack(1024, 6), phantom(8, 64, micro_batch=512, regather=regather), global_batch=512
        ).compiled()
        for regather in (False, True)
    )
    gathers = [
        float(c.graph.link_traffic_bytes[c.graph.kind == TaskKind.COLLECTIVE].sum())
        for c in (kept, again)
    ]
    saved = [
        sum(float(c.costs[n].saved_bytes.sum()) for n in c.program.instances) for c in (kept, again)
    ]

    assert gathers[1] == pytest.approx(1.5 * gathers[0])
    assert saved[0] - saved[1] == 6 * 7 * 64 * 512 * WIDTH  # the ghosts of the seven others


# ---------------------------------------------------------------- the same in every play


ALIKE = {
    "pair": phantom(4, 4, dp=2, micro_batch=4),
    "shared": phantom(4, 4, variant="shared", dp=2, micro_batch=4, sharding="zero1"),
    "regathered": phantom(2, 4, dp=4, regather=True, recompute="full"),
    "stages": phantom(2, 4, pp=2, dp=2, micro_batch=2),
    "two pieces": phantom(2, 4, pp=2, dp=2, schedule="zb-h1", micro_batch=2),
    "positions": phantom(2, 4, cp=2, dp=2),
    "sharded": phantom(4, 4, fsdp=2, sharding="zero3", micro_batch=2),
}
MODELS = {"stack": stack(64, 4, activation="gelu"), "transformer": dense(4)}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ALIKE)
def test_plays_agree_and_memory_balances(name: str, model: str) -> None:
    """Folded and whole, merged and task by task, compiled and in plain Python."""
    check_plays(Job.of(MODELS[model], ALIKE[name]))


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
        ({"layer_ghosts": (("layers.0", -1),)}, "strategy.layer_ghosts.layers.0: found -1"),
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
    job = _changed(Job.of(dense(), phantom(4, 4), family="pytorch"))
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
    model = _changed(Job.of(dense(), options)).model
    paths = {operator.path for operator in model.blocks["layer"].operators}

    for layer in ("attention.qkv", "attention.out", "mlp.up", "mlp.down"):
        assert f"{layer}.local" in paths
        assert layer not in paths
    per_layer = sum((a * b) // 4 + (a + 3 * b) * 4 for a, b in _WIDTHS)
    assert model.blocks["layer"].parameter_elements == per_layer + _NORMS


#: Inputs and outputs of qkv, out, up and down of the small transformer; its two norms.
_WIDTHS = ((32, 96), (32, 32), (32, 128), (128, 32))
_NORMS = 2 * 2 * 32
