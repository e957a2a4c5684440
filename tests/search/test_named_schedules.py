"""Schedules that the search tries only if they are named; virtual stages of equal layers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.search.jobs import job, setting
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.predict import predicted
from wattree.search import plan
from wattree.search.limits import Limits
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions
from wattree.strategy.schedules import PIPELINE_SCHEDULES

NAMED = tuple(n for n in PIPELINE_SCHEDULES if n not in {"1f1b", "gpipe", "interleaved"})


def test_the_default_space_has_none_of_them() -> None:
    """Few programs can run them, so a plan would be of no use to most."""
    found = {options.pipeline.schedule for options in enumerate_space(setting())}

    assert found == {"1f1b", "gpipe", "interleaved"}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_schedule_is_listed_where_it_can_run(name: str) -> None:
    """On pipelines alone, and on pairs of stages if it needs them."""
    limits = Limits(schedules=("1f1b", name), axes={"cp": (1,), "tp": (1,)}, micro_batches=(1,))

    found = list(enumerate_space(setting(), limits=limits))

    stages = {options.pp for options in found if options.pipeline.schedule == name}
    # 16 halves of stages are more than 12 layers, the embedding and the head can fill.
    assert stages == ({2, 4} if name in {"zb-v", "dualpipev"} else {2, 4, 8})
    assert {options.pipeline.schedule for options in found} == {"1f1b", name}


@pytest.mark.parametrize("name", PIPELINE_SCHEDULES)
@pytest.mark.parametrize("micro_batches", [8, 32])
def test_estimates_of_schedules_are_close_to_simulations(name: str, micro_batches: int) -> None:
    """The bubble's closed form and the micro-batches kept, against the orders played."""
    own = setting(batch=2 * micro_batches)
    several = name in {"interleaved", "breadth-first"}
    options = StrategyOptions(dp=2, pp=4, schedule=name, virtual_stages=2 if several else 1)

    result = predicted(own, options).result
    found = estimate(own, options, Degrees.of([options], 2 * micro_batches))

    # The two directions of DualPipe exchange gradients, which the estimate leaves out; and where
    # nothing is exchanged, a pair hands its first result on before its second is done.
    assert found.step_time_s[0] == pytest.approx(result.step_time_s, rel=0.08)
    assert found.tensor_bytes[0] == pytest.approx(result.memory.live_bytes, rel=0.2)
    assert np.isfinite(found.energy_j[0])


def test_virtual_stages_have_equal_layers_where_others_gain_next_to_nothing() -> None:
    """By estimate, 40 layers dealt into 42 chunks, embedding and head apart, gain less than 1 %."""
    limits = Limits(
        axes={"pp": (2,), "cp": (1,), "tp": (1,)},
        shardings=("zero1",),
        recomputations=("none",),
        schedules=("interleaved",),
        micro_batches=(1,),
        refined=False,
    )
    large = job(model="llama-2-13b", node="dgx-h100", sequence=2048, software="megatron-core")

    ranked = plan(large, limits=limits).ranked

    chunks = {entry.options.pipeline.virtual_stages for entry in ranked if entry.options.pp > 1}
    assert chunks == {20}
