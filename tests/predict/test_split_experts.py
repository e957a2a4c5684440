"""Experts that whole ranks of tensor parallelism are too many for."""

from __future__ import annotations

import pytest

import wattree
from wattree.errors import WattreeError
from wattree.job import job_from_mapping

_SPLIT = "expert_over_tensor false: "


def result(software: str, **strategy: object) -> wattree.Result:
    """Return the result of a step of Mixtral, whose 8 experts 16 ranks share."""
    job = {
        "model": "mixtral-8x7b",
        "data": {"sequence_length": 2048, "global_batch": 16},
        "cluster": {"node": "dgx-b200", "nodes": 2},
        "software": software,
        "strategy": {"tp": 2, "ep": 8, **strategy},
    }
    return wattree.simulate(job_from_mapping(job)).result


@pytest.mark.parametrize("software", ["megatron-core", "megatron-lm"])
def test_megatron_splits_experts_that_are_too_few(software: str) -> None:
    """Its `--expert-tensor-parallel-size` is the tensor degree where none is given."""
    found, stated = result(software), result(software, expert_over_tensor=False)

    assert found.step_time_s == pytest.approx(stated.step_time_s)
    assert any(line.startswith(_SPLIT) for line in found.assumed)
    assert not any(line.startswith(_SPLIT) for line in stated.assumed)
    assert not any(line.startswith(_SPLIT) for line in result(software, ep=4).assumed)


def test_what_a_job_states_stays() -> None:
    """So does what other software does: its experts are never split unless a job says so."""
    with pytest.raises(WattreeError, match="8 experts do not divide over axes ep, tp"):
        result("megatron-lm", expert_over_tensor=True)
    with pytest.raises(WattreeError, match="8 experts do not divide over axes ep, tp"):
        result("torchtitan")
