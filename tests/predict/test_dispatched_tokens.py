"""How copies of tokens reach experts on other nodes."""

from __future__ import annotations

import pytest

import wattree
from wattree.cost import load_calibration
from wattree.hardware import load_device

#: DeepSeek V3: layers of experts, experts of a token, bytes of its activations.
LAYERS, COPIES, WIDE = 58, 8, 7168 * 2
TOKENS = 4096
BATCHES = 4  # micro-batches of a replica
#: An adapter of a DGX H100; dispatch and combine, forward and backward.
ADAPTER_BYTES_PER_S, EXCHANGES = 50e9, 4


def step_s(dispatch: str, *, overlap: bool = False) -> float:
    """Return a step whose experts lie on two nodes. [s]"""
    job = wattree.job_from_mapping(
        {
            "model": "deepseek-v3",
            "data": {"sequence_length": TOKENS, "global_batch": 16 * BATCHES},
            "cluster": {"node": "dgx-h100", "nodes": 2},
            "strategy": {
                "dp": 1,
                "ep": 16,
                "sharding": "zero1",
                "micro_batch": 1,
                "recompute": "none",
            },
            "software": "megatron-core",
            "traits": {"moe_dispatch": dispatch, "moe_overlap": overlap},
        }
    )
    return float(wattree.simulate(job).result.step_time_s)


def test_an_all_to_all_sends_a_copy_for_each_expert() -> None:
    """Half of the copies leave the node; DeepEP sends a token once if any of its experts is there.

    That is `2 (1 - 2^-8) / 16` as much, and the closed form leaves latency alone. Exchanges take
    a fitted multiple of it.
    """
    factor = load_calibration(None).learned(load_device("h100-sxm-80gb"), "moe_exchange_factor")
    copies, once = step_s("alltoall"), step_s("deepep")
    sent_s = TOKENS * COPIES * WIDE / 2 / ADAPTER_BYTES_PER_S
    saved_s = BATCHES * LAYERS * EXCHANGES * sent_s * (1 - (1 - 0.5**COPIES) * 2 / COPIES)

    assert copies - once == pytest.approx(saved_s * factor, rel=0.12)
    assert step_s("hybridep") == pytest.approx(once, rel=1e-3)


def test_computation_of_another_micro_batch_hides_part_of_the_exchanges() -> None:
    """More of those of an all-to-all, which are longer, but not all."""
    hidden = {each: step_s(each) - step_s(each, overlap=True) for each in ("alltoall", "deepep")}

    assert hidden["alltoall"] > 1.5 * hidden["deepep"] > 0.0
    assert step_s("alltoall", overlap=True) > step_s("deepep", overlap=True)
