"""Mixes of strategies by kind of block and by stage."""

from __future__ import annotations

import pytest

from benchmarks.mixed import recomputed, sharded, simulated, unsplit
from tests.search.jobs import job, setting
from wattree import simulate
from wattree.predict import predicted
from wattree.predict.execute import written_out
from wattree.strategy import StrategyOptions


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
        assert found.step_time_s == uniform.step_time_s
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
