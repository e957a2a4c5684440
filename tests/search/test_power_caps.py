"""Plans under a power cap."""

from __future__ import annotations

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
