"""Shares of peak from measured products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.products import Products, read_best, with_best
from wattree.cost import load_calibration
from wattree.hardware import load_device


def products(dtype: str, time_s: np.ndarray, boost: float = 1.0) -> Products:
    """Return large products of an H100 that took so long."""
    sizes = np.array([4096.0, 8192.0, 8192.0])
    return Products(
        device=load_device("h100-sxm-80gb"),
        dtype=dtype,
        m=sizes,
        n=sizes,
        k=sizes,
        time_s=time_s,
        boost=np.full(3, boost),
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_share_is_the_one_that_the_times_were_made_with(dtype: str) -> None:
    """The median error is nil there."""
    calibration, one = load_calibration(), np.ones(3)
    made = products(dtype, np.exp(products(dtype, one).errors(0.6, calibration)))

    assert made.share(calibration) == pytest.approx(0.6, rel=1e-3)


def test_short_runs_count_for_less() -> None:
    """They ran at a clock that does not last."""
    calibration = load_calibration()
    time_s = np.exp(products("bf16", np.ones(3)).errors(0.8, calibration))
    lasting, short = (products("bf16", time_s, boost) for boost in (1.0, 1.15))

    assert short.share(calibration) == pytest.approx(lasting.share(calibration) / 1.15, rel=0.02)


def test_what_ships_of_best_products_is_made_again(tmp_path: Path) -> None:
    """Those beside the benchmark: a device's own, its die's, and convolutions without rows."""
    table = tmp_path / "best.csv"
    table.write_text("gpu,dtype,max_achieved_tflops\n", encoding="utf-8")
    shipped = load_calibration()
    again = with_best(read_best(table), shipped).constants

    for name in (
        "device.rtx-4090.matmul.bf16",
        "device.l4.convolution.bf16",
        "die.gv100.matmul.bf16",
    ):
        assert again[name].value == pytest.approx(shipped.constants[name].value, rel=1e-3), name
    # Rows of the fit, and convolutions measured on the device, know more.
    for name in ("die.gv100.convolution.bf16", "device.t4.convolution.bf16"):
        assert again[name] == shipped.constants[name], name
    assert "device.v100-sxm2-16gb.convolution.bf16" not in again
