"""Multi-head latent attention: queries, keys and values from compressed vectors (DeepSeek)."""

from __future__ import annotations

from wattree.capture.attention import attention_core, output_projection
from wattree.capture.attention_sizes import AttentionSizes, sizes_of
from wattree.capture.layer_kind import LayerKind
from wattree.capture.parts import Builder, features
from wattree.graph import (
    AttentionMask,
    DimRole,
    Operand,
    Operator,
    OperatorKind,
)

#: Launches: rotary on queries and keys (10), then split, expand and two concatenations.
_ASSEMBLY_KERNELS = 14


def latent_attention(build: Builder, kind: LayerKind, *, reads: str) -> list[Operator]:
    """Return the operators from the normalized input to the output projection.

    References:
        DeepSeek-AI, "DeepSeek-V2", 2024, arXiv:2405.04434, section 2.1 and appendix C.
    """
    shape, sizes = build.shape, sizes_of(build.shape, kind)
    rank, kv_heads = shape.kv_lora_rank, sizes.kv_heads
    kv_features = kv_heads * (shape.qk_nope_head_dim + shape.v_head_dim)
    compressed = {"kv_compressed": rank, "k_rope": shape.qk_rope_head_dim}
    down, up = "attention.kv_down", "attention.kv_up"
    return [
        *_queries(build, sizes, reads=reads),
        build.linear(down, reads, shape.hidden, compressed, bias=shape.qkv_bias),
        build.norm("attention.kv_norm", "kv_compressed", writes="kv_latent", width=rank),
        build.linear(up, "kv_latent", rank, kv_features, writes="kv", out_units=kv_heads),
        _rotary(build, sizes, kv_share=kv_features / sizes.q_width),
        attention_core(
            build,
            "attention.core",
            sizes,
            q="q_rotated",
            kv="kv_rotated",
            mask=AttentionMask(causal=shape.causal, window=kind.window),
            kv_ratio=build.seq.extent.coefficient,
        ),
        output_projection(build, sizes, "attention"),
    ]


def _queries(build: Builder, sizes: AttentionSizes, *, reads: str) -> list[Operator]:
    shape, rank = build.shape, build.shape.q_lora_rank
    inputs, width = ("q_latent", rank) if rank else (reads, shape.hidden)
    up = build.linear(
        "attention.q_up", inputs, width, sizes.q_width, writes="q", out_units=sizes.kv_heads
    )
    if not rank:
        return [up]
    written, bias = "q_compressed", shape.qkv_bias
    return [
        build.linear("attention.q_down", reads, shape.hidden, rank, writes=written, bias=bias),
        build.norm("attention.q_norm", written, writes="q_latent", width=rank),
        up,
    ]


def _rotary(build: Builder, sizes: AttentionSizes, *, kv_share: float) -> Operator:
    """Return rotation and assembly: the one rotated key part is copied to every head."""
    dims = ("batch", "seq", "heads")
    rope = features("rope", build.shape.qk_rope_head_dim, role=DimRole.OPAQUE)
    return Operator(
        path="attention.rotary",
        kind=OperatorKind.ELEMENTWISE,
        function="rotary",
        dims=(*build.lead, sizes.dim, rope),
        inputs=(
            Operand(tensor="q", dims=dims),
            Operand(tensor="kv", dims=dims, fraction=kv_share),
            Operand(tensor="k_rope", dims=("batch", "seq", "rope")),
        ),
        outputs=(
            Operand(tensor="q_rotated", dims=dims),
            Operand(tensor="kv_rotated", dims=dims, fraction=sizes.kv_share),
        ),
        kernels=_ASSEMBLY_KERNELS,
    )
