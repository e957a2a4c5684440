"""One row of a group as a run of the user's own: what it tells of the others, and what not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.observed_errors import (
    coverage,
    fitted_noise,
    groups_of,
    mean_square,
    observed_errors,
    several_errors,
)
from wattree.accounts.known import EvidenceClass, JobFacts
from wattree.trace import IntervalPart
from wattree.validation.left_out import LeftOutError

#: Residuals under which what a group errs by alike is wide.
SPREADS = {
    "step_time_s.kind.language": 0.1,
    "step_time_s.language.software.unmeasured": 0.1,
    "step_time_s.observed.language": 0.05,
}


def left_out(error: float, *, number: int = 0, source: str = "one", **changes: Any) -> LeftOutError:
    """Return a row with software that has no rows."""
    expressed = SimpleNamespace(
        row=SimpleNamespace(source_id=source, row_id=f"{source}-{number}"),
        job=SimpleNamespace(precision="bf16"),
    )
    facts = JobFacts(
        kind=changes.pop("kind", "language"),
        form="decoder",
        vocabulary=32000.0,
        software="accelerate",
        device="h100-sxm-80gb",
        vendor="nvidia",
        devices=8.0,
    )
    parts = {"products": IntervalPart(share=0.9, spread=0.02)}
    found: dict[str, Any] = {
        "row": SimpleNamespace(expressed=expressed, measured_s=10.0),
        "facts": facts,
        "hold_out": "source",
        "group": source,
        "error": error,
        "parts": parts,
        "at_levels": parts,
        "levels": {"products": "device"},
        "known": EvidenceClass(kind=facts.kind, level="device", software="unmeasured"),
    }
    return LeftOutError(**{**found, **changes})


def drawn(groups: int, rows: int, *, alike: float, noise: float) -> list[LeftOutError]:
    """Return groups whose rows err by something in common, and by something of their own."""
    random = np.random.default_rng(4)
    common = alike * random.standard_normal(groups)
    own = noise * random.standard_normal((groups, rows))
    return [
        left_out(float(common[group] + own[group, row]), number=row, source=f"group {group}")
        for group in range(groups)
        for row in range(rows)
    ]


def test_what_a_group_errs_by_alike_goes() -> None:
    """Each row with each other one as the anchor; the error of both is left with noise alone."""
    rows = [left_out(0.2, number=number) for number in range(4)]

    found = list(observed_errors(rows, SPREADS))

    assert len(found) == 4 * 3
    for each in found:
        assert each.before == 0.2
        assert 0.0 < each.after < 0.05
        assert each.spread < 0.6 * each.spread_before


def test_groups_of_two_rows_say_nothing() -> None:
    """Nor do rows that were left out by something else count with them."""
    rows = [left_out(0.1, number=number) for number in range(2)]
    rows += [left_out(0.1, number=number, hold_out="device") for number in range(2)]

    assert groups_of(rows) == {}


def test_another_kind_of_model_keeps_its_interval() -> None:
    """A dense model's run tells constants, not what mixtures of experts err by."""
    rows = [left_out(0.2, number=number) for number in range(2)]
    rows += [left_out(0.2, number=2, kind="experts")]

    experts = [each for each in observed_errors(rows, SPREADS) if each.kind == "experts"]

    assert experts
    assert all(each.spread == each.spread_before for each in experts)


def test_a_row_is_judged_by_the_side_on_which_it_ends() -> None:
    """Intervals reach farther up; runs may move a prediction from below a row to above it."""
    spreads = {**SPREADS, "step_time_s.language.slower.released": 0.3}
    experts = {"number": 2, "kind": "experts"}
    rows = [left_out(-0.2, number=number) for number in range(2)]

    for error, is_wide in ((-1e-4, False), (-0.2, True)):
        found = list(observed_errors([*rows, left_out(error, **experts)], spreads))
        (judged,) = {each.spread for each in found if each.kind == "experts"}
        assert (judged > 0.3) is is_wide


def test_fitted_noise_covers_and_finds_what_was_drawn() -> None:
    """80 % and more lie inside, with the noise of the rows and not what they have in common."""
    rows = drawn(40, 3, alike=0.12, noise=0.04)

    spreads = {**SPREADS, **fitted_noise(rows, SPREADS)}

    assert spreads["step_time_s.observed.language"] == pytest.approx(0.04, rel=0.25)
    assert 0.78 < coverage(list(observed_errors(rows, spreads))) < 0.88


def test_anchors_do_not_worsen_rows_that_have_nothing_in_common() -> None:
    """Priors of 0.15 say that errors are alike; the fit finds that they are not."""
    rows = drawn(40, 3, alike=0.0, noise=0.1)

    spreads = {**SPREADS, **fitted_noise(rows, SPREADS)}

    found = list(observed_errors(rows, spreads))
    least = mean_square(found)
    assert least < mean_square(list(observed_errors(rows, SPREADS)))
    assert least == pytest.approx(np.mean([each.before**2 for each in found]), rel=0.12)


def test_what_unmeasured_software_adds_is_common_to_its_runs() -> None:
    """Noise is in what is left of every kind of model, and not in that."""
    spreads = {**SPREADS, "step_time_s.observed.language": 0.2}
    measured, unmeasured = (
        EvidenceClass(kind="language", level="device", software=known)
        for known in ("measured", "unmeasured")
    )

    assert measured.alike(spreads) == 0.0
    assert unmeasured.alike(spreads) == pytest.approx(0.1)
    # Of what steps lose, runs of one user have so much in common.
    slower = {**spreads, "step_time_s.language.slower.released": 0.25}
    assert measured.alike(slower) == pytest.approx(0.25 / np.sqrt(2.0))
    assert measured.alike({**slower, "step_time_s.language.alike": 0.09}) == pytest.approx(0.09)


def test_several_runs_tell_more_than_one() -> None:
    """What each errs by itself is averaged out; groups with too few rows are left out."""
    rows = drawn(30, 6, alike=0.12, noise=0.05)

    mean = {
        runs: np.mean([abs(each.after) for each in several_errors(rows, SPREADS, runs)])
        for runs in (1, 4)
    }

    assert mean[4] < 0.9 * mean[1]
    assert list(several_errors(rows, SPREADS, 6)) == []
