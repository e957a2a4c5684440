"""What permutation of experts moves, from measured layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.experts import ExpertLayers, read_layers, table
from wattree.cost import load_calibration
from wattree.hardware import load_device


def layers(device: str = "h100-sxm-80gb", boost: float = 1.0) -> ExpertLayers:
    """Return large layers of a device, without times."""
    return ExpertLayers(
        device=load_device(device),
        tokens=np.array([1024.0, 2048.0, 4096.0]),
        experts=np.array([16.0, 64.0, 128.0]),
        hidden=np.array([2048.0, 4096.0, 4096.0]),
        width=np.array([768.0, 1536.0, 1536.0]),
        time_s=np.ones(3),
        boost=np.full(3, boost),
    )


def test_the_passes_are_those_that_the_times_were_made_with() -> None:
    """The median error is nil there."""
    calibration = load_calibration()
    made = replace(layers(), time_s=layers().predicted_s(4.5, calibration))

    assert made.passes(calibration) == pytest.approx(4.5, rel=1e-3)


def test_times_that_matmuls_fill_leave_nothing_to_move() -> None:
    """No device has fewer passes than none."""
    calibration = load_calibration()
    made = replace(layers(), time_s=0.5 * layers().predicted_s(0.0, calibration))

    assert made.passes(calibration) == pytest.approx(0.0, abs=1e-6)


def test_the_factor_counts_the_second_permutation_of_training() -> None:
    """It stands for 12 bytes of each routed element: 4 and 4 passes of 2 bytes are 16."""
    calibration = load_calibration()
    made = [
        replace(each, time_s=each.predicted_s(4.0, calibration))
        for each in (layers(), layers("gb200", boost=1.15), layers("l40s"))
    ]

    assert "(4.0 + 4) / 6 = 1.33" in str(table(made, calibration).caption)


def test_rows_are_balanced_layers_of_gated_experts_by_the_fastest_library(tmp_path: Path) -> None:
    """Skewed, slower, small and 8-bit rows do not count."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    row = {
        "gpu": "H100-SXM-80GB",
        "kernel_source": "cutlass",
        "dtype": "bf16",
        "distribution": "balanced",
        "tokens": 16384,
        "topk": 8,
        "experts": 128,
        "ep": 2,
        "tp": 1,
        "hidden": 4096,
        "inter": 1536,
        "latency_us": 9000.0,
        "power_w": 650.0,
    }
    others: tuple[dict[str, object], ...] = (
        {"latency_us": 12000.0, "kernel_source": "triton"},
        {"tokens": 1024},
        {"dtype": "fp8", "latency_us": 5000.0},
        {"distribution": "power_law_1.2", "latency_us": 5000.0},
        {"kernel_source": "nongated", "latency_us": 5000.0},
        {"gpu": "A100-SXM4-80GB"},
    )
    pandas.DataFrame([row, *({**row, **each} for each in others)]).to_parquet(
        tmp_path / "moe.parquet"
    )

    (found,) = read_layers(tmp_path / "moe.parquet")

    assert found.device.name == "h100-sxm-80gb"
    assert found.time_s.tolist() == pytest.approx([9e-3])
    assert found.tokens.tolist() == [1024.0]
    assert found.experts.tolist() == [64.0]
