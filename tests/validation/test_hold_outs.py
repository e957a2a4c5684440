"""What a fit does not see, and how levels of constants pull at each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from wattree.cost import load_calibration
from wattree.hardware import load_device
from wattree.validation.calibrate import CalibrationFit, FitRow, _prior_normal, solved
from wattree.validation.hold_outs import _learned_on, _without, hold_outs
from wattree.validation.priors import FITTED, Prior


def row(source: str, device: str, devices: int, model: str = "a", family: str = "A") -> FitRow:
    """Return what hold-outs see of a row."""
    node = SimpleNamespace(device=load_device(device))
    cluster = SimpleNamespace(node=node, devices=devices)
    measured = SimpleNamespace(source_id=source, model_name=model, model_family=family)
    expressed = SimpleNamespace(row=measured, job=SimpleNamespace(cluster=cluster))
    return cast("FitRow", SimpleNamespace(expressed=expressed, key=(source, model, devices)))


ROWS = [
    row("one", "a100-sxm-80gb", 8),
    row("one", "a100-sxm-80gb", 64),
    row("two", "h100-sxm-80gb", 96),
    row("two", "h100-sxm-80gb", 128, "b", "B"),
    row("two", "gb200", 512, "b", "B"),
]


def fitted() -> CalibrationFit:
    """Return a fit with the constants that ship."""
    shape: Any = np.zeros((len(ROWS), len(FITTED)))
    return CalibrationFit(
        calibration=load_calibration(),
        spread={},
        logs=np.zeros(len(ROWS)),
        jacobian=shape,
        priors=FITTED,
    )


def test_every_row_is_held_out_once_of_each_kind_but_scale() -> None:
    """Means over rows would count some twice."""
    cases = list(hold_outs(ROWS))

    for kind in ("source", "device", "model", "model family", "random"):
        assert sum(case.held.astype(int) for case in cases if case.kind == kind).tolist() == [1] * 5


def test_scale_is_learned_from_few_devices_and_scored_on_many() -> None:
    """Rows between are neither."""
    (case,) = (case for case in hold_outs(ROWS) if case.kind == "scale")

    assert case.seen.tolist() == [True, True, False, False, False]
    assert case.held.tolist() == [False, False, False, True, True]


def test_a_device_goes_with_its_die_where_no_other_measured_one_has_it() -> None:
    """Else its rows would be predicted with what was learned on itself."""
    full = fitted()
    left = _without(
        full.calibration, _learned_on(load_device("a100-sxm-80gb"), ROWS, full)
    ).constants

    assert not any("a100" in name and "matmul" in name for name in left)
    assert not any(name.startswith(("die.ga100.", "architecture.ampere.")) for name in left)


def test_a_sibling_keeps_what_it_knows_of_a_die() -> None:
    """H200 has GH100's products; H100's own are gone."""
    full = fitted()
    left = _without(
        full.calibration, _learned_on(load_device("h100-sxm-80gb"), ROWS, full)
    ).constants

    assert "device.h100-sxm-80gb.matmul.bf16" not in left
    assert left["die.gh100.matmul.bf16"].value == pytest.approx(
        left["device.h200-sxm-141gb.matmul.bf16"].value
    )


def test_without_rows_a_constant_is_the_multiple_of_its_parent() -> None:
    """The prior of a level is that of the level above, and its own factor."""
    priors = {
        "pooled.x": Prior(value=2.0, spread=0.5, source=""),
        "die.a.x": Prior(value=1.5, spread=0.1, source="", parent="pooled.x"),
    }

    normal, right = _prior_normal(priors)

    assert np.exp(np.linalg.solve(normal, right)) == pytest.approx([2.0, 3.0])


def test_a_child_pulls_its_parent_less_the_freer_it_is() -> None:
    """Partial pooling: what one die shows says something of all."""
    pulled = []
    for spread in (0.01, 1.0):
        normal, right = _prior_normal(
            {
                "pooled.x": Prior(value=1.0, spread=0.1, source=""),
                "die.a.x": Prior(value=1.0, spread=spread, source="", parent="pooled.x"),
            }
        )
        normal[1, 1] += 1e4  # rows that know the child to a hundredth
        right[1] += 1e4 * np.log(1.2)
        pulled.append(float(np.exp(np.linalg.solve(normal, right))[0]))

    assert pulled[0] > 1.15
    assert pulled[1] < 1.01


def test_constants_of_language_models_stay_few() -> None:
    """Each one more can learn a source by heart."""
    assert len(FITTED) <= 45


def _found(sources: list[str]) -> float:
    """Return a family's factor fitted to rows of these sources that take twice as long."""
    rows = [
        SimpleNamespace(
            measured_s=2.0,
            expressed=SimpleNamespace(
                row=SimpleNamespace(source_id=each), job=SimpleNamespace(software="jax")
            ),
        )
        for each in sources
    ]
    name = "family.jax.math"
    (log,) = solved(
        cast("Any", rows),
        np.zeros(len(rows)),
        -np.ones((len(rows), 1)),
        np.ones(len(rows)),
        calibration=load_calibration().replaced({name: 1.0}),
        priors={name: Prior(value=1.0, spread=0.1, source="")},
    )
    return float(np.exp(log))


def test_rows_of_one_source_are_one_fact_about_its_family() -> None:
    """They may err in common, by what only they do."""
    assert 0.7 < _found(["one"] * 100) < 0.72  # as far from the prior as from the rows
    assert _found(["one", "two"] * 50) < 0.52
