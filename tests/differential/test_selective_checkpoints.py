"""What PyTorch's selective checkpoints keep of a layer, against predictions for torchtitan."""

from __future__ import annotations

import gc
from collections import defaultdict
from typing import Any

import pytest

from wattree import job_from_mapping, simulate

torch = pytest.importorskip("torch")

_LAYERS, _HIDDEN, _WIDE, _TOKENS = 8, 64, 160, 4096

#: Otherwise the sum after it, run again, reads it.
_STOPS = {"early_stop": True}


def _policy() -> Any:
    """Return the contexts of a policy that recomputes every second matmul, as torchtitan's does."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    counts: dict[bool, int] = defaultdict(int)

    def choose(context: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if function is not torch.ops.aten.mm.default:
            return CheckpointPolicy.PREFER_RECOMPUTE
        counts[context.is_recompute] += 1
        is_second = counts[context.is_recompute] % 2 == 0
        return CheckpointPolicy.PREFER_RECOMPUTE if is_second else CheckpointPolicy.MUST_SAVE

    return create_selective_checkpoint_contexts(choose)


def _kept_elements() -> int:
    """Return the elements that a gated feed-forward part keeps, but for its input and output."""
    from torch.utils.checkpoint import checkpoint

    up, gate, down = (
        torch.nn.Linear(*sizes, bias=False)
        for sizes in ((_HIDDEN, _WIDE), (_HIDDEN, _WIDE), (_WIDE, _HIDDEN))
    )

    def part(x: Any) -> Any:
        return x + down(torch.nn.functional.silu(up(x)) * gate(x))

    x = torch.zeros((_TOKENS, _HIDDEN), requires_grad=True)
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, torch.Tensor)}
    out = checkpoint(part, x, use_reentrant=False, context_fn=_policy, preserve_rng_state=False)
    live = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    new = {
        each.untyped_storage().data_ptr(): each.numel()
        for each in live
        if id(each) not in before and each is not out
    }
    return sum(new.values())


def _peak_bytes(**more: Any) -> float:
    """Return the activations at the peak of one device."""
    sizes = {"layers": _LAYERS, "hidden": _HIDDEN, "ffn": _WIDE, "vocab": 96}
    job = {
        "model": {"transformer": {**sizes, "heads": 4, "gated": True}},
        "data": {"sequence_length": _TOKENS, "global_batch": 8},
        "precision": "bf16",
        "cluster": {"node": "dgx-h100"},
        "software": "torchtitan",
        "traits": _STOPS,
        "strategy": {"dp": 8, "sharding": "zero3", "recompute": "selective_operator"},
    }
    tensors = simulate(job_from_mapping({**job, **more})).result.memory.by_category
    return float(tensors["activations"])


def test_the_last_matmul_of_a_layer_waits_for_a_backward_that_does_not_need_it() -> None:
    """It is the third of a gated feed-forward part, of seven in a layer."""
    assert _kept_elements() == _TOKENS * (_WIDE + _HIDDEN)  # the first of three, and the third
    dropped = {**_STOPS, "saves_listed": False}
    assert _peak_bytes() - _peak_bytes(traits=dropped) == _LAYERS * _TOKENS * _HIDDEN * 2
    # A compiler drops what nothing reads.
    assert _peak_bytes(compile=True) == _peak_bytes(compile=True, traits=dropped)


def test_a_gathered_input_waits_whole_unless_matmuls_read_it_piece_by_piece() -> None:
    """PyTorch's DTensor: one of attention and one of the feed-forward part, in each layer."""
    split = {"dp": 2, "tp": 4, "sharding": "zero3", "recompute": "none"}
    whole, part = (
        _peak_bytes(strategy=split, traits={"saves_gathered": saves}) for saves in (True, False)
    )
    tokens = _TOKENS - _TOKENS // 4
    assert whole - part == pytest.approx(2 * _LAYERS * tokens * _HIDDEN * 2, rel=0.2)
    usual, less = (
        _peak_bytes(
            software="generic", strategy={**split, "sequence_parallel": True}, traits=traits
        )
        for traits in ({}, {"saves_gathered": False})
    )
    assert usual > less  # of software that is not known, too
    split["overlap_tensor"] = True
    overlapped = [
        _peak_bytes(strategy=split, traits={"saves_gathered": saves}) for saves in (True, False)
    ]
    assert overlapped[0] == overlapped[1]
