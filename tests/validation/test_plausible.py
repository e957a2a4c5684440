"""Rows that no hardware can give, and the power of what a row names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wattree.cost import load_calibration
from wattree.validation import Scored
from wattree.validation.rows import bundled_rows
from wattree.validation.runner import Runner

#: Llama 2 7B on 128 A100.
ROW = next(row for row in bundled_rows() if row.source_id == "fms-fsdp")


def scored(**cells: Any) -> Scored:
    """Return the row with some cells changed, measured and predicted."""
    runner = Runner([replace(ROW, **cells)], lambda *_: None)
    (found,) = runner.validation(load_calibration(), {}).scored
    return found


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"mem_gib_per_gpu": 200.0}, "mem_gib_per_gpu: found 200 GiB, but a100-sxm-80gb has 80"),
        ({"avg_power_w": 9000.0, "power_scope": "gpu"}, "avg_power_w: found 9,000 W"),
        ({"avg_power_w": 9e5, "power_scope": "node"}, "avg_power_w: found 900,000 W"),
        ({"step_time_s": 0.01, "implied_step_time_s": None, "tokens_per_s_per_gpu": None}, "peak"),
    ],
)
def test_a_row_that_cannot_be_is_skipped(cells: dict[str, Any], reason: str) -> None:
    """A slip of a unit must not enter the mean error."""
    found = scored(**cells)

    assert found.error is None
    assert reason in (found.skipped or "")


def test_power_is_compared_with_that_of_its_scope() -> None:
    """Devices are a part of nodes, and nodes of the cluster; rows name one of each."""
    power = {
        scope: scored(primary_metric="avg_power_w", avg_power_w=400.0, power_scope=scope).predicted
        for scope in ("device", "node", "sum over 16 of 16 nodes", "cluster")
    }

    device_w, node_w, nodes_w, cluster_w = (each or 0.0 for each in power.values())
    nodes = (ROW.n_accel or 0) // 8
    assert 100.0 < device_w < 400.0
    assert 8 * device_w < node_w
    assert nodes_w == pytest.approx(nodes * node_w)
    assert nodes_w < cluster_w < 1.1 * nodes_w
