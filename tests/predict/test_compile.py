"""`compile: true`: what a compiler changes of a step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compiler.jobs import Job, dense
from wattree.capture import fused
from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.graph import OperatorKind
from wattree.job import job_from_mapping
from wattree.lowering.compute_costs import compute_costs
from wattree.lowering.program import ComputeInstruction
from wattree.predict import setting_of
from wattree.strategy import StrategyOptions

JOB: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "data": {"sequence_length": 2048, "global_batch": 8},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "strategy": {"preset": "fsdp", "dp": 8},
    "software": "torchtitan",
}


def test_the_key_says_what_the_habit_is_called_compiled() -> None:
    """The key and the software default are the same fact."""
    assert job_from_mapping(JOB | {"compile": True}).traits == {"compiled": True}
    assert job_from_mapping(JOB).traits == {}


def test_key_and_habit_that_contradict_each_other_are_refused() -> None:
    """Neither is taken silently."""
    with pytest.raises(
        JobError, match=r"compile: found true, but traits\.compiled differs; give one"
    ):
        job_from_mapping(JOB | {"compile": True, "traits": {"compiled": False}})


def test_what_is_neither_true_nor_false_is_refused() -> None:
    """YAML's `inductor` is a word."""
    with pytest.raises(JobError, match=r"compile: found 'inductor', expected true or false"):
        job_from_mapping(JOB | {"compile": "inductor"})


def forward_bytes(*, merged: bool) -> float:
    """Return the traffic of memory-bound work of a compiled layer, its operators merged or not."""
    model = dense(norm="rms", gated=True, hidden=512)
    # All in 16 bits; tests/compiler/test_autocast_traffic.py counts what stays in fp32.
    traits = {"compiled": True, "library_kernels": False, "promotes_types": False}
    model = fused(model) if merged else model
    job = Job.of(model, StrategyOptions(), family="pytorch", traits=traits)
    program, (rates,) = job.program(), job.placed.rates
    scale = job.scale(program)
    (layer,) = (each for each in program.programs if each.block == "layer")
    return sum(
        float(compute_costs(instruction, scale, rates, job.software)[2][0])
        if not merged
        else sum(float(scale.value(size)[0]) * 2.0 for size in instruction.traffic)
        for instruction in layer.forward
        if isinstance(instruction, ComputeInstruction)
        and instruction.matmul is None
        and instruction.kind is not OperatorKind.ATTENTION
    )


def test_compiled_blocks_move_what_merged_kernels_do() -> None:
    """Counted operator by operator, but for the sum that the norm of the next layer follows."""
    next_norm = 64 * 512 * 2.0  # [B]

    separate, together = forward_bytes(merged=False), forward_bytes(merged=True)

    assert separate == pytest.approx(together - next_norm, rel=0.01)


def test_activations_of_a_compiled_network_are_said_to_be_those_of_an_eager_one() -> None:
    """What Inductor computes again is known of the catalog's transformers alone."""
    network = JOB | {"model": "resnet18", "software": "pytorch", "data": {"global_batch": 8}}
    network["strategy"] = "ddp"
    told = [
        any("saved activations are those" in line for line in setting.job.assumed)
        for raw in (network, network | {"compile": True}, JOB | {"compile": True})
        for setting in [setting_of(job_from_mapping(raw), load_calibration())]
    ]

    assert told == [False, True, False]
