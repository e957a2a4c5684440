"""What collectives take of the processors that compute alongside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import Calibration, Constant, load_calibration
from wattree.graph import TaskKind
from wattree.job import Job, job_from_mapping
from wattree.predict import Prediction, predicted, setting_of, simulate
from wattree.strategy import StrategyOptions

NODE, DEVICE = "2x-xeon-8480c", "xeon-8480c"
PHANTOM = {"preset": "phantom", "ghosts": 32}
ROWS = {"preset": "tensor", "overlap_tensor": True, "tensor_pieces": 4}
PAIRS = {"preset": "tensor", "tensor_pairs": True}


def calibration(**own: float) -> Calibration:
    """Return the one that ships with constants of the processor's own, and launches measured."""
    shipped = load_calibration()
    added = {
        f"device.{DEVICE}.{item}": Constant(value=value, evidence="measured", source="test")
        for item, value in {"dispatch_s": 6e-6, **own}.items()
    }
    return replace(shipped, constants={**shipped.constants, **added})


def _job(name: str, tp: int = 4, **changes: Any) -> Job:
    strategy = {"phantom": PHANTOM, "rows": ROWS, "pairs": PAIRS}[name]
    return job_from_mapping(
        {
            "model": {"ffn": {"width": 2048, "depth": 3}},
            "data": {"global_batch": 64},
            "precision": "fp32",
            "optimizer": "sgd",
            "cluster": {"node": NODE, "nodes": max(tp // 2, 1)},
            "strategy": {"tp": tp, **strategy, **changes},
        }
    )


def _played(job: Job, constants: Calibration) -> Prediction:
    """Return the prediction with constants."""
    assert not isinstance(job.strategy, str)
    return predicted(setting_of(job, constants), job.strategy)


def _computing_s(job: Job, constants: Calibration) -> float:
    """Return the work of one rank's computation. [s]"""
    graph = _played(job, constants).trace.graph
    mine = np.flatnonzero(graph.kind == TaskKind.COMPUTE)
    return float(graph.work_s[mine].sum())


@settings(max_examples=15, deadline=None)
@given(each=st.floats(1e-5, 5e-3), per_byte=st.floats(0.0, 2e-8))
def test_all_that_ghosts_take_is_charged_once(each: float, per_byte: float) -> None:
    """Three layers exchange forward and backward; products run alongside every exchange."""
    job = _job("phantom", 2)
    without = _computing_s(job, calibration())
    found = _computing_s(job, calibration(exchange_s=each, exchange_s_per_byte=per_byte))
    sent_bytes = 32 * 64 * 4  # to the peer

    assert found - without == pytest.approx(6 * (each + per_byte * sent_bytes), rel=1e-6)


def test_what_nothing_runs_beside_costs_its_own_time_only() -> None:
    """All that follows a pair's all-reduce waits for it, but for products of weights."""
    job = _job("pairs", in_line=["tensor"])
    without, with_ = (
        _played(job, calibration(**own)).result.step_time_s for own in ({}, {"exchange_s": 1e-2})
    )

    assert with_ == without


def test_the_visible_part_of_a_gather_is_not_charged() -> None:
    """The first piece is there before its product begins: three quarters are alongside it."""
    job = _job("rows", 2)
    taken = _computing_s(job, calibration(exchange_s=1e-2)) - _computing_s(job, calibration())
    forward = 3 * 0.75 * 1e-2  # the rest of a gather
    # All of a scatter: the last piece leaves while the weight's gradient is made.
    backward = 2 * 1e-2

    assert taken == pytest.approx(forward + backward, rel=1e-6)


def test_products_in_pieces_take_longer_by_what_slices_do() -> None:
    """Those that gathers feed and scatters drain; gradients of weights are whole."""
    job, rate = _job("rows"), 0.8
    whole = _played(job, calibration()).trace.graph
    sliced = _played(job, calibration(slice_rate=rate)).trace.graph
    ratio = sliced.work_s / np.where(whole.work_s > 0, whole.work_s, 1.0)
    longer = np.flatnonzero(ratio > 1 + 1e-9)

    assert len(longer) == 3 + 2
    assert ratio[longer] == pytest.approx(1 / rate)


@pytest.mark.parametrize("name", ["phantom", "rows", "pairs"])
@pytest.mark.parametrize("tp", [2, 4])
def test_screening_and_playing_agree_on_what_exchanges_take(name: str, tp: int) -> None:
    """Both charge the same operators, small exchanges and large ones."""
    job = _job(name, tp)
    constants = calibration(exchange_s=1e-3, exchange_s_per_byte=5e-9, slice_rate=0.9)
    options = job.strategy
    assert isinstance(options, StrategyOptions)
    setting = setting_of(job, constants)
    found = estimate(setting, options, Degrees.of([options], job.data.global_batch))
    executed = _played(job, constants).result.step_time_s

    assert float(found.step_time_s[0]) == pytest.approx(executed, rel=0.02)


def test_all_reduces_hide_only_where_pieces_are_named() -> None:
    """As before without them."""
    free = _job("pairs", overlap_tensor=True)
    cut = _job("pairs", overlap_tensor=True, tensor_pieces=4)
    plain, named = (simulate(job).result.step_time_s for job in (free, cut))

    assert simulate(_job("pairs")).result.step_time_s == plain
    assert named < plain
