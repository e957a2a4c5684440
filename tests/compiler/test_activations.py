"""What a layer keeps for backward, against the formulas of the papers. All in bytes of one rank.

s, b, h, a are sequence, micro-batch, hidden size and heads; t is the tensor-parallel degree.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.jobs import HEADS, HIDDEN, SEQUENCE, WIDTH, Job, dense, mixture
from wattree.closed_form.block_memory import block_memory
from wattree.strategy import StrategyOptions

SBH = SEQUENCE * HIDDEN
SCORES = 5 * HEADS * SEQUENCE / HIDDEN  # 5 a s / h
GPT = {
    "activation": "gelu",
    "qkv_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
    "positions": "learned",
    "max_positions": 4 * SEQUENCE,
    "dropout": 0.1,
}
UNFUSED, FUSED = "megatron-lm-2021", "megatron-core"


def saved_bytes(job: Job, block: str = "layer") -> float:
    """Return what one layer keeps of one micro-batch."""
    (costs,) = (c for c in job.compiled().costs if c.program.block == block)
    return float(block_memory(costs)[0][0])


def gpt(family: str = UNFUSED, **options: object) -> Job:
    """Return GPT layers as the paper has them."""
    return Job.of(dense(**GPT), StrategyOptions(**options), family=family)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 34 + SCORES),
        ({"tp": 4}, 10 + 24 / 4 + SCORES / 4),
        ({"tp": 4, "sequence_parallel": True}, (34 + SCORES) / 4),
        ({"tp": 4, "recompute": "selective"}, 10 + 24 / 4),
        ({"tp": 4, "sequence_parallel": True, "recompute": "selective"}, 34 / 4),
        ({"recompute": "full"}, 2),
        ({"tp": 4, "recompute": "full"}, 2),
    ],
)
def test_a_layer_keeps_what_korthikanti_counts(options: dict[str, object], expected: float) -> None:
    """Table 2 of arXiv:2205.05198, unfused attention, statistics of norms left out as there."""
    assert saved_bytes(gpt(**options)) == pytest.approx(expected * SBH, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"tp": 4}, {"tp": 4, "sequence_parallel": True}])
def test_fused_attention_keeps_no_scores(options: dict[str, object]) -> None:
    """Dao et al. 2022: nothing grows with the square; as if scores were recomputed."""
    recomputed = saved_bytes(gpt(**options, recompute="selective"))

    assert saved_bytes(gpt(FUSED, **options)) == pytest.approx(recomputed, rel=1e-12)


@pytest.mark.parametrize("sequence", [64, 128, 256])
def test_scores_alone_grow_with_the_square_of_the_sequence(sequence: int) -> None:
    """Softmax's output 2, its dropout mask 1, what dropout leaves 2 bytes a score."""
    jobs = [
        Job.of(dense(**GPT), StrategyOptions(), family=family, sequence=sequence)
        for family in (UNFUSED, FUSED)
    ]
    unfused, fused = (saved_bytes(job) for job in jobs)

    assert unfused - fused == pytest.approx(5 * HEADS * sequence**2, rel=1e-12)


def test_a_gated_layer_keeps_three_values_of_its_inner_width() -> None:
    """SwiGLU: gate, up, and their product; no mask without dropout, no scores if fused.

    Two norms' inputs, what they put out (for the products of weights), q, k, v, the context: eight
    values of the hidden size.
    """
    ffn = 4 * HIDDEN
    job = Job.of(dense(gated=True, norm="rms", activation="silu", ffn=ffn), StrategyOptions())

    assert saved_bytes(job) == WIDTH * (8 * SBH + 3 * SEQUENCE * ffn)


@pytest.mark.parametrize("top_k", [1, 2])
def test_experts_keep_routed_copies_of_every_token(top_k: int) -> None:
    """Each of k copies of a token: its row, gate, up, their product.

    What comes back is kept too, unless the weights of routing are multiplied in before.
    """
    experts, ffn = 8, 4 * HIDDEN
    routed = top_k * SEQUENCE * (HIDDEN + 3 * ffn)
    router = SEQUENCE * (experts + top_k)  # logits, and the weights of the chosen

    found = saved_bytes(
        Job.of(mixture(experts=experts, top_k=top_k), StrategyOptions()), "moe_layer"
    )

    assert found == WIDTH * (8 * SBH + router + routed)


def test_steps_written_out_keep_their_results_unless_compiled() -> None:
    """Beyond fused kernels: 4 bytes of each RMS norm's input, and a gate's activation.

    Shared heads are not repeated. A checkpointed layer still keeps its input alone.
    """
    model = dense(norm="rms", gated=True, activation="silu", ffn=WIDTH, kv_heads=HEADS // 2)
    job = Job.of(model, StrategyOptions())
    traits = ({}, {"written_out": True}, {"written_out": True, "compiled": True})
    checkpointed = Job.of(model, StrategyOptions(recompute="full"), traits=traits[1])

    fused, written, compiled = (saved_bytes(replace(job, traits=each)) for each in traits)

    norms, gate = 2 * 4, 2 * WIDTH / HIDDEN
    assert written - fused == pytest.approx((norms + gate) * SBH, rel=1e-12)
    assert compiled == fused
    assert saved_bytes(checkpointed) == pytest.approx(2 * SBH, rel=1e-12)


def test_a_table_of_relative_positions_is_no_sink() -> None:
    """The layer that owns it keeps the scores that all others keep."""
    model = dense(positions="relative", relative_buckets=4)
    job = Job.of(model, StrategyOptions(), traits={"fused_attention": False, "written_out": True})

    assert saved_bytes(job, "first_layer") == saved_bytes(job, "layer") > 0


def test_values_that_are_views_keep_the_joint_projection() -> None:
    """Queries and keys are kept as they were before their rotation; a layer for each frees them."""
    model = dense(joint_projections=True, kv_heads=HEADS // 2)
    alone = dense(kv_heads=HEADS // 2)
    joint, apart, fused = (
        saved_bytes(Job.of(each, StrategyOptions(), traits={"written_out": choice}))
        for each, choice in ((model, True), (alone, True), (model, False))
    )

    assert apart == fused
    assert joint - fused == pytest.approx(1.5 * WIDTH * SBH, rel=1e-12)


def test_norms_that_end_in_fp32_keep_input_and_result_so() -> None:
    """8 bytes of each norm, where others keep 2 + 4; in fp32 all keep 8."""
    usual, wide = (dense(norm="rms", norm_steps=each) for each in ("usual", "fp32"))
    traits = {"written_out": True, "autocast": False}
    kept = [saved_bytes(Job.of(each, StrategyOptions(), traits=traits)) for each in (usual, wide)]

    assert kept[1] - kept[0] == pytest.approx(2 * 2 * SBH, rel=1e-12)


def test_gelu_written_out_keeps_three_results() -> None:
    """`NewGELUActivation`: half of the input, the tangent, and one more than that."""
    model = dense(activation="gelu_new", ffn=4 * HIDDEN)
    fused, written = (
        saved_bytes(Job.of(model, StrategyOptions(), traits={"written_out": choice}))
        for choice in (False, True)
    )

    assert written - fused == pytest.approx(3 * WIDTH * 4 * SBH, rel=1e-12)


def test_fp32_parameters_are_cast_where_products_need_them_and_sums_are_in_fp32() -> None:
    """Autocast: 16-bit copies of weights, both sums of the residual stream, and all of the GELU.

    Without biases, queries, keys and values have a linear layer each, which copies its input.
    Compiled, only weights and sums are; sharded, none. A checkpointed layer keeps only its input
    wider.
    """
    model = dense(activation="gelu_new", ffn=4 * HIDDEN)
    narrow = Job.of(model, StrategyOptions(), traits={"written_out": True})
    job = replace(narrow, traits={"written_out": True, "autocast": True, "parameter_bytes": 4.0})
    compiled = replace(job, traits={"compiled": True, "autocast": True, "parameter_bytes": 4.0})
    checkpointed = Job.of(model, StrategyOptions(recompute="full"), traits=job.traits)
    sharded = Job.of(model, StrategyOptions(dp=2, sharding="zero3"), traits=job.traits)

    weights = WIDTH * 12 * HIDDEN**2
    sums, gelu, copies = 2 * 2 * SBH, 3 * 2 * 4 * SBH, 2 * 2 * SBH
    more = saved_bytes(job) - saved_bytes(narrow)
    assert more == pytest.approx(weights + sums + gelu + copies, rel=1e-12)
    fused = saved_bytes(replace(narrow, traits={}))
    assert saved_bytes(compiled) - fused == pytest.approx(weights + sums, rel=1e-12)
    assert saved_bytes(sharded) == saved_bytes(replace(sharded, traits=narrow.traits))
    assert saved_bytes(checkpointed) == pytest.approx(4 * SBH, rel=1e-12)
