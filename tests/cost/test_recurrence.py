"""Recurrences over chunks: what their kernels reach, and in what format their products run."""

from __future__ import annotations

import pytest

from tests.search.jobs import setting
from wattree.cost import load_calibration
from wattree.cost.recurrence import recurrence_rates
from wattree.hardware import load_device
from wattree.lowering.block import compile_model
from wattree.lowering.matmul_costs import is_quantized
from wattree.lowering.program import ComputeInstruction
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import tree_of

_MOST = 1e15


def _rate(device: str, *, gradients: bool = False) -> float:
    rates = recurrence_rates(load_device(device), load_calibration(), most_flop_per_s=_MOST)
    return rates[f"recurrence_{'gradient_' if gradients else ''}flop_per_s"]


def test_rates_grow_as_units_do_and_not_as_the_peak() -> None:
    """A B200 has 2.3 times the peak of an H100 and 1.12 times its units; gradients take longer."""
    h100, b200 = "h100-sxm-80gb", "b200-sxm-180gb"

    assert _rate(b200) / _rate(h100) == pytest.approx(148 / 132)
    assert _rate(b200, gradients=True) < _rate(b200) < _MOST


def test_devices_without_such_kernels_run_products() -> None:
    """On a TPU a recurrence is a program of XLA: its products are products."""
    assert _rate("tpu-v5p") == _rate("tpu-v5p", gradients=True) == _MOST


def test_only_linear_layers_run_at_8_bits() -> None:
    """Transformer Engine casts the operands of its own layers, none of a scan's kernels."""
    asked = setting(model="nemotron-h-8b", node="dgx-h100", sequence=8192, precision="fp8")
    program = compile_model(asked.model, tree_of(StrategyOptions(), asked.model), frozenset())
    matmuls = {
        each.path: is_quantized(each, asked.rates)
        for block in program.programs
        for each in block.forward
        if isinstance(each, ComputeInstruction) and each.matmul is not None
    }

    assert {path for path, is_cast in matmuls.items() if not is_cast} == {"mamba.product", "logits"}
