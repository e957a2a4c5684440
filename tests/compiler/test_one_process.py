"""One process that drives all devices (`nn.DataParallel`): only the first device updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wattree import simulate
from wattree.graph import Phase
from wattree.job import job_from_mapping


@pytest.mark.parametrize(
    ("software", "more"),
    [("pytorch", {}), ("hf-trainer", {}), ("pytorch", {"offload": {"optimizer": "host"}})],
)
def test_only_the_first_device_updates(software: str, more: dict[str, Any]) -> None:
    """Also where a framework's optimizer works on copies of what it updates, as PyTorch's does.

    And where the host updates what one device gives and takes back.
    """
    job = job_from_mapping(
        {
            "model": {"transformer": {"layers": 2, "hidden": 256, "heads": 4, "vocab": 1000}},
            "data": {"global_batch": 8, "sequence_length": 64},
            "precision": "fp32",
            "cluster": {"node": "8x-v100-pcie-16gb"},
            "software": software,
            "place": {"devices": "0-1"},
            "strategy": {"dp": 2, "single_process": True, **more},
        }
    )

    graph = simulate(job).trace.graph

    task = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))
    owner = graph.stream_class[graph.stream_ids]
    updates = graph.phase[task] == Phase.OPTIMIZER
    moved = [
        float(graph.memory_traffic_bytes[task[updates & (owner == each)]].sum()) for each in (0, 1)
    ]
    assert moved[0] > 0.0
    assert moved[1] == 0.0
