"""Models, and strategies that `plan` leaves to those who know that they want them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "DECODER",
    "GROUPED",
    "MIXTURE",
    "OWN",
    "PICKED",
    "SHALLOW",
    "SHALLOW_MIXTURE",
    "STACK",
]
DECODER = {
    "transformer": {
        "layers": 4,
        "hidden": 16,
        "heads": 4,
        "kv_heads": 4,
        "vocab": 27,
        "ffn": 24,
        "gated": True,
        "activation": "silu",
        "positions": "rotary",
        "norm": "rms",
    }
}
#: Rotary positions, two queries to a key, a bias here and there.
GROUPED = {
    "transformer": {
        "layers": 2,
        "hidden": 16,
        "heads": 4,
        "kv_heads": 2,
        "vocab": 27,
        "qkv_bias": True,
        "positions": "learned",
        "max_positions": 16,
        "mlp_bias": True,
        "tied_embedding": True,
    }
}
#: Two of four experts a token; the last layer is dense, and others have an expert for all.
MIXTURE = {
    "transformer": {
        **DECODER["transformer"],
        "layers": 3,
        "experts": 4,
        "top_k": 2,
        "expert_ffn": 12,
        "shared_ffn": 8,
        "moe_layers": [0, 1],
    }
}
#: What no pipeline divides is the same in each layer.
SHALLOW = {"transformer": DECODER["transformer"] | {"layers": 2}}
SHALLOW_MIXTURE = {"transformer": MIXTURE["transformer"] | {"layers": 2, "moe_layers": [0]}}
STACK = {"ffn": {"width": 20, "depth": 5, "activation": "tanh", "inputs": 64, "outputs": 10}}
OWN = {
    "module": f"{Path(__file__).with_name('own_models.py')}:attending",
    "inputs": ["float32[batch, 6, 16]"],
}


#: What `plan` leaves to those who know that they want it.
PICKED: Mapping[int, Mapping[str, tuple[Mapping[str, Any], dict[str, Any]]]] = {
    2: {
        "hsdp": (DECODER, {"preset": "hsdp", "fsdp": 2, "micro_batch": 2}),
        "operators": (
            DECODER,
            {"preset": "fsdp", "dp": 2, "micro_batch": 2, "recompute": "selective_operator"},
        ),
        "qkv": (
            DECODER,
            {"preset": "zero2", "dp": 2, "micro_batch": 2, "recompute": "selective_qkv"},
        ),
        "attention-matmul": (
            DECODER,
            {
                "preset": "zero2",
                "dp": 2,
                "micro_batch": 2,
                "recompute": "selective_attention_matmul",
            },
        ),
        "qkv-in-parts": (
            DECODER,
            {"preset": "megatron", "tp": 2, "micro_batch": 4, "recompute": "selective_qkv"},
        ),
        "operators-in-parts": (
            MIXTURE,
            {"preset": "tensor", "tp": 2, "micro_batch": 4, "recompute": "selective_operator"},
        ),
        "matmuls": (
            DECODER,
            {"preset": "tensor", "tp": 2, "micro_batch": 4, "recompute": "selective_matmul"},
        ),
        "every-second": (
            DECODER,
            {"preset": "ddp", "dp": 2, "micro_batch": 2, "recompute": "block_2"},
        ),
        "ulysses": (DECODER, {"preset": "zero1", "cp": 2, "micro_batch": 4, "context": "ulysses"}),
        "gathered-in-row": (
            DECODER,
            {
                "preset": "ddp",
                "cp": 2,
                "micro_batch": 4,
                "context": "gather",
                "context_order": "contiguous",
            },
        ),
        "ring-in-row": (
            GROUPED,
            {
                "preset": "fsdp",
                "cp": 2,
                "micro_batch": 4,
                "context": "ring",
                "context_order": "contiguous",
            },
        ),
        "zb-h1": (DECODER, {"pp": 2, "schedule": "zb-h1", "micro_batch": 2}),
        "zb-h2": (DECODER, {"pp": 2, "schedule": "zb-h2", "micro_batch": 2, "recompute": "full"}),
        "given-order": (
            DECODER,
            {"pp": 2, "micro_batch": 4, "schedule": "custom", "order": ["F0 F1 B1 B0"] * 2},
        ),
        "uneven": (DECODER, {"pp": 2, "stage_layers": [1, 3], "micro_batch": 2}),
        "grouped": (
            GROUPED,
            {"preset": "megatron", "tp": 2, "micro_batch": 4, "recompute": "selective"},
        ),
        "grouped-sharded": (
            GROUPED,
            {"preset": "fsdp", "dp": 2, "micro_batch": 2, "recompute": "full"},
        ),
        "tied-stages": (GROUPED, {"pp": 2, "micro_batch": 2, "schedule": "zb-h1"}),
        "tied-folded": (
            {"transformer": GROUPED["transformer"] | {"layers": 4}},
            {"pp": 2, "micro_batch": 2, "schedule": "zb-v"},
        ),
        "stack": (STACK, {"preset": "fsdp", "dp": 2, "micro_batch": 2, "recompute": "full"}),
        "experts": (MIXTURE, {"preset": "ddp", "ep": 2, "micro_batch": 2}),
        "experts-sharded": (
            MIXTURE,
            {"preset": "fsdp", "ep": 2, "micro_batch": 2, "recompute": "full"},
        ),
        "experts-whole": (MIXTURE, {"preset": "megatron", "tp": 2, "micro_batch": 2}),
        "experts-everywhere": (
            MIXTURE,
            {"preset": "megatron", "tp": 2, "micro_batch": 4, "expert_over_tensor": True, "ep": 1},
        ),
        "both-ways": (DECODER, {"pp": 2, "schedule": "dualpipe", "micro_batch": 2}),
        "tied-both-ways": (
            GROUPED,
            {"pp": 2, "schedule": "dualpipe", "micro_batch": 2, "recompute": "full"},
        ),
        "stack-in-stages": (STACK, {"pp": 2, "micro_batch": 2, "schedule": "zb-h1"}),
        "own": (OWN, {"preset": "fsdp", "dp": 2, "micro_batch": 2}),
        "own-zero1": (OWN, {"preset": "zero1", "dp": 2, "micro_batch": 2, "recompute": "full"}),
    },
    4: {
        "hsdp": (DECODER, {"preset": "hsdp", "fsdp": 2, "dp": 2, "micro_batch": 2}),
        "hsdp-stages": (
            DECODER,
            {"preset": "hsdp", "fsdp": 2, "pp": 2, "schedule": "dualpipev", "micro_batch": 2},
        ),
        "zb-h1-shared": (
            DECODER,
            {"preset": "megatron", "tp": 2, "pp": 2, "schedule": "zb-h1", "micro_batch": 2},
        ),
        "zb-h2-sharded": (
            DECODER,
            {"preset": "fsdp", "dp": 2, "pp": 2, "schedule": "zb-h2", "micro_batch": 2},
        ),
        "ulysses-heads": (
            DECODER,
            {
                "preset": "fsdp",
                "tp": 2,
                "cp": 2,
                "micro_batch": 4,
                "context": "ulysses",
                "sequence_parallel": True,
            },
        ),
        "tied-sharded": (GROUPED, {"preset": "fsdp", "dp": 2, "pp": 2, "micro_batch": 2}),
        "tied-shared": (GROUPED, {"preset": "megatron", "tp": 2, "pp": 2, "micro_batch": 2}),
        "experts": (MIXTURE, {"preset": "zero1", "ep": 4, "micro_batch": 1}),
        "experts-hybrid": (MIXTURE, {"preset": "hsdp", "fsdp": 2, "ep": 2, "micro_batch": 2}),
        "experts-cut": (MIXTURE, {"preset": "megatron", "tp": 2, "ep": 2, "micro_batch": 2}),
        "experts-spread": (
            MIXTURE,
            {"preset": "megatron", "tp": 2, "ep": 2, "micro_batch": 4, "expert_over_tensor": True},
        ),
        "experts-of-tensor": (
            MIXTURE,
            {"preset": "tensor", "tp": 2, "ep": 2, "expert_over_tensor": True, "micro_batch": 2},
        ),
        "experts-in-stages": (
            MIXTURE,
            {"preset": "zero2", "ep": 2, "pp": 2, "schedule": "zb-h1", "micro_batch": 1},
        ),
        "experts-of-positions": (
            MIXTURE,
            {"preset": "fsdp", "ep": 2, "cp": 2, "context": "ring", "micro_batch": 2},
        ),
        "both-ways-sharded": (
            DECODER,
            {"preset": "fsdp", "dp": 2, "pp": 2, "schedule": "dualpipe", "micro_batch": 2},
        ),
        "both-ways-shared": (
            GROUPED,
            {"preset": "megatron", "tp": 2, "pp": 2, "schedule": "dualpipe", "micro_batch": 2},
        ),
        "four-both-ways": (DECODER, {"pp": 4, "schedule": "dualpipe", "micro_batch": 1}),
        "four-stages": (DECODER, {"pp": 4, "schedule": "zb-h1", "micro_batch": 2}),
        "stack-pairs": (STACK, {"preset": "megatron", "tp": 2, "dp": 2, "micro_batch": 2}),
        "stack-parts": (STACK, {"preset": "tensor", "tp": 2, "pp": 2, "micro_batch": 2}),
        "stack-all": (STACK, {"preset": "fsdp", "tp": 2, "dp": 2, "micro_batch": 2}),
    },
}
