"""Multi-head latent attention: queries, keys and values from compressed vectors (DeepSeek)."""

from __future__ import annotations

from wattree.capture.attention import attention_core
from wattree.capture.attention_sizes import AttentionSizes, sizes_of
from wattree.capture.layer_kind import LayerKind
from wattree.capture.parts import BATCH, Output, features, linear, norm
from wattree.capture.shape import TransformerShape
from wattree.graph import (
    AttentionMask,
    DimRole,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
)

#: Launches: rotary on queries and keys (10), then split, expand and two concatenations.
_ASSEMBLY_KERNELS = 14


def latent_attention(
    shape: TransformerShape, kind: LayerKind, *, reads: str, writes: str, seq: IterationDim
) -> list[Operator]:
    """Return the operators from the normalized input to the output projection.

    References:
        DeepSeek-AI, "DeepSeek-V2", 2024, arXiv:2405.04434, section 2.1 and appendix C.
    """
    sizes = sizes_of(shape, kind)
    return [
        *_queries(shape, sizes, reads=reads, seq=seq),
        *_keys_and_values(shape, sizes, reads=reads, seq=seq),
        _rotary(shape, sizes, seq=seq),
        attention_core(
            "attention.core",
            sizes,
            q="q_rotated",
            kv="kv_rotated",
            mask=AttentionMask(causal=shape.causal, window=kind.window),
            seq=seq,
            kv_ratio=seq.extent.coefficient,
        ),
        linear(
            "attention.out",
            reads="attention.core.context",
            writes=writes,
            in_features=shape.context_width,
            out_features=shape.hidden,
            in_units=sizes.heads,
            bias=shape.attention_out_bias,
            seq=seq,
        ),
    ]


def _queries(
    shape: TransformerShape, sizes: AttentionSizes, *, reads: str, seq: IterationDim
) -> list[Operator]:
    if not shape.q_lora_rank:
        return [
            linear(
                "attention.q_up",
                reads=reads,
                writes="q",
                in_features=shape.hidden,
                out_features=sizes.q_width,
                out_units=sizes.kv_heads,
                seq=seq,
            )
        ]
    return [
        linear(
            "attention.q_down",
            reads=reads,
            writes="q_compressed",
            in_features=shape.hidden,
            out_features=shape.q_lora_rank,
            bias=shape.qkv_bias,
            seq=seq,
        ),
        norm(
            "attention.q_norm",
            shape,
            reads="q_compressed",
            writes="q_latent",
            width=shape.q_lora_rank,
            seq=seq,
        ),
        linear(
            "attention.q_up",
            reads="q_latent",
            writes="q",
            in_features=shape.q_lora_rank,
            out_features=sizes.q_width,
            out_units=sizes.kv_heads,
            seq=seq,
        ),
    ]


def _keys_and_values(
    shape: TransformerShape, sizes: AttentionSizes, *, reads: str, seq: IterationDim
) -> list[Operator]:
    rank, rope = shape.kv_lora_rank, shape.qk_rope_head_dim
    return [
        linear(
            "attention.kv_down",
            reads=reads,
            writes=[
                Output(tensor="kv_compressed", share=rank / (rank + rope)),
                Output(tensor="k_rope", share=rope / (rank + rope)),
            ],
            in_features=shape.hidden,
            out_features=rank + rope,
            bias=shape.qkv_bias,
            seq=seq,
        ),
        norm(
            "attention.kv_norm",
            shape,
            reads="kv_compressed",
            writes="kv_latent",
            width=rank,
            seq=seq,
        ),
        linear(
            "attention.kv_up",
            reads="kv_latent",
            writes="kv",
            in_features=rank,
            out_features=sizes.kv_heads * (shape.qk_nope_head_dim + shape.v_head_dim),
            out_units=sizes.kv_heads,
            seq=seq,
        ),
    ]


def _rotary(shape: TransformerShape, sizes: AttentionSizes, *, seq: IterationDim) -> Operator:
    """Return rotation and assembly: the one rotated key part is copied to every head."""
    dims = ("batch", "seq", "heads")
    kv_share = sizes.kv_heads * (shape.qk_nope_head_dim + shape.v_head_dim) / sizes.q_width
    return Operator(
        path="attention.rotary",
        kind=OperatorKind.ELEMENTWISE,
        function="rotary",
        dims=(
            BATCH,
            seq,
            sizes.dim,
            features("rope", shape.qk_rope_head_dim, role=DimRole.OPAQUE),
        ),
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
