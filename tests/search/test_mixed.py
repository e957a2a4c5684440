"""Planning for pools of different nodes: screened as played, and cut by speed."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.jobs import job, setting
from wattree.closed_form.strategies import stage_pools
from wattree.cost import SOFTWARE, load_calibration
from wattree.hardware import Pool
from wattree.job import Job
from wattree.job.offers import offer_of
from wattree.lowering.offered import model_offer
from wattree.predict import predicted, setting_of
from wattree.predict.checked import checked
from wattree.search import plan
from wattree.search.balance import even_stage_layers
from wattree.search.fixes import memory_fixes
from wattree.search.limits import Limits
from wattree.search.screen import screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions

MIXED = {
    "pools": [{"node": "dgx-h100"}, {"node": "dgx-a100"}],
    "fabric": "infiniband-ndr-fat-tree",
}


#: Part of the space, for time; every axis and both ends of the shardings.
LIMITS = Limits(
    micro_batches=(1, 2),
    axes={"cp": (1, 2)},
    shardings=("none", "zero3"),
    schedules=("1f1b", "interleaved"),
)


@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b"])
def test_estimates_are_close_to_simulations(model: str, *, soaking: bool) -> None:
    """As on one kind of node, and within the same bounds."""
    where = setting(cluster=MIXED, model=model, batch=32)
    space = enumerate_space(where, limits=LIMITS)
    screened = screen(where, space)
    sample = random.Random(3).sample(range(len(space)), 24 if soaking else 8)

    results = [predicted(where, screened.options(index), detail=False).result for index in sample]

    time_s = np.array([r.step_time_s for r in results])
    energy = np.array([r.energy_j.total for r in results])
    share = np.array([r.memory.peak_bytes / r.memory.capacity_bytes for r in results])
    errors = np.abs(screened.step_time_s[sample] / time_s - 1)
    assert np.median(errors) < 0.04
    assert np.quantile(errors, 0.8) < 0.12
    estimated = screened.memory_bytes[sample] / screened.capacity_bytes[sample]
    assert np.abs(estimated / share - 1).max() < 0.08
    assert np.median(np.abs(screened.energy_j[sample] / energy - 1)) < 0.05


def test_pools_go_with_every_software() -> None:
    """In checks, and where a search asks what the software offers on its devices."""
    model = setting().model
    jobs = [job(cluster=MIXED, software=name) for name in sorted(SOFTWARE)]

    for each in jobs:
        assert "16 devices, 80 GiB each" in checked(each).facts["cluster"]
        offered = model_offer(each.software, model, each, compiled=False)
        assert bool(offered) == bool(offer_of(each.software))


def test_pools_that_differ_in_name_are_screened_as_one() -> None:
    """Every figure of every strategy."""
    one = job(nodes=2, batch=32)
    pool = one.cluster.pool
    other = replace(pool.node, name="another-name")
    pools = (replace(pool, nodes=1), Pool(node=other, nodes=1))
    limits = replace(LIMITS, cuts=False)

    plain, two = (
        (at, screen(at, enumerate_space(at, limits=limits)))
        for at in (
            setting_of(each, load_calibration())
            for each in (one, replace(one, cluster=replace(one.cluster, pools=pools)))
        )
    )

    for name in ("step_time_s", "memory_bytes", "energy_j", "peak_power_w", "rent_usd_per_s"):
        np.testing.assert_allclose(getattr(two[1], name), getattr(plain[1], name), rtol=1e-12)


@given(
    layer_s=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=4),
    extra_s=st.floats(0.0, 20.0),
    spare=st.integers(0, 6),
)
def test_dealt_out_layers_make_the_longest_stage_as_short_as_can_be(
    layer_s: list[float], extra_s: float, spare: int
) -> None:
    """Against every way to cut."""
    stages, layers = len(layer_s), len(layer_s) + spare
    extra = [extra_s, *[0.0] * (stages - 1)]

    def longest(cut: tuple[int, ...]) -> float:
        return max(e + n * s for e, n, s in zip(extra, cut, layer_s, strict=True))

    columns = np.array([layer_s, extra])[:, :, None]
    (cut,) = even_stage_layers(columns[0], columns[1], layers).T.tolist()

    every = itertools.product(range(1, layers + 1), repeat=stages)
    assert sum(cut) == layers
    assert longest(tuple(cut)) == pytest.approx(
        min(longest(each) for each in every if sum(each) == layers)
    )


@pytest.mark.parametrize(
    ("ranks", "stages", "expected"),
    [
        (16, 2, [[1, 0], [0, 1]]),
        (16, 1, [[0.5], [0.5]]),
        (16, 4, [[1, 1, 0, 0], [0, 0, 1, 1]]),
        (12, 3, [[1, 1, 0], [0, 0, 1]]),
        (15, 3, [[1, 0.6, 0], [0, 0.4, 1]]),
        (8, 2, [[1, 1], [0, 0]]),
    ],
)
def test_stages_lie_on_the_pools_that_their_ranks_lie_on(
    ranks: int, stages: int, expected: list[list[float]]
) -> None:
    """One node of eight devices after the other."""
    found = stage_pools(job(cluster=MIXED).cluster, ranks, stages)

    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_plan_for_a_large_model_cuts_the_pipeline_by_speed() -> None:
    """And simulates faster than the same pipeline in equal parts."""
    limits = Limits(
        axes={"cp": (1,), "ep": (1,), "fsdp": (1,), "tp": (1, 2), "pp": (1, 2, 4)},
        micro_batches=(1,),
        shardings=("zero1",),
        schedules=("1f1b",),
    )
    wanted: Job = job(cluster=MIXED, model="llama-3.1-8b", batch=128, sequence=2048)

    best = plan(wanted, limits=limits).best

    assert best is not None
    cut = best.options.pipeline.stage_layers
    assert cut is not None
    assert cut[0] > cut[-1]
    where = setting_of(wanted, load_calibration())
    equal = predicted(where, replace(best.options, stage_layers=None)).result
    assert best.result.step_time_s < 0.85 * equal.step_time_s
    assert f"{'+'.join(map(str, cut))} layers" in best.label


def test_memory_that_does_not_fit_on_one_pool_is_mended_by_a_cut() -> None:
    """Fewer layers for the devices with less memory and less speed."""
    pools = [{"node": "dgx-h100"}, {"node": "dgx-a100-40gb"}]
    where = setting(
        cluster=MIXED | {"pools": pools},
        model="qwen3-32b",
        batch=16,
        sequence=18432,
        traits={"gradient_bytes": 4.0},
    )
    options = StrategyOptions(
        pp=2, tp=8, sharding="zero1", sequence_parallel=True, recompute="full"
    )

    assert not predicted(where, options).result.memory.fits
    assert [fix.change for fix in memory_fixes(where, options)] == ["stage_layers [48, 16]"]


def test_fewer_devices_are_the_first_nodes_whole_or_part_of_the_first() -> None:
    """So that no job is planned for half of a node of one kind and a whole one of another."""
    found = plan(
        job(cluster=MIXED, batch=32),
        objective="energy",
        limits=Limits(shardings=("none",), micro_batches=(1,), axes={"pp": (1,), "cp": (1,)}),
    )

    assert {entry.result.ranks for entry in found.ranked} <= {1, 2, 4, 8, 16}
