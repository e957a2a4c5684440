"""FLOP that recomputation executes, against those that PyTorch's checkpoints execute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from wattree import job_from_mapping, simulate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_BLOCK = {"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 96}
_SAMPLES, _TOKENS, _REPLICAS = 2, 32, 8


def _executed(checkpoint: Callable[[Any], None]) -> float:
    """Return the FLOP of a step of one process."""
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.LlamaConfig(
        hidden_size=_BLOCK["hidden"],
        intermediate_size=_BLOCK["ffn"],
        num_hidden_layers=_BLOCK["layers"],
        num_attention_heads=_BLOCK["heads"],
        num_key_value_heads=_BLOCK["kv_heads"],
        vocab_size=_BLOCK["vocab"],
        use_cache=False,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).train()
    checkpoint(model)
    tokens = torch.zeros((_SAMPLES, _TOKENS), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens).loss.backward()
    return float(counter.get_total_flops())


def _predicted(recompute: str, **traits: Any) -> float:
    """Return the FLOP of a step of one process."""
    job = job_from_mapping(
        {
            "model": {"transformer": {**_BLOCK, "gated": True, "positions": "rotary"}},
            "data": {"sequence_length": _TOKENS, "global_batch": _SAMPLES * _REPLICAS},
            "precision": "bf16",
            "optimizer": "adamw",
            "cluster": {"node": "dgx-h100", "nodes": 1},
            "software": "hf-trainer",
            "traits": {"fused_attention": False, **traits},
            "strategy": {"preset": "ddp", "dp": _REPLICAS, "recompute": recompute},
        }
    )
    result = simulate(job).result
    return result.hfu / result.mfu * result.model_flop_per_step / _REPLICAS


def _checkpointed(model: Any, **options: Any) -> None:
    """Checkpoint every layer."""
    from torch.utils.checkpoint import checkpoint

    for layer in model.model.layers:
        forward = layer.forward
        layer.forward = lambda *given, _forward=forward, **named: checkpoint(
            _forward, *given, **options, **named
        )


def _every_second_product(context: Any, operator: Any, *_: Any, **__: Any) -> Any:
    """Keep the first of the products of a layer, the third, and so on, as torchtitan does."""
    from torch.utils.checkpoint import CheckpointPolicy

    if operator is not torch.ops.aten.mm.default:
        kept = operator is torch.ops.aten.bmm.default
    else:
        counts = _COUNTS["again" if context.is_recompute else "first"]
        counts.append(operator)
        kept = len(counts) % 2 == 1
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


_COUNTS: dict[str, list[Any]] = {"first": [], "again": []}


def test_without_recomputation_each_flop_is_found() -> None:
    """The model is the same."""
    assert _predicted("none") == pytest.approx(_executed(lambda _: None))


@pytest.mark.parametrize("stops", [True, False])
def test_early_stops_leave_out_the_last_product(*, stops: bool) -> None:
    """What it makes is no one's: only its operands were kept for backward."""
    executed = _executed(lambda model: _checkpointed(model, use_reentrant=False, early_stop=stops))

    assert _predicted("full", early_stop=stops) == pytest.approx(executed)


def test_every_second_product_is_kept_in_the_order_of_modules() -> None:
    """Layers have seven products: keys, the output of attention and one up-projection run again."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    def contexts() -> Any:
        for counts in _COUNTS.values():
            counts.clear()
        return create_selective_checkpoint_contexts(_every_second_product)

    executed = _executed(
        lambda model: _checkpointed(model, use_reentrant=False, context_fn=contexts)
    )

    assert _predicted("selective_operator") == pytest.approx(executed)
