"""What autocast moves next to the products of a layer, against what PyTorch runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.jobs import HEADS, HIDDEN, SEQUENCE, Job, dense
from tests.cost.counted_steps import counted, torch
from wattree.graph import OperatorKind
from wattree.strategy import StrategyOptions

BIASED = {"activation": "gelu", "ffn": 4 * HIDDEN} | dict.fromkeys(
    ("qkv_bias", "attention_out_bias", "mlp_bias"), True
)
HALF = {"autocast": False, "parameter_bytes": 2.0}
#: Read, read and written, in 16 bits; the gradient of what was read twice is added up likewise.
SUMS_BYTES = 2 * (6 + 6) * SEQUENCE * HIDDEN


def moved_bytes(family: str, kind: OperatorKind = OperatorKind.MATMUL, **traits: Any) -> float:
    """Return the memory traffic of a kind and of sums of a layer, forward and backward."""
    job = Job.of(dense(**BIASED), StrategyOptions(), family=family, traits=traits)
    (costs,) = (each for each in job.compiled().costs if each.program.block == "layer")
    return sum(
        float(traffic[0])
        for phase in (costs.forward, costs.backward)
        for each, traffic in zip(phase.instructions, phase.traffic_bytes, strict=True)
        if getattr(each, "function", "") == "add" or each.kind is kind
    )


class Layer(torch.nn.Module):
    """A layer of GPT whose queries, keys and values have linear layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(HIDDEN) for _ in range(2))
        sides = ((1, 1),) * 4 + ((1, 4), (4, 1))
        self.linear = torch.nn.ModuleList(
            torch.nn.Linear(HIDDEN * read, HIDDEN * made) for read, made in sides
        )

    def forward(self, x: Any) -> Any:
        """Return the sums of the residual stream."""
        *joint, out, up, down = self.linear
        read = self.norms[0](x)
        q, k, v = (each(read).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in joint)
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + out(seen.transpose(1, 2).flatten(2))
        return x + down(torch.nn.functional.gelu(up(self.norms[1](x))))


def test_what_autocast_leaves_in_fp32_is_moved_as_wide_until_a_product_casts_it() -> None:
    """Sums of the residual stream and what norms make; biases have gradients that sum up rows."""
    layer, x = Layer(), torch.randn(1, SEQUENCE, HIDDEN, requires_grad=True)
    steps = {"add", "_to_copy", "sum"}
    with torch.autocast("cpu", torch.bfloat16):
        result, forward, _ = counted(lambda: layer(x), only=steps)
    _, backward, _ = counted(lambda: result.backward(torch.ones_like(result)), only=steps)

    more = moved_bytes("pytorch") - moved_bytes("pytorch", **HALF)
    assert more + SUMS_BYTES == pytest.approx(forward + backward, rel=0.01)


def test_examples_that_cast_models_as_a_whole_pass_on_16_bits() -> None:
    """NVIDIA's (apex, O2)."""
    promoted = moved_bytes("pytorch-ngc", promotes_types=True)
    assert moved_bytes("pytorch-ngc") != promoted
    assert promoted == moved_bytes("pytorch")


def test_a_compiler_merges_casts_but_moves_the_residual_stream_in_fp32() -> None:
    """A sum reads and writes it; a norm's gradient reads input and gradient, and writes one.

    That is also in 16 bits for products; the gradient of the norm's weight reads its input again.
    """
    compiled = {"compiled": True, "library_kernels": False}
    wide, narrow = (
        moved_bytes("pytorch", OperatorKind.NORM, **compiled, **how) for how in ({}, HALF)
    )
    a_norm = 3 * 2 + 2 + 2
    assert wide - narrow == pytest.approx(2 * (2 * 2 + a_norm) * SEQUENCE * HIDDEN)
