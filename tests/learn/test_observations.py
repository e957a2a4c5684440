"""Constants after observations are those of the exact posterior, and what is left is right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.cost.observations import (
    DOUBTFUL,
    Observation,
    error_weights,
    moved,
    remaining_uncertainty,
    run_errors,
    shared,
    unattributed_spread,
    widened,
)
from wattree.trace import IntervalPart

CLASSES = ("products", "memory", "links", "residual")


def observation(shares: dict[str, float], **changes: Any) -> Observation:
    """Return a step that rests on constants of equal spread."""
    given_values: dict[str, Any] = {
        "what": "step",
        "job": "a.yaml",
        "device": "h100-sxm-80gb",
        "software": "torchtitan",
        "kind": "language",
        "precision": "bf16",
        "measured_s": 11.0,
        "predicted_s": 10.0,
        "parts": {
            name: IntervalPart(share=share, spread=changes.pop("spread", 0.1))
            for name, share in shares.items()
        },
        "noise": 0.05,
    }
    return Observation(**{**given_values, **changes})


def test_one_step_moves_what_matters_most_and_is_least_sure() -> None:
    """By share x spread^2: a step time alone tells that direction."""
    run = observation({"products": 0.8, "memory": 0.2}, noise=1e-6)

    found = moved([run])

    assert found["products"] == pytest.approx(4 * found["memory"])
    explained = 0.8 * found["products"] + 0.2 * found["memory"]
    assert explained == pytest.approx(math.log(1.1))


def test_a_run_like_another_is_as_sure_as_its_noise() -> None:
    """What both rest on alike drops out."""
    run = observation({"products": 0.8, "memory": 0.2}, noise=1e-6)

    left, noise = remaining_uncertainty([run], run.parts)

    assert all(abs(part.share) < 1e-6 for part in left.values())
    assert noise < 1e-5


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_run_that_no_spread_explains_is_followed(sign: int) -> None:
    """Spreads are then so wide that it lies at the border of what is doubted."""
    far = observation({"products": 1.0}, what="products", spread=0.01, measured_s=10.0 * 2.0**sign)
    near = observation({"products": 1.0}, spread=0.01, measured_s=10.0 * 1.1**sign)

    assert widened([near]) == (near,)
    wide = widened([far])[0]
    assert abs(far.error) == pytest.approx(
        DOUBTFUL * math.hypot(wide.parts["products"].spread, wide.noise)
    )
    assert 0.9 < moved([far])["products"] / far.error < 1.0
    assert run_errors([far])[far.job] == pytest.approx(far.error - moved([far])["products"])
    assert 0.0 < moved([near])["products"] / near.error < 0.1


@pytest.mark.parametrize("what", ["step", "computing"])
def test_what_one_time_does_not_tell_apart_is_moved_as_a_whole(what: str) -> None:
    """No class moves by many times its spread, and other jobs are not sure to be as slow."""
    shares = {"host": 0.8, "products": 0.1, "residual": 1.0}
    far = observation(shares, what=what, spread=0.3, measured_s=300.0)
    moves = moved([far])

    assert moves["host"] < 2 * 0.3
    assert math.fsum({**shares, what: 1.0}[name] * move for name, move in moves.items()) > 3.3
    assert unattributed_spread([far]) > 0.1 * far.error
    near = observation(shares, what=what, measured_s=11.0)
    apart = [far, observation({"host": 1.0}, what="host", spread=0.3, measured_s=300.0)]
    assert (unattributed_spread([near]), unattributed_spread(apart)) == (0.0, 0.0)
    assert what not in moved(apart)


def test_runs_that_contradict_each_other_move_nothing_far() -> None:
    """No wider spread of what they have in common explains both."""
    runs = [
        observation({"products": 1.0}, job=f"{factor}", measured_s=10.0 * factor)
        for factor in (0.5, 2.0)
    ]

    assert widened(runs) == tuple(runs)
    assert moved(runs)["products"] == pytest.approx(0.0, abs=1e-9)
    assert run_errors(runs)["2.0"] == pytest.approx(math.log(2.0))


def test_a_class_of_other_constants_in_another_job_is_in_common_in_part() -> None:
    """Routers launch by the host or in a graph; by the wider spread, weights have no bound."""

    def parts(spread: float, share: float) -> dict[str, IntervalPart]:
        routing = IntervalPart(share=1.0, spread=spread)
        return {"routing": routing, "host": IntervalPart(share=share, spread=0.5)}

    runs = [
        observation({}, job=f"{spread}", parts=parts(spread, share), noise=0.2)
        for spread, share in ((0.8, 1.0), (0.04, 0.5))
    ]

    assert np.abs(error_weights(runs, parts(0.04, 0.5))).max() < 1.0


def test_what_several_jobs_err_by_alike_is_followed_and_narrows() -> None:
    """Published rows of mixtures each err by themselves; those of one user need not."""
    alike = [
        observation(
            {"products": 1.0}, spread=0.01, noise=0.2, job=f"{n}", measured_s=11.7 + 0.01 * n
        )
        for n in range(4)
    ]
    followed = [sum(moved(alike[:count]).values()) / alike[0].error for count in (1, 2, 4)]
    noises = [shared(alike[:count])[0].noise for count in (1, 2, 4)]

    assert followed[0] < 0.05
    assert followed[0] < followed[1] < followed[2]
    assert followed[2] > 0.7
    assert noises[0] == 0.2
    assert noises == sorted(noises, reverse=True)
    of_one = tuple(replace(each, job="one") for each in alike)
    assert shared(of_one) == of_one


def test_what_classes_do_not_explain_is_an_error_of_the_run() -> None:
    """A trace may be mostly of time that no constant sets; the interval has to hold its step."""
    classes = [
        observation({"products": 1.0}, what=what, unexplained=0.5) for what in ("products", "host")
    ]

    assert run_errors(classes) == {"a.yaml": 0.5}


@given(
    shares=st.lists(st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4), min_size=2, max_size=5),
    errors=st.lists(st.floats(-0.05, 0.05), min_size=5, max_size=5),
)
def test_it_is_the_posterior_of_a_normal_distribution(
    shares: list[list[float]], errors: list[float]
) -> None:
    """Against the normal equations, which this does not solve."""
    *seen, asked = shares
    runs = [
        observation(dict(zip(CLASSES, row, strict=True)), measured_s=10 * math.exp(error))
        for row, error in zip(seen, errors, strict=False)
    ]
    rows, spread, noise = np.array(seen), 0.1, 0.05
    posterior = np.linalg.inv(np.eye(4) / spread**2 + rows.T @ rows / noise**2)
    means = posterior @ rows.T @ np.array(errors[: len(seen)]) / noise**2
    target = {n: IntervalPart(share=s, spread=spread) for n, s in zip(CLASSES, asked, strict=True)}

    left, of_runs = remaining_uncertainty(runs, target)
    variance = of_runs**2 + math.fsum(part.deviation**2 for part in left.values())
    correction = float(error_weights(runs, target) @ np.array([run.error for run in runs]))

    found = moved(runs)
    assert [found[name] for name in CLASSES] == pytest.approx(means.tolist(), abs=1e-9)
    assert correction == pytest.approx(float(means @ np.array(asked)), abs=1e-9)
    assert variance == pytest.approx(float(np.array(asked) @ posterior @ np.array(asked)), abs=1e-9)
