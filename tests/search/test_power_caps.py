"""Plans under a power cap."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import wattree
from tests.search.jobs import FEW, job
from wattree.errors import InfeasibleError
from wattree.search import plan


@pytest.mark.parametrize(
    ("name", "caps_w"),
    [("training", (2400.0, 2900.0, 3000.0, 3200.0, 3400.0)), ("generation", (4600.0, 5000.0))],
)
def test_a_looser_power_cap_is_no_slower(name: str, caps_w: tuple[float, ...]) -> None:
    """Strategies above the cap must not crowd out those below it; near ties may change places."""
    given = job(model="gpt2")
    if name == "generation":
        given = wattree.load_job(Path(__file__).parents[2] / "examples/llama-3.1-8b-generate.yaml")
    best = [plan(given, power_cap_w=cap_w, top=1, limits=FEW).best for cap_w in caps_w]
    times_s = [entry.result.step_time_s for entry in best if entry is not None]

    assert len(times_s) == len(caps_w)
    assert all(looser <= 1.005 * tighter for tighter, looser in pairwise(times_s))


def test_an_impossible_power_cap_says_what_the_least_hungry_draws() -> None:
    """The nearest miss of the constraint that binds."""
    with pytest.raises(
        InfeasibleError, match=r"draws [\d,.]+ W on average, above the cap of 100 W"
    ):
        plan(job(model="gpt2"), power_cap_w=100.0, limits=FEW)


def test_a_power_cap_is_kept_at_every_moment() -> None:
    """The cap is compared with the peak of the power curve, not with its mean."""
    free = plan(job(model="gpt2"), top=3, limits=FEW)
    assert free.best is not None
    cap_w = 0.9 * free.best.result.peak_power_w

    capped = plan(job(model="gpt2"), power_cap_w=cap_w, top=3, limits=FEW)

    assert all(entry.result.peak_power_w <= cap_w for entry in capped.ranked)
    assert capped.rejected["over the power cap"] > 0


def test_a_cap_leaves_more_nodes_no_slower() -> None:
    """Of four nodes three may be what the cap allows, although three do not divide four."""
    exact = replace(FEW, refined=False, shardings=("zero1",))
    three = plan(job(nodes=3, batch=48), top=1, limits=exact).best
    assert three is not None
    cap_w = 1.01 * three.result.peak_power_w

    four = plan(job(nodes=4, batch=48), power_cap_w=cap_w, top=1, limits=exact).best

    assert four is not None
    assert four.result.step_time_s <= three.result.step_time_s
    assert four.options.ranks == 24
