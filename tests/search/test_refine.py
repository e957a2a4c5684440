"""Strategies near the most promising: schedules, uneven stages, partial recomputation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.search.jobs import FEW, job, setting
from wattree import plan
from wattree.closed_form.strategies import estimate
from wattree.job.offers import Offer, offer_of
from wattree.predict import Shared, predicted
from wattree.search.limits import Limits
from wattree.search.offered import of_other_software
from wattree.search.refine import refined_space, worth_it
from wattree.search.screen import Constraints, ScreenedSpace, screen
from wattree.search.space import Space, enumerate_space
from wattree.strategy import StrategyOptions
from wattree.strategy.schedules import PIPELINE_SCHEDULES

#: Pipelines alone, of which there are few.
DEEP = Limits(axes={"tp": (1,), "cp": (1,), "dp": (1, 2)}, shardings=("none",))


def screened(limits: Limits = DEEP, **changes: object) -> ScreenedSpace:
    """Return the space of a small job with its estimates."""
    own = setting(**changes)
    return screen(own, enumerate_space(own, limits=limits))


def refined(limits: Limits = DEEP, *, usable: float = 1.0, **changes: object) -> Space:
    """Return what is near the most promising, with a part of the memory."""
    own, found = setting(**changes), screened(limits, **changes)
    room = Constraints(margin=1.0 - usable)
    fits = found.fits(room)
    return refined_space(own, found, fits, limits, constraints=(room,), shared=Shared())


def test_every_schedule_that_is_not_listed_is_tried() -> None:
    """On pipelines alone, each with its own chunks; what runs in the executor runs here."""
    found = list(refined())
    schedules = {options.pipeline.schedule for options in found}

    assert schedules >= set(PIPELINE_SCHEDULES) - {"gpipe", "interleaved"}
    assert {options.pp for options in found} == {4, 8}
    for name in schedules:
        options = next(each for each in found if each.pipeline.schedule == name)
        assert predicted(setting(), options).result.step_time_s > 0


def test_schedules_screened_together_are_as_each_alone() -> None:
    """Strategies that differ in the schedule share costs, and once shared the first's schedule."""
    space = refined()
    found = screen(setting(), space)
    some = range(0, len(space), 3)
    own = setting()
    alone = [float(estimate(own, found.options(index)).step_time_s[0]) for index in some]

    assert found.step_time_s[some].tolist() == pytest.approx(alone, rel=1e-9)


def test_only_what_the_software_offers() -> None:
    """V schedules of torchtitan, none of Megatron-Core; recomputation by layer where there is."""
    for software, expected in (
        ("torchtitan", {"1f1b", "breadth-first", "zb-v", "dualpipev"}),
        ("megatron-core", {"1f1b"}),
    ):
        own = Limits(axes=DEEP.axes, shardings=("none",), offer=offer_of(software))
        found = {options.pipeline.schedule for options in refined(own)}
        assert found <= expected
    bare = Offer(software="x", version="1", source="x", choices={"recompute": ("none", "full")})
    own = Limits(axes=DEEP.axes, shardings=("none",), offer=bare)
    assert all(options.memory.recompute in {"none", "full"} for options in refined(own, usable=0.2))


@pytest.mark.parametrize(
    ("software", "schedule", "warns"),
    [("auto", "dualpipev", True), ("auto", "1f1b", False), ("megatron-lm", "dualpipev", False)],
)
def test_a_plan_without_software_says_what_the_assumed_one_lacks(
    software: str, schedule: str, *, warns: bool
) -> None:
    """Strategies of any software are tried where a job names none, with one family's constants."""
    options = StrategyOptions(dp=2, pp=4, schedule=schedule, micro_batch=1)
    found = of_other_software(setting(software=software), options)

    assert bool(found) is warns
    assert all("megatron-core, whose constants count, has no schedule dual" in e for e in found)


def test_uneven_stages_make_up_for_embedding_and_head() -> None:
    """The longest stage of the cut is no longer than that of the even one."""
    cuts = [o for o in refined() if o.pipeline.stage_layers is not None]

    assert cuts
    for options in cuts:
        layers = options.pipeline.stage_layers
        assert layers is not None
        assert sum(layers) == 12
        assert layers[-1] <= max(layers)
        even = options.changed(stage_layers=None)
        own, plain = (
            predicted(setting(), each, detail=False).result.step_time_s for each in (options, even)
        )
        assert own <= plain * 1.02


def test_part_of_the_layers_is_recomputed_where_all_are_too_many() -> None:
    """With less memory than storing everything takes, and more than recomputing everything does."""
    whole = screened()
    stored = [o.memory.recompute == "none" for o in whole.space]
    usable = 0.9 * float((whole.memory_bytes / whole.capacity_bytes)[stored].min())
    found = [o for o in refined(usable=usable) if o.memory.recompute.startswith("block_")]

    assert {options.memory.recompute for options in found} == {
        "block_2",
        "block_3",
        "block_4",
        "block_8",
    }


def test_schedules_that_lack_memory_are_partly_recomputed() -> None:
    """Those that spaces list and those that they do not, where all of them store too much."""
    whole = screened()
    piped = [o.memory.recompute == "none" and o.pp > 1 for o in whole.space]
    usable = 0.9 * float((whole.memory_bytes / whole.capacity_bytes)[piped].min())
    again = [o for o in refined(usable=usable) if o.memory.recompute != "none" and o.pp > 1]

    assert {o.memory.recompute for o in again} >= {"block_2", "selective"}
    assert {o.pipeline.schedule for o in again} >= {"1f1b", "interleaved", "zb-h1", "zb-v"}


def test_a_plan_is_never_worse_and_keeps_to_its_limits() -> None:
    """Alongside the plan without; named schedules and recomputations are all there are."""
    for changes in (
        {"model": "bert-base", "batch": 32},
        {"model": "gpt2", "batch": 32, "software": "torchtitan"},
    ):
        own, plain = (
            plan(job(**changes), limits=replace(DEEP, refined=refined), top=3)
            for refined in (True, False)
        )
        assert own.best is not None
        assert plain.best is not None
        assert own.best.result.step_time_s <= plain.best.result.step_time_s
    named = plan(job(), limits=FEW, top=3)
    assert {each.options.pipeline.schedule for each in named.ranked} <= {"1f1b"}


def test_a_plan_takes_the_better_schedule() -> None:
    """A pipeline of few micro-batches, of which schedules in a V lose less."""
    axes = {"dp": (2,), "fsdp": (1,), "tp": (1,), "cp": (1,), "pp": (4,)}
    own, plain = (
        plan(
            job(batch=8, software="pytorch"),
            limits=Limits(axes=axes, shardings=("none",), refined=refined),
            top=20,
        )
        for refined in (True, False)
    )
    best, listed = (
        next(each for each in found.ranked if each.options.pp == 4) for found in (own, plain)
    )

    assert best.options.pipeline.schedule not in Limits().schedules
    assert best.result.step_time_s < 0.99 * listed.result.step_time_s
    assert (
        best.result.step_time_s
        == predicted(setting(batch=8, software="pytorch"), best.options).result.step_time_s
    )


def test_a_schedule_that_the_jobs_software_has_need_not_be_much_better() -> None:
    """Once `--any-software` dropped one, and answered with a slower strategy than without it."""
    best = plan(job(), limits=FEW, top=1).best
    assert best is not None
    changed = replace(best, options=best.options.changed(schedule="zb-v"))

    for software, expected in (("torchtitan", True), ("megatron-core", False), ("auto", False)):
        assert worth_it(setting(software=software), changed, best, "time") is expected
