"""Residuals that put 80 % of the errors inside their intervals, and the rows that ship."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.intervals import coverages, is_row
from benchmarks.recipe_files import recipe_job, recipes
from wattree import job_from_mapping, simulate
from wattree.accounts.interval import DEVIATIONS
from wattree.accounts.known import EvidenceClass
from wattree.cost import load_calibration
from wattree.trace import IntervalPart
from wattree.validation import coverage
from wattree.validation.coverage import (
    deviation_of,
    fitted_pair_spread,
    fitted_spreads,
    pair_deviation,
    pairs_of,
)
from wattree.validation.left_out import LeftOutError
from wattree.validation.rows import bundled_rows


def left_out(error: float, **changes: Any) -> LeftOutError:
    """Return a row that was left out."""
    level = changes.pop("level", "device")
    share = changes.pop("share", 1.0)
    given: dict[str, Any] = {
        "row": SimpleNamespace(),
        "facts": SimpleNamespace(),
        "hold_out": "source",
        "group": "one",
        "error": error,
        "parts": {"products": IntervalPart(share=share, spread=0.02)},
        "at_levels": {"products": IntervalPart(share=share, spread=0.02)},
        "levels": {"products": level},
        "known": EvidenceClass(kind="language", level=level, software="measured"),
    }
    return LeftOutError(**{**given, **changes})


def sample() -> list[LeftOutError]:
    """Return rows of three classes; errors have heavier tails than a normal distribution."""
    random = np.random.default_rng(3)
    draw = lambda scale: scale * float(random.standard_t(3))  # noqa: E731 - short
    far = EvidenceClass(kind="language", level="pooled", software="measured")
    unknown = EvidenceClass(kind="language", level="device", software="unmeasured")
    rows = [left_out(draw(0.05)) for _ in range(300)]
    rows += [left_out(draw(0.15), hold_out="device", level="pooled", known=far) for _ in range(200)]
    return rows + [left_out(draw(0.1), hold_out="family", known=unknown) for _ in range(200)]


def test_each_class_is_covered() -> None:
    """80 % of its rows, whatever the shape of their errors."""
    rows = sample()
    spreads = fitted_spreads(rows)
    found = {(each.hold_out, each.known): each.inside for each in coverages(rows, spreads)}

    for hold_out, known in (
        ("all", "all"),
        ("source", "language, device, measured"),
        ("device", "language, pooled, measured"),
        ("family", "language, device, unmeasured"),
    ):
        assert found[hold_out, known] == pytest.approx(0.8, abs=0.015)


def test_runs_that_are_slower_widen_intervals_above_alone() -> None:
    """Of 200, a fifth is far slower than predicted, and nothing faster by more than 2 %."""
    rows = [left_out(-0.4 if i % 5 == 0 else 0.02 * (i % 3 - 1)) for i in range(200)]
    spreads = fitted_spreads(rows)

    below, above = (left_out(error) for error in (0.1, -0.1))
    assert deviation_of(below, spreads) == pytest.approx(0.02)  # of the constants alone
    assert deviation_of(above, spreads) == pytest.approx(0.4 / DEVIATIONS)
    assert spreads["step_time_s.language.slower.released"] > 0.3


def test_whole_runs_widen_runs_alone() -> None:
    """Each publisher counts once: one of five is slower, with more runs than all others."""
    rows = [left_out(0.0, hold_out="published", group=f"{i}") for i in range(40)]
    runs = [left_out(0.0, hold_out="published", group=f"{i % 4}") for i in range(8)]
    slow = [left_out(-0.8, hold_out="published", group="slow")] * 3
    spreads = fitted_spreads(
        [replace(each, whole=each.group in "0123slow") for each in [*rows, *runs, *slow]]
    )

    spread = spreads.pop("run.slower")
    assert math.hypot(deviation_of(slow[0], spreads), spread) == pytest.approx(0.8 / DEVIATIONS)
    assert spread > 0.5
    assert "run.slower" not in fitted_spreads(rows)


def test_published_runs_count_as_much_as_all_rows() -> None:
    """However many hold-outs the rows are in: a user's job is nobody's row."""
    rows = [left_out(0.05, hold_out=kind) for kind in ("source", "device", "family")] * 40
    published = [left_out(0.3, hold_out="published", group=f"{i}") for i in range(20)]

    spread = fitted_spreads([*rows, *published])["step_time_s.kind.language"]
    assert spread == pytest.approx(0.3 / DEVIATIONS, rel=0.01)


def test_what_is_farther_is_wider() -> None:
    """Of levels, and of software without rows."""
    spreads = fitted_spreads(sample())

    assert spreads["step_time_s.language.level.pooled"] > spreads["step_time_s.language.level.die"]
    near, far = left_out(0.0), left_out(0.0, level="pooled")
    assert deviation_of(far, spreads) > deviation_of(near, spreads) > 0.02


def test_slower_steps_of_loops_between_two_classes_lie_between() -> None:
    """Without runs of scripts: half way from released loops to unknown software."""
    name = "step_time_s.language.slower"
    found = fitted_spreads([left_out(0.0)] * 10, {f"{name}.generic": 0.2})

    assert found[f"{name}.script"] == pytest.approx(0.1)


def test_jobs_as_first_written_tell_how_much_slower_scripts_are() -> None:
    """Forty publishers of such tell alone; of two, most is left to the jobs of others."""
    later = [left_out(-0.1, hold_out="published", group=f"{i}") for i in range(40)]
    for publishers, found in ((40, 0.6), (2, 0.1)):
        written = [
            left_out(-0.6, hold_out="as first written", group=f"{i}") for i in range(publishers)
        ]
        rows = [replace(each, known=replace(each.known, scripted=True)) for each in later + written]
        faster = [left_out(0.0) for _ in range(20)]
        spreads = fitted_spreads([*faster, *rows])
        wide = spreads["step_time_s.language.slower.script"]
        assert wide == pytest.approx(found / DEVIATIONS, rel=0.1), publishers
        assert spreads["step_time_s.language.slower.released"] < 0.01


def test_what_no_row_tells_keeps_its_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of language models tell nothing of networks, nor of software that no job names."""
    monkeypatch.setattr(coverage, "strategy_pairs", lambda _: [])
    before = load_calibration()
    facts = SimpleNamespace(
        kind="language", form="decoder", software="torchtitan", device="gb200",
        vendor="nvidia", vocabulary=32000.0, devices=8.0,
    )  # fmt: skip
    rows = [replace(each, facts=facts) for each in sample()]  # type: ignore[arg-type]

    found = coverage.with_residuals(before, rows, [], command="").residuals

    old = before.residuals
    for name in (
        "language.slower.generic",
        "language.form.new",
        "network.form.new",
        "network.level.pooled",
        "network.software.unmeasured",
    ):
        assert found.spreads[f"step_time_s.{name}"] == old.spreads[f"step_time_s.{name}"]
    generic, unmeasured = (
        found.spreads[f"step_time_s.language.software.{known}"]
        for known in ("generic", "unmeasured")
    )
    assert unmeasured > 0.1
    # It keeps its own, but what is known less is no surer.
    assert generic == max(old.spreads["step_time_s.language.software.generic"], unmeasured)
    assert found.rows["network.devices"] == old.rows["network.devices"]
    assert found.rows["language.devices"] == ("gb200",)
    assert found.rows["language.vendors"] == ("nvidia",)


def test_a_fit_without_published_runs_narrows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of few hands would make other people's runs look better known than they are."""
    monkeypatch.setattr(coverage, "strategy_pairs", lambda _: [])
    monkeypatch.setattr(coverage, "measured_by", lambda _: SimpleNamespace(as_rows=dict))
    before = load_calibration()

    found = coverage.with_residuals(before, [left_out(0.0)] * 20, [], command="").residuals

    kind = "step_time_s.kind.language"
    assert found.spreads[kind] == before.residuals.spreads[kind]


def test_rows_left_out_at_random_determine_no_spread() -> None:
    """The fit had other rows of their source."""
    rows = [left_out(0.04 * (i % 10) / 10) for i in range(200)]

    assert fitted_spreads([*rows, *[left_out(0.5, hold_out="random")] * 500]) == fitted_spreads(
        rows
    )


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_rows_without_a_share_determine_no_spread(share: float) -> None:
    """Their errors are of what else the step consists of; none would explain them."""
    far = EvidenceClass(kind="language", level="pooled", software="measured")
    rows = [left_out(0.1, level="pooled", known=far) for _ in range(100)]
    others = [left_out(0.3, level="pooled", known=far, share=share) for _ in range(100)]

    assert fitted_spreads([*rows, *others]) == fitted_spreads(rows)


def test_each_publisher_counts_once() -> None:
    """Many runs of one that is far off do not decide."""
    rows = [left_out(0.04 * (i % 10) / 10) for i in range(200)]
    published = {"hold_out": "published"}
    far = [left_out(0.5, group="far", **published) for _ in range(50)]
    near = [left_out(0.1, group=f"near {i}", **published) for i in range(9)]

    alone, of_both = fitted_spreads(rows), fitted_spreads([*rows, *far, *near])

    kind = "step_time_s.kind.language"
    assert 1.5 * alone[kind] < of_both[kind] < 0.1


def test_measured_software_is_unknown_on_a_vendor_without_rows() -> None:
    """Its libraries are others: rows of a fit on one vendor's devices tell nothing of them."""
    job = {"model": "llama-3.1-8b", "data": {"sequence_length": 4096, "global_batch": 16}}
    job |= {"software": "torchtitan", "strategy": {"dp": 8, "sharding": "zero3"}}

    def evidence(node: str) -> str:
        job["cluster"] = {"node": node, "nodes": 1}
        return simulate(job_from_mapping(job)).result.evidence_class

    assert "measured" in evidence("dgx-h100")
    assert "generic" in evidence("8x-mi300x")


def test_pairs_differ_in_what_they_rest_on() -> None:
    """What two rows rest on alike cancels."""
    one, other, third = left_out(0.1), left_out(0.13), left_out(0.1, share=0.5)

    assert pair_deviation(one, other) == 0.0
    assert pair_deviation(one, third) == pytest.approx(0.5 * 0.02)
    assert pairs_of([one, other], lambda _: 0) == [(pytest.approx(0.03), 0.0)]
    errors = np.random.default_rng(1).normal(0.0, 0.04, 2000)
    assert fitted_pair_spread([(e, 0.0) for e in errors]) == pytest.approx(0.04, rel=0.1)


def test_a_recipe_is_the_row_of_its_model_alone(tmp_path: Path) -> None:
    """Another model's row may have its devices and, by chance, its step time."""
    recipe = recipe_job("torchtitan", recipes("torchtitan")[0], tmp_path)
    alike = [
        replace(row, n_accel=8, dp=8, fsdp_shard=8, step_time_s=recipe.measured_s)
        for row in bundled_rows()
        if row.core and row.source_id in {"torchtitan-2024-12", "llm-foundry"} and row.n_accel == 8
    ]

    same = {row.model_name for row in alike if is_row(recipe, row)}

    assert same == {"Llama 3.1 8B"}
    assert len({row.model_name for row in alike}) > 1
