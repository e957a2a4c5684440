"""Mixes of strategies by kind of block and by stage."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.mixed import every_mix
from tests.search.jobs import FEW, job, setting
from wattree import plan, simulate
from wattree.closed_form.strategies import Shared
from wattree.job.offers import offer_of
from wattree.predict import Setting, predicted
from wattree.predict.execute import written_out
from wattree.report import show_plan
from wattree.search.mixed import (
    MixChange,
    best_mix,
    changes_near,
    fitting_s,
    mix_result,
    mixed_near,
    recomputed,
    sharded,
    unsplit,
)
from wattree.search.promising import misses, ranked_strategy
from wattree.search.screen import Constraints, screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions, StrategyTree, options_in_words
from wattree.trace import Result


def simulated(own: Setting, base: StrategyOptions, tree: StrategyTree) -> Result | None:
    """Return what a strategy with other choices would do."""
    return mix_result(own, base, (MixChange(place="", words="", tree=tree),))


def test_a_mix_of_everything_is_the_uniform_strategy() -> None:
    """What a mix does to all blocks, an option of the strategy does: same time, same memory."""
    own = setting()
    plain = StrategyOptions(dp=4, pp=2, sharding="zero1")
    every = [instance.path for instance in own.model.instances]
    layers = [instance.path for instance in own.model.instances if instance.is_layer]

    for mix, option in (
        (sharded(every), {"sharding": "zero3"}),
        (recomputed(layers), {"recompute": "full"}),
    ):
        found = simulated(own, plain, mix)
        uniform = predicted(own, plain.changed(**option), detail=False).result
        assert found is not None
        assert found.step_time_s == pytest.approx(uniform.step_time_s, rel=1e-12)
        assert found.memory.peak_bytes == uniform.memory.peak_bytes


def test_blocks_that_are_all_data_parallel_are_replicas() -> None:
    """Tensor-parallel ranks that take samples of all blocks are so many more replicas."""
    own = setting()
    for sharding in ("none", "zero1", "zero3"):
        base = StrategyOptions(dp=4, tp=2, sharding=sharding, sequence_parallel=True, micro_batch=2)
        every = list(own.model.blocks)
        found = simulated(own, base, unsplit(written_out(own, base), own.model, every))
        replicas = StrategyOptions(dp=8, sharding=sharding, micro_batch=1)
        uniform = predicted(own, replicas, detail=False).result
        assert found is not None
        assert found.step_time_s == pytest.approx(uniform.step_time_s, rel=0.001)
        # Communicators of two axes hold more buffers; all else is the same.
        mine, theirs = (dict(each.memory.by_category) for each in (found, uniform))
        assert mine.pop("communication") > theirs.pop("communication")
        assert mine == pytest.approx(theirs)


def test_a_mix_lies_between_what_it_mixes() -> None:
    """In memory and in time, by the number of stages that recompute."""
    own = setting()
    plain = StrategyOptions(dp=2, pp=4, sharding="none")
    layers = [instance.path for instance in own.model.instances if instance.is_layer]
    found = [simulated(own, plain, recomputed(layers[:count])) for count in (0, 3, 6, 12)]

    times = [each.step_time_s for each in found if each is not None]
    peaks = [each.memory.peak_bytes for each in found if each is not None]
    assert len(times) == len(found)
    assert times == sorted(times)
    assert times[0] < times[-1]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[-1]


def test_a_mix_is_written_as_a_job_that_simulates_to_the_same() -> None:
    """A mix needs no option: the tree that results print is a strategy of a job file."""
    own = setting()
    paths = ["head", *(i.path for i in own.model.instances if i.is_layer)][:5]
    plain = StrategyOptions(dp=4, pp=2, sharding="zero1")
    found = simulated(own, plain, sharded(paths).merged(recomputed(paths[1:])))

    assert found is not None
    written = {key: value for key, value in found.strategy.items() if key != "preset"}
    again = simulate(job(strategy=written)).result
    # `simulate` adds up operators one by one, mixes are simulated in runs of them: rounding only.
    assert again.step_time_s == pytest.approx(found.step_time_s, rel=1e-12)
    assert again.memory.peak_bytes == found.memory.peak_bytes


#: For time.
_LEFT_OUT = ("layers 6 to 8", "layers 9 to 11", "embedding")


@pytest.mark.parametrize(
    ("base", "margins"),
    [
        (StrategyOptions(dp=8, sharding="none", micro_batch=2), (0.05, 0.93, 0.94, 0.97)),
        (StrategyOptions(dp=2, pp=4, sharding="none"), (0.05, 0.94, 0.942)),
        (StrategyOptions(dp=2, pp=4, sharding="zero1"), (0.05, 0.943)),
        (StrategyOptions(dp=4, tp=2, sharding="zero1", micro_batch=2), (0.05, 0.9305, 0.932)),
    ],
    ids=("replicas", "stages", "stages with ZeRO-1", "tensor ranks"),
)
def test_the_search_finds_the_best_of_all_mixes(
    base: StrategyOptions, margins: tuple[float, ...]
) -> None:
    """With room for everything, with little, and with none: at most half a percent is missed."""
    own = setting()
    changes = [each for each in changes_near(own, base) if each.place not in _LEFT_OUT]
    every = [mix_result(own, base, some) for some in every_mix(changes)]
    for margin in margins:
        constraints = Constraints(margin=margin)
        fit = [r.step_time_s for r in every if r and not misses(r, constraints)]

        found = best_mix(own, base, constraints, changes=changes).best

        assert (found is None) == (not fit), margin
        if found is not None:
            assert found.result.step_time_s <= 1.005 * min(fit), margin
            assert found.label.startswith(options_in_words(base))


def test_a_plan_shows_a_mix_only_where_it_is_surely_better(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Narrow layers split over four ranks are slow; replicas leave little to mix."""
    own, constraints = setting(batch=64, sequence=1024), Constraints()
    split = StrategyOptions(dp=2, tp=4, micro_batch=8)
    space = enumerate_space(own, limits=FEW)
    best = ranked_strategy(split, predicted(own, split).result)

    found = mixed_near(own, best, screen(own, space), constraints, "time").best
    planned = plan(job(), limits=replace(FEW, axes={"cp": (1,), "pp": (1,)}))
    for each in (planned, replace(planned, mixed=found)):
        show_plan(each, Console(), full=False)

    assert found is not None
    assert found.probability is not None
    assert found.probability >= 0.8
    assert found.result.step_time_s < best.result.step_time_s
    assert planned.mixed is None
    assert planned.as_json()["mixed"] is None
    said = replace(planned, mixed=found).as_json()["mixed"]
    assert (said["label"], said["probability"]) == (found.label, found.probability)
    printed = capsys.readouterr().out
    assert printed.count("A mix that is better") == 1


def test_changes_that_make_a_strategy_fit_cost_its_lead() -> None:
    """The less memory there is, the more; without end where changing all blocks is not enough."""
    own, base = setting(batch=256, sequence=1024), StrategyOptions(dp=8, micro_batch=16)
    memory = predicted(own, base).result.memory
    needed = memory.peak_bytes / memory.capacity_bytes
    margins = [1.0 - needed * part for part in (1.1, 0.95, 0.9, 0.8, 0.7, 0.1)]
    found = [fitting_s(own, base, Constraints(margin=each), Shared()) for each in margins]

    assert found[0] == found[-1] == math.inf  # nothing has to be changed, or all is not enough
    assert found[1:-1] == sorted(found[1:-1])
    assert 1.05 * found[1] < found[-2] < math.inf


def test_plans_search_mixes_only_where_one_may_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of inference, not for software without them, not unrefined, not near slower ones."""
    searched = []
    monkeypatch.setattr(
        sys.modules[plan.__module__],
        "mixed_near",
        lambda *args: (searched.append(args), mixed_near(*args))[1],
    )
    few = replace(FEW, axes={"cp": (1,), "pp": (1,)})
    assert plan(job(), limits=few).mixes == 0  # replicas, and everything fits
    assert len(searched) == 1
    plan(job(workload="forward"), limits=few)
    plan(job(), limits=replace(few, offer=offer_of("torchtitan")))
    plan(job(), limits=replace(few, refined=False))
    assert len(searched) == 1
