"""Jobs that two ranks train, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = [
    "ATTENDING",
    "BATCH",
    "CLASSES",
    "DEPTH",
    "GHOSTS",
    "JOBS",
    "PHANTOM_OF_TWO",
    "RATE",
    "STACK",
    "STEPS",
    "TENSOR_OF_TWO",
    "TRANSFORMER",
    "WIDTH",
    "own_model",
]
WIDTH, DEPTH, BATCH, STEPS, RATE, GHOSTS = 24, 3, 8, 4, 0.1, 3
TRANSFORMER = {
    "model": {
        "transformer": {
            "layers": 1,
            "hidden": 16,
            "heads": 4,
            "kv_heads": 2,
            "vocab": 30,
            "ffn": 24,
            "gated": True,
            "activation": "silu",
            "positions": "learned",
            "max_positions": 16,
            "qkv_bias": True,
            "attention_out_bias": True,
            "tied_embedding": True,
        }
    },
    "data": {"sequence_length": 16, "source": "digits"},
    "optimizer": "adam",
    "training": {"learning_rate": 0.01},
}
CLASSES = {
    "model": {
        "ffn": {"width": 24, "depth": 3, "inputs": 64, "outputs": 10, "loss": "cross_entropy"}
    },
    "data": {"source": "digits"},
}


def own_model(function: str, inputs: str, strategy: Any) -> dict[str, Any]:
    """A job of a module as users write them."""
    file = Path(__file__).with_name("own_models.py")
    return {
        "model": {"module": f"{file}:{function}", "inputs": [inputs]},
        "strategy": strategy,
    }


STACK = ("stack", "float32[batch, 24]")
ATTENDING = ("attending", "float32[batch, 6, 16]")
TENSOR_OF_TWO = {"preset": "tensor", "tp": 2}
PHANTOM_OF_TWO = {"preset": "phantom", "tp": 2, "ghosts": GHOSTS}

JOBS: dict[str, dict[str, Any]] = {
    "own-ddp": own_model(*STACK, {"preset": "ddp", "micro_batch": 2}),
    "own-tensor": own_model(*STACK, TENSOR_OF_TWO),
    "own-phantom": own_model(*STACK, PHANTOM_OF_TWO),
    "own-named": own_model(
        "curved", "float32[batch, 24]", {**PHANTOM_OF_TWO, "phantom_layers": ["second"]}
    ),
    "attending-ddp": own_model(*ATTENDING, "ddp"),
    "attending-tensor": own_model(*ATTENDING, TENSOR_OF_TWO),
    "attending-phantom": own_model(*ATTENDING, PHANTOM_OF_TWO),
    **{
        f"{name}-{kind}": {"strategy": strategy, **changes}
        for name, changes in {
            "forward": {"workload": "forward"},
            "still": {"training": {"learning_rate": 1e-30}},
        }.items()
        for kind, strategy in {
            "ddp": {"preset": "ddp", "micro_batch": 2},
            "zero3": "zero3",
            "tensor": TENSOR_OF_TWO,
            "phantom": PHANTOM_OF_TWO,
        }.items()
    },
    "ddp": {"strategy": "ddp"},
    "accumulated": {"strategy": {"preset": "ddp", "micro_batch": 2}},
    "tensor": {"strategy": {"preset": "tensor", "tp": 2}},
    "megatron": {"strategy": {"preset": "megatron", "tp": 2}},
    "phantom": {"strategy": {"preset": "phantom", "tp": 2, "ghosts": GHOSTS}},
    "shared": {"strategy": {"preset": "phantom", "tp": 2, "ghosts": GHOSTS, "variant": "shared"}},
    "low-rank": {"strategy": {"preset": "low_rank", "tp": 2, "ghosts": GHOSTS}},
    "low-rank-shared": {
        "strategy": {"preset": "low_rank", "tp": 2, "ghosts": GHOSTS, "variant": "shared"}
    },
    "attending-all": own_model(*ATTENDING, {**PHANTOM_OF_TWO, "phantom_layers": ["*"]}),
    "attending-shared": own_model(
        *ATTENDING, {**PHANTOM_OF_TWO, "variant": "shared", "phantom_layers": ["*_proj"]}
    ),
    "attending-qkvo": own_model(
        *ATTENDING, {**PHANTOM_OF_TWO, "phantom_layers": ["self_attn.*"], "regather": True}
    ),
    "attending-q": own_model(*ATTENDING, {**PHANTOM_OF_TWO, "phantom_layers": ["*.q_proj"]}),
    "attending-o": own_model(*ATTENDING, {**PHANTOM_OF_TWO, "phantom_layers": ["*.o_proj"]}),
    "block": {"strategy": {"preset": "phantom", "tp": 2, "ghosts": 0}},
    "classes-ddp": {**CLASSES, "strategy": "ddp"},
    "classes-tensor": {**CLASSES, "strategy": {"preset": "tensor", "tp": 2}},
    "decoder-ddp": {**TRANSFORMER, "strategy": {"preset": "ddp", "micro_batch": 4}},
    "decoder-tensor": {**TRANSFORMER, "strategy": {"preset": "tensor", "tp": 2, "micro_batch": 8}},
    "decoder-megatron": {
        **TRANSFORMER,
        "strategy": {"preset": "megatron", "tp": 2, "micro_batch": 8},
    },
    "plain-megatron": {
        **TRANSFORMER,
        "model": {"transformer": {"layers": 2, "hidden": 16, "heads": 4, "vocab": 30}},
        "strategy": {"preset": "megatron", "tp": 2, "micro_batch": 8},
    },
    "decoder-phantom": {
        **TRANSFORMER,
        "strategy": {"preset": "phantom", "tp": 2, "ghosts": 2, "micro_batch": 8},
    },
    **{
        f"again-{kind}": {"strategy": {**strategy, "recompute": "full"}}
        for kind, strategy in {
            "tensor": TENSOR_OF_TWO,
            "megatron": {"preset": "megatron", "tp": 2},
            "phantom": PHANTOM_OF_TWO,
        }.items()
    },
    "decoder-again": {
        **TRANSFORMER,
        "strategy": {**PHANTOM_OF_TWO, "micro_batch": 8, "recompute": "full"},
    },
    "attending-again": own_model(*ATTENDING, {**TENSOR_OF_TWO, "recompute": "full"}),
    "target": {
        "strategy": {"preset": "tensor", "tp": 2},
        "training": {"steps": 400, "target_loss": 0.6},
    },
}
