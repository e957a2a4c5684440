"""Traces of jobs on pools of different nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wattree
from wattree.errors import HardwareError
from wattree.interchange import Platform, export_chakra, replay
from wattree.job import Job, job_from_mapping

MODEL = {"layers": 4, "hidden": 256, "heads": 8, "ffn": 1024, "vocab": 1000}


def mixed_job() -> Job:
    """Return a job whose tensor-parallel groups lie in nodes of one kind, its replicas in both."""
    return job_from_mapping(
        {
            "model": {"transformer": MODEL},
            "data": {"sequence_length": 256, "global_batch": 8},
            "cluster": {
                "pools": [{"node": "4x-h100-sxm"}, {"node": "4x-a6000"}],
                "fabric": "ethernet-100g",
            },
            "strategy": {"preset": "megatron", "tp": 4},
        }
    )


def test_a_trace_of_a_mixed_job_replays_to_the_last_bit(tmp_path: Path) -> None:
    """Each rank's file has the times of its own device."""
    direct = wattree.simulate(mixed_job(), fold=False).trace
    export_chakra(mixed_job(), tmp_path)
    again = replay(tmp_path).trace

    np.testing.assert_array_equal(again.start_s, direct.start_s)
    np.testing.assert_array_equal(again.end_s, direct.end_s)


def test_a_replay_on_pools_is_refused() -> None:
    """Its links and rates are those of one kind of node."""
    with pytest.raises(HardwareError, match="mixes pools"):
        Platform(cluster=mixed_job().cluster).timing()
