"""What software runs in steps next to kernels that lack a variant, and what these steps move."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cost.counted_steps import counted
from wattree.cost import software_family
from wattree.cost.written_out import steps_of, steps_of_variant, weighted_bias_bytes

torch = pytest.importorskip("torch")

_ROWS, _WIDTH, _EXPERTS = 256, 1024, 4


def _moved(act: Any, *inputs: Any) -> tuple[float, float]:
    """Return the bytes that forward and backward move."""
    result, forward, _ = counted(lambda: act(*inputs))
    gradient = torch.randn_like(result)
    _, backward, _ = counted(lambda: result.backward(gradient))
    return forward, backward


def _clamped(joint: Any) -> Any:
    gate, up = joint.chunk(2, -1)
    return torch.cat((gate.clamp(max=7.0), up.clamp(min=-7.0, max=7.0)), -1)


def _biased(outputs: Any, weights: Any, *biases: Any) -> Any:
    size = _ROWS // _EXPERTS
    experts = zip(outputs.split(size), weights.split(size), biases, strict=True)
    return torch.cat([rows + bias * weight for rows, weight, bias in experts]).to(outputs.dtype)


def test_clamps_before_a_gate_read_and_write_both_halves() -> None:
    """Next to the gate's own kernel, by element that this reads or writes."""
    found = steps_of_variant("silu_clamped_gate", software_family("megatron-core"))
    assert found is not None
    kept, steps = found
    joint = torch.randn(_ROWS, 2 * _WIDTH, dtype=torch.bfloat16, requires_grad=True)

    forward, backward = _moved(_clamped, joint)

    assert kept == 1.0
    elements = 3.0 * _ROWS * _WIDTH
    assert forward / elements == pytest.approx(steps.forward_bytes, rel=0.02)
    assert backward / elements == pytest.approx(steps.backward_bytes, rel=0.02)


@pytest.mark.parametrize(("width", "weight_bytes"), [("bfloat16", 2.0), ("float32", 4.0)])
def test_a_weighted_bias_passes_over_all_outputs(width: str, weight_bytes: float) -> None:
    """Weights in fp32 make every step fp32."""
    outputs = torch.randn(_ROWS, _WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.rand(_ROWS, 1, dtype=getattr(torch, width), requires_grad=True)
    biases = [
        torch.randn(_WIDTH, dtype=torch.bfloat16, requires_grad=True) for _ in range(_EXPERTS)
    ]

    moved = _moved(_biased, outputs, weights, *biases)

    for found, backward in zip(moved, (False, True), strict=True):
        expected = weighted_bias_bytes(
            element_bytes=2.0, weight_bytes=weight_bytes, backward=backward
        )
        assert found / (_ROWS * _WIDTH) == pytest.approx(expected, rel=0.02)


def test_rotations_that_scale_run_in_the_steps_of_any_rotation() -> None:
    """No kernel is left of them; software whose kernels do all has no steps."""
    scaled = steps_of_variant("rotary_scaled", software_family("megatron-core"))

    assert scaled == (0.0, steps_of("rotary"))
    assert steps_of_variant("rotary", software_family("megatron-core")) is None
    assert steps_of_variant("rotary_scaled", software_family("maxtext")) is None


def test_fused_experts_clamp_in_their_kernel() -> None:
    """The kernel of products and activation has the clamps."""
    fused = software_family("megatron-core").with_traits({"moe_fused_experts": True})

    assert steps_of_variant("silu_clamped_gate", fused) is None
