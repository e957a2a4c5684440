"""Sizes that a configuration of any family must state, under every family's own names."""

from __future__ import annotations

from typing import Any, Final

_WIDTH: Final = ("hidden_size", "n_embd", "d_model", "embedding_size")
_LAYERS: Final = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
)  # fmt: skip
_HEADS: Final = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads",
    "encoder_attention_heads", "decoder_attention_heads",
)  # fmt: skip
_FFN: Final = (
    "intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim",
    "moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp",
)  # fmt: skip
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_HEAD_SIZES: Final = ("d_kv", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_POSITIONS: Final = ("n_positions", "max_position_embeddings")

#: A small model, whatever the family. Readers look at the names of their own family only.
SIZES: Final[dict[str, Any]] = {
    **dict.fromkeys(_WIDTH, 64),
    **dict.fromkeys(_LAYERS, 2),
    **dict.fromkeys(_HEADS, 4),
    **dict.fromkeys(_FFN, 128),
    **dict.fromkeys(_EXPERTS, 8),
    **dict.fromkeys(_HEAD_SIZES, 16),
    **dict.fromkeys(_POSITIONS, 32),
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 100,
    "hybrid_override_pattern": "*-",  # attention, then a feed-forward part
    "ffn_config": {"ffn_hidden_size": 128, "moe_num_experts": 8, "moe_top_k": 2},
}
