"""The collectives that layouts call for are those of the papers: kind, group and bytes.

Volumes are worked out here from batch, sequence, hidden size and parameters; nothing is taken
from the compiler but what it inserted.
"""

from __future__ import annotations

import pytest

from tests.compiler.jobs import (
    HIDDEN,
    SEQUENCE,
    VOCABULARY,
    WIDTH,
    Collective,
    Job,
    counted,
    dense,
    mixture,
)
from tests.compiler.paper_traffic import sent_per_step
from wattree.graph import UNROUTED
from wattree.strategy import StrategyOptions

#: b * s * h of one micro-batch of one sample, in bytes.
STATE_BYTES = 1 * SEQUENCE * HIDDEN * WIDTH


def of_layer(job: Job, phase: str, block: str = "layer") -> dict[tuple[object, ...], int]:
    """Return (kind, axes, bytes) → count of one layer's pass."""
    return dict(counted(job.collectives(block), phase))


# ---------------------------------------------------------------- tensor and sequence parallelism


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_megatron_reduces_twice_forward_and_twice_backward(tp: int) -> None:
    """Shoeybi et al. 2019, fig. 4: operators f and g, a pair for attention, one for the MLP."""
    job = Job.of(dense(), StrategyOptions(tp=tp))

    both = {("all_reduce", ("tp",), STATE_BYTES): 2}

    assert of_layer(job, "forward") == both
    assert of_layer(job, "backward") == both


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_tensor_parallel_traffic_grows_with_the_micro_batch(micro_batch: int) -> None:
    """The all-reduce is of b * s * h values whatever the degree."""
    job = Job.of(dense(), StrategyOptions(tp=4, dp=2, micro_batch=micro_batch))

    (found,) = of_layer(job, "forward")

    assert found == ("all_reduce", ("tp",), micro_batch * STATE_BYTES)


def test_sequence_parallelism_turns_each_all_reduce_into_a_gather_and_a_scatter() -> None:
    """Korthikanti et al. 2022, fig. 5: g is an all-gather, g-bar a reduce-scatter of b * s * h."""
    job = Job.of(dense(), StrategyOptions(tp=4, sequence_parallel=True))

    forward = of_layer(job, "forward")

    assert forward == {
        ("all_gather", ("tp",), STATE_BYTES): 2,
        ("reduce_scatter", ("tp",), STATE_BYTES): 2,
    }


def test_sequence_parallelism_gathers_the_kept_shards_once_more_in_backward() -> None:
    """Korthikanti et al. 2022, §4.2.2: only a shard of Y is kept, so an all-gather is added."""
    job = Job.of(dense(), StrategyOptions(tp=4, sequence_parallel=True))

    backward = of_layer(job, "backward")

    assert backward == {
        ("all_gather", ("tp",), STATE_BYTES): 2 + 2,  # conjugates of the scatters; kept shards
        ("reduce_scatter", ("tp",), STATE_BYTES): 2,
    }


def test_the_vocabulary_parallel_embedding_reduces_its_output_once() -> None:
    """Shoeybi et al. 2019, §3: an all-reduce (g) after the input embedding."""
    job = Job.of(dense(), StrategyOptions(tp=4))

    found = job.collectives("embedding")

    assert found == [
        Collective(phase="forward", kind="all_reduce", axes=("tp",), size_bytes=STATE_BYTES)
    ]


def test_the_parallel_loss_moves_one_number_per_token_instead_of_the_logits() -> None:
    """Shoeybi et al. 2019, §3: fusing the loss reduces communication from b*s*v to b*s."""
    job = Job.of(dense(), StrategyOptions(tp=4))

    forward = of_layer(job, "forward", "head")

    assert forward == {("all_reduce", ("tp",), 1 * SEQUENCE * WIDTH): 1}
    assert SEQUENCE * WIDTH < SEQUENCE * VOCABULARY * WIDTH


def test_norm_weights_are_reduced_over_tp_where_positions_are_split() -> None:
    """Megatron-LM reduces gradients of norms over the tensor group under sequence parallelism."""
    job = Job.of(dense(), StrategyOptions(tp=4, dp=2, sequence_parallel=True))
    norms = [g for g in job.synchronised("layer") if "tp" in g.reduce_axes]

    sizes = [float(group.reduce_bytes[0]) for group in norms]

    assert sizes == [2 * (HIDDEN + HIDDEN) * 2.0]  # two norms, weight and bias


# ---------------------------------------------------------------- data parallelism


#: Reduced and gathered at the same width, as in the ZeRO paper (fp16 throughout).
SAME_WIDTH = {"reduce_bytes": 2.0, "gather_bytes": 2.0}


@pytest.mark.parametrize(
    ("sharding", "psi"), [("none", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)]
)
@pytest.mark.parametrize("ranks", [2, 8])
def test_zero_moves_the_volumes_of_its_paper(sharding: str, psi: int, ranks: int) -> None:
    """Rajbhandari et al., SC 2020, §7: 2 psi for DDP and stages 1 and 2, 3 psi for stage 3.

    The paper leaves out the factor (N - 1) / N of its ring algorithms.
    """
    model = dense()
    job = Job.of(
        model, StrategyOptions(dp=ranks, sharding=sharding), global_batch=ranks, traits=SAME_WIDTH
    )
    expected = psi * model.parameters * 2.0 * (ranks - 1) / ranks

    assert sent_per_step(job) == pytest.approx(expected, rel=1e-12)


def test_ddp_all_reduces_every_gradient_once_over_the_replicas() -> None:
    """Li et al., VLDB 2020: gradients of the whole model, whatever the buckets."""
    model = dense()
    job = Job.of(model, StrategyOptions(dp=4), global_batch=4)
    blocks = ("embedding", "layer", "layer", "head")
    groups = [group for block in blocks for group in job.synchronised(block)]

    reduced = sum(float(group.reduce_bytes[0]) for group in groups)

    assert reduced == model.parameters * 2.0  # NeMo reduces in 16 bits
    assert {(group.scatter_axes, group.reduce_axes) for group in groups} == {((), ("dp",))}


def test_accumulated_gradients_are_reduced_once_a_step() -> None:
    """Li et al., VLDB 2020, §3.2.4 (no_sync): four micro-batches send as much as one."""
    one = Job.of(dense(), StrategyOptions(dp=4), global_batch=4)
    four = Job.of(dense(), StrategyOptions(dp=4), global_batch=16)

    assert sent_per_step(four) == sent_per_step(one)


def test_sharded_gradients_are_scattered_after_each_micro_batch() -> None:
    """ZeRO-2 keeps no whole gradient to accumulate into, so every micro-batch scatters."""
    model = dense()
    job = Job.of(model, StrategyOptions(dp=4, sharding="zero2"), global_batch=16, traits=SAME_WIDTH)
    per_pass = model.parameters * 2.0 * 3 / 4

    assert sent_per_step(job) == pytest.approx((4 + 1) * per_pass, rel=1e-12)


def test_hybrid_sharding_gathers_inside_and_reduces_shards_across() -> None:
    """Zhao et al., "PyTorch FSDP", VLDB 2023, §3.2.2: reduce-scatter in, all-reduce across."""
    model = dense()
    job = Job.of(
        model,
        StrategyOptions(dp=2, fsdp=4, sharding="hybrid"),
        global_batch=8,
        traits=SAME_WIDTH,
    )
    whole = model.parameters * 2.0
    gathered, scattered, across = 2 * whole * 3 / 4, whole * 3 / 4, whole / 4 * 2 * 1 / 2

    assert sent_per_step(job) == pytest.approx(gathered + scattered + across, rel=1e-12)


def test_tensor_parallel_ranks_synchronise_their_own_part_only() -> None:
    """Narayanan et al., SC 2021, §2.1: data-parallel groups hold the same shard of the model."""
    alone = Job.of(dense(), StrategyOptions(dp=2), global_batch=2)
    split = Job.of(dense(), StrategyOptions(dp=2, tp=2), global_batch=2)

    def of_products(job: Job) -> float:
        return max(float(group.reduce_bytes[0]) for group in job.synchronised("layer"))

    norms = 4 * HIDDEN * 2.0  # two norms of weight and bias, which are not split

    assert of_products(split) == (of_products(alone) - norms) / 2


# ---------------------------------------------------------------- context parallelism


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_context_parallelism_gathers_keys_and_values_and_scatters_their_gradients(
    kv_heads: int,
) -> None:
    """Llama 3 (2024), §3.3.2: all-gather of K and V, small under grouped-query attention."""
    job = Job.of(dense(kv_heads=kv_heads), StrategyOptions(cp=4))
    kv_bytes = 2 * SEQUENCE * kv_heads * (HIDDEN // 8) * WIDTH

    assert of_layer(job, "forward") == {("all_gather", ("cp",), kv_bytes): 1}
    assert of_layer(job, "backward") == {
        ("all_gather", ("cp",), kv_bytes): 1,  # only the own part was kept
        ("reduce_scatter", ("cp",), kv_bytes): 1,
    }


def test_context_parallel_ranks_reduce_gradients_like_replicas() -> None:
    """They hold the same parameters and saw different positions."""
    job = Job.of(dense(), StrategyOptions(cp=2, dp=2), global_batch=2)

    axes = {frozenset(group.reduce_axes) for group in job.synchronised("layer")}

    assert axes == {frozenset({"dp", "cp"})}


# ---------------------------------------------------------------- mixtures of experts


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("top_k", [1, 2])
def test_experts_exchange_tokens_twice_each_way(ep: int, top_k: int) -> None:
    """GShard (Lepikhin et al. 2020), §3.2: all-to-all out and back; the same for gradients.

    Each rank hands on its tokens once for each of the `k` experts that they visit.
    """
    job = Job.of(mixture(top_k=top_k), StrategyOptions(ep=ep))
    routed_bytes = 1 * SEQUENCE * top_k * HIDDEN * WIDTH

    both = {("all_to_all", ("ep",), routed_bytes): 2}

    assert of_layer(job, "forward", "moe_layer") == both
    assert of_layer(job, "backward", "moe_layer") == both


def test_experts_spread_over_tensor_ranks_exchange_their_share_of_the_tokens() -> None:
    """With expert tensor parallelism of one, each of the ranks routes s / tp positions."""
    job = Job.of(mixture(), StrategyOptions(ep=4, tp=2, sequence_parallel=True))
    routed_bytes = 1 * SEQUENCE / 2 * 2 * HIDDEN * WIDTH

    found = of_layer(job, "forward", "moe_layer")

    assert found[("all_to_all", ("ep", "tp"), routed_bytes)] == 2
    assert found[("all_gather", ("tp",), STATE_BYTES)] == 1  # attention only
    assert found[("reduce_scatter", ("tp",), STATE_BYTES)] == 1


def test_a_routed_token_travels_in_as_many_copies_as_it_visits_experts() -> None:
    """Both exchanges of a pass carry top-k copies, not one for every expert there is."""
    program = Job.of(mixture(top_k=2), StrategyOptions(ep=4)).program()
    (layer,) = (p for p in program.programs if p.block == "moe_layer")

    routings = [getattr(step, "routing", UNROUTED) for step in (*layer.forward, *layer.backward)]

    assert [routing.copies for routing in routings if routing != UNROUTED] == [2.0] * 4


def test_gradients_of_experts_stay_out_of_the_expert_axis() -> None:
    """Ranks along `ep` hold different experts; only replicas of an expert reduce its gradient."""
    job = Job.of(mixture(), StrategyOptions(dp=2, ep=4), global_batch=8)
    layer = 3 * HIDDEN * 4 * HIDDEN * 8 / 4  # gate, up and down of a quarter of eight experts

    experts = [g for g in job.synchronised("moe_layer") if g.reduce_axes == ("dp",)]

    assert [float(group.reduce_bytes[0]) for group in experts] == [layer * 2.0]


def test_shared_experts_are_a_column_and_row_pair() -> None:
    """DeepSeekMoE's shared experts see every token: one gather and one scatter, as an MLP."""
    job = Job.of(
        mixture(shared_ffn=64, shared_gate=True, dropout=0.1, norm_placement="sandwich"),
        StrategyOptions(ep=2, tp=2, sequence_parallel=True),
    )

    found = of_layer(job, "forward", "moe_layer")

    assert found[("all_gather", ("tp",), STATE_BYTES)] == 2
    assert found[("reduce_scatter", ("tp",), STATE_BYTES)] == 2
    assert {kind for kind, *_ in found} == {"all_gather", "reduce_scatter", "all_to_all"}
