"""Shares of peak from measured products."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.products import Products
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
