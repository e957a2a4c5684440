"""Host time of experts: Transformer Engine launches a product for each expert of a rank."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.jobs import Job, mixture, small_cluster
from wattree.capture import load_model
from wattree.cost import load_calibration, software_family
from wattree.cost.rates import pool_rates
from wattree.graph import OperatorKind
from wattree.hardware import Precision
from wattree.lowering.costs import BlockCosts
from wattree.lowering.program import ComputeInstruction, InstructionPhase
from wattree.strategy import StrategyOptions

EXPERTS = 8


def _host_s(phase: InstructionPhase, ep: int, sharding: str = "none", **traits: object) -> float:
    """Return the host time of the experts' first products in a pass of a layer. [s]"""
    job = Job.of(
        mixture(experts=EXPERTS),
        StrategyOptions(dp=EXPERTS // ep, ep=ep, sharding=sharding),
        global_batch=EXPERTS,
        traits=traits,
    )
    costs = next(each for each in job.compiled().costs if _products(each, phase))
    return sum(_products(costs, phase))


def _products(costs: BlockCosts, phase: InstructionPhase) -> list[float]:
    return [
        float(np.mean(rows.host_s[index]))
        for rows in (costs.forward, costs.backward)
        for index, each in enumerate(rows.instructions)
        if isinstance(each, ComputeInstruction)
        and each.path == "moe.experts.up"
        and each.phase is phase
    ]


@pytest.mark.parametrize("phase", [InstructionPhase.FORWARD, InstructionPhase.WEIGHT_GRADIENT])
def test_each_local_expert_is_a_launch(phase: InstructionPhase) -> None:
    """In 16 bits: as many products of cuBLAS in each pass as the rank has experts."""
    module_s, launch_s = (
        load_calibration().family("megatron-core", item)
        for item in ("module_launch_s", "program_launch_s")
    )

    assert _host_s(phase, 2) == pytest.approx(module_s + (EXPERTS / 2 - 1) * launch_s)
    assert _host_s(phase, 8) == pytest.approx(module_s)


def test_a_fused_kernel_is_one_launch() -> None:
    """Grouped kernels, and those that fuse all of the experts, launch once."""
    forward = InstructionPhase.FORWARD

    assert _host_s(forward, 1, fused_grouped_gemm=True) == pytest.approx(_host_s(forward, 8))
    assert _host_s(forward, 1, moe_fused_experts=True) == pytest.approx(_host_s(forward, 8))


def test_a_loop_over_experts_launches_all_that_each_does() -> None:
    """Before its release 5, the transformers library finds, gathers and adds up for each expert."""
    module_s = load_calibration().family("megatron-core", "module_launch_s")

    forward_s, gradient_s = (
        _host_s(phase, 1, expert_layers=True)
        for phase in (InstructionPhase.FORWARD, InstructionPhase.WEIGHT_GRADIENT)
    )

    assert forward_s == pytest.approx((1 + 7 * (EXPERTS - 1)) * module_s)
    assert gradient_s == pytest.approx((1 + 2 * (EXPERTS - 1)) * module_s)


def test_zero3_gathers_each_layer_of_experts_that_run_in_a_loop() -> None:
    """In the order in which they run, which it cannot foresee; gate and up are layers of two."""
    fetch_s = EXPERTS * 1.5 * load_calibration().general("expert_fetch_s")
    traits = {"expert_layers": True, "zero_group_elements": 1e9}

    more_s = {
        phase: _host_s(phase, 1, "zero3", **traits) - _host_s(phase, 1, "zero2", **traits)
        for phase in (
            InstructionPhase.FORWARD,
            InstructionPhase.INPUT_GRADIENT,
            InstructionPhase.WEIGHT_GRADIENT,
        )
    }

    assert list(more_s.values()) == pytest.approx([fetch_s, fetch_s, 0.0])


def test_a_loop_without_gradients_launches_as_fast_as_other_modules() -> None:
    """Autograd records nothing, so each launch takes the host less."""
    cluster, software = small_cluster(1), software_family("megatron-core")
    looping = software.with_traits({"expert_layers": True})
    found = [
        pool_rates(cluster, looping, Precision.BF16, load_calibration(), trains=trains)[0]
        for trains in (True, False)
    ]

    assert all(each.expert_launch_s == each.launch_s for each in found)
    assert found[1].launch_s < found[0].launch_s


def test_groups_of_a_convolution_are_one_launch() -> None:
    """They are no experts: a depthwise convolution of 144 channels is one kernel."""
    launch_s = load_calibration().family("megatron-core", "module_launch_s")
    job = Job.of(load_model("mobilenet-v2"), StrategyOptions(dp=1), global_batch=1)

    host_s = {
        float(np.mean(rows.host_s[index]))
        for costs in job.compiled().costs
        for rows in (costs.forward, costs.backward)
        for index, each in enumerate(rows.instructions)
        if isinstance(each, ComputeInstruction) and each.kind is OperatorKind.CONVOLUTION
    }

    assert host_s == {launch_s}
