"""Plans with several processes on a device: looked for where one leaves it idle, else not."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from wattree.closed_form.busy_share import busy_share
from wattree.cost import load_calibration
from wattree.hardware.node import MemoryTier
from wattree.job import Job, job_from_mapping
from wattree.predict import setting_of, simulate
from wattree.search import plan
from wattree.search.colocation import sharing_limits
from wattree.search.fixes import memory_fixes
from wattree.search.limits import Limits
from wattree.search.screen import screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions

ONE = Limits(micro_batches=[16], shardings=["none"], recomputations=["none"], axes={"pp": [1]})


def job(batch: int = 1024, model: Any = "resnet18", **more: Any) -> Job:
    """Return a job of eager PyTorch on a DGX A100."""
    return job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": batch},
            "cluster": {"node": "dgx-a100"},
            "precision": "amp",
            "software": "pytorch",
            "strategy": "auto",
            **more,
        }
    )


def test_a_space_of_processes_is_one_of_whole_replicas() -> None:
    """All devices hold the model, and the batch divides over all processes."""
    found = setting_of(job(batch=96), load_calibration())
    space = list(enumerate_space(found, limits=Limits(processes=(2, 3, 4, 6, 8))))

    assert {options.colocation.processes for options in space} == {2, 3, 4, 6}
    assert all(options.ranks == options.dp == 8 for options in space)
    for options in space:
        assert 96 % (8 * options.colocation.processes * options.pipeline.micro_batch) == 0


@pytest.mark.parametrize(
    ("placements", "listed"),
    [
        (None, True),
        (["device"], True),
        (["overflow", "optimizer"], True),
        (["optimizer"], False),
        (["optimizer+overflow", "parameters"], False),
    ],
)
def test_processes_never_meet_expanded_memory(
    placements: list[str] | None, *, listed: bool
) -> None:
    """Such pairs are refused as strategies, so no space has them: each process is listed once."""
    with_tier = job(batch=96)
    node = with_tier.cluster.node
    tier = MemoryTier(
        memory_bytes=1e12,
        bandwidth_bytes_per_s=1e11,
        latency_s=0.0,
        pooled=False,
        access="serial",
    )
    pool = replace(with_tier.cluster.pool, node=replace(node, cxl=tier))
    cluster = replace(with_tier.cluster, pools=(pool,))
    found = setting_of(replace(with_tier, cluster=cluster), load_calibration())
    limits = Limits(processes=(1, 2, 3), placements=placements)
    space = list(enumerate_space(found, limits=limits))
    several = [options for options in space if options.colocation.processes > 1]

    assert len(several) < len(space)
    assert bool(several) == listed
    assert len(several) == len(set(several))
    assert not any(options.traffic.offload.tiers for options in several)


def test_processes_need_as_many_times_the_memory_when_screened() -> None:
    """What does not fit is rejected before anything is executed."""
    found = setting_of(job(batch=96), load_calibration())
    own = (2, 3)
    space = enumerate_space(found, limits=Limits(processes=own, micro_batches=[2]))
    screened = screen(found, space)
    need = {
        screened.options(index).colocation.processes: float(screened.memory_bytes[index])
        for index in np.flatnonzero(screened.memory_bytes)
        if screened.options(int(index)).memory.recompute == "none"
    }

    assert need[3] / need[2] == pytest.approx(1.5)


def test_plan_proposes_processes_where_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where passes must be short, processes take them side by side instead of one by one."""
    # Hand choices take the whole batch in one pass, which these limits rule out.
    monkeypatch.setattr(sys.modules["wattree.search.plan"], "hand_choices", lambda *_, **__: {})
    found = plan(job(batch=8 * 96), limits=ONE)

    assert found.best.options.colocation.processes > 1
    alone = min(
        entry.result.step_time_s
        for entry in found.ranked
        if entry.options.colocation.processes == 1
    )
    assert found.best.result.step_time_s < 0.8 * alone


def test_plan_keeps_one_process_where_that_is_best() -> None:
    """A whole batch at once leaves nothing for others to take."""
    found = plan(job(batch=512), limits=Limits(recomputations=["none"], schedules=["1f1b"]))

    assert found.best.options.colocation.processes == 1


def test_busy_devices_and_language_models_are_not_searched_again() -> None:
    """Nothing is enumerated for them, so plans take as long as before."""
    best = StrategyOptions(dp=8, micro_batch=256)
    busy = setting_of(job(batch=8 * 256, model="resnet50"), load_calibration())
    step_s = _step_s(busy, best)
    tokens = job(
        batch=64,
        model="gpt2",
        data={"sequence_length": 1024, "global_batch": 64},
    )
    language = setting_of(tokens, load_calibration())

    assert busy_share(busy, best, step_s) > 0.8
    assert sharing_limits(busy, best, Limits(), simulated_s=step_s) is None
    assert sharing_limits(language, StrategyOptions(dp=8), Limits(), simulated_s=1e9) is None
    idle = sharing_limits(busy, best, Limits(), simulated_s=10 * step_s)
    assert idle is not None
    assert idle.processes == (2, 3, 4, 6)
    assert sharing_limits(busy, best, Limits(processes=(1, 2)), simulated_s=1e9) is None


def _step_s(found: Any, options: StrategyOptions) -> float:
    return simulate(replace(found.job, strategy=options)).result.step_time_s


def test_a_job_of_several_processes_that_does_not_fit_gets_only_fixes_it_admits() -> None:
    """Sharding and the optimizer on the host exclude several processes, so are not proposed."""
    options = StrategyOptions(
        dp=8,
        micro_batch=256,
        processes_per_device=4,
        batch_rule="fixed-per-process",
        recompute="full",
    )
    found = memory_fixes(setting_of(job(8192, "resnet50"), load_calibration()), options)

    assert {fix.change for fix in found} <= {"micro-batch 128", "micro-batch 1"}
