"""Parts of ranks become one run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from wattree.measure.stages.parts import Part, collect, joined, leave
from wattree.measure.stages.work import summary_lines
from wattree.measure.window import READ_ELSEWHERE
from wattree.trace import MeterReading, PowerSeries, Run, RunOrigin, StageUse, Work


def part(rank: int, host: str, *, wall_s: float = 10.0, split: bool = True) -> Part:
    """Return what a rank measured: a device of its own, and on its host's first rank the host."""
    waited_s = 1.0 + rank
    energies = {"materials": 10.0, "computing": 85.0, "communicating": 5.0}
    return Part(
        rank,
        host,
        Run(
            name="job",
            origin=RunOrigin.MEASURED,
            wall_s=wall_s,
            iterations=5,
            devices_per_node=1,
            work=Work(samples=8, core_s=0.5, gradient_bytes=4e6),
            stages={
                "materials": StageUse(busy_s=2.0, exposed_s=waited_s),
                "computing": StageUse(busy_s=5.0, exposed_s=wall_s - waited_s),
                "communicating": StageUse(busy_s=0.0, exposed_s=0.0),
            },
            meters=(MeterReading(domain=f"node0/gpu{rank}", meter="nvml", energy_j=100.0),),
            missing=("node0/board: none",),
            utilization={"cpu": 0.2 * (rank + 1)},
        ),
        {f"node0/gpu{rank}": energies if split else None},
    )


def test_parts_of_ranks_are_one_run() -> None:
    """Times are averages, energies and work are sums; nodes are numbered by their ranks."""
    run = joined([part(2, "b"), part(0, "a"), part(1, "a", wall_s=13.0)], 3)

    assert (run.nodes, run.devices_per_node, run.wall_s, run.iterations) == (2, 2, 11.0, 5)
    assert [m.domain for m in run.meters] == ["node0/gpu0", "node0/gpu1", "node1/gpu2"]
    assert run.work == Work(samples=24, core_s=1.5, gradient_bytes=4e6)
    assert run.missing == ("node0/board: none", "node1/board: none")
    assert sum(use.exposed_s for use in run.stages.values()) == pytest.approx(run.wall_s)
    assert sum(use.energy_j or 0.0 for use in run.stages.values()) == pytest.approx(run.energy_j)
    assert run.utilization == {"cpu": pytest.approx(0.4)}


def test_power_of_a_rank_that_measures_longer_ends_with_the_run() -> None:
    """A reading beyond the mean of the ranks' times would make the file of the run unreadable."""
    at_s, watts = (5.0, 9.0, 14.0, 16.0), (1.0, 2.0, 3.0, 4.0)
    late = part(1, "a", wall_s=16.0)
    power = (PowerSeries(domain="node0/gpu1", at_s=at_s, watts=watts),)
    run = joined([part(0, "a"), replace(late, run=replace(late.run, power=power))], 2)

    assert run.power[0].at_s == (5.0, 9.0, run.wall_s)
    assert run.power[0].watts == (1.0, 2.0, 3.0)


def test_an_estimate_on_any_rank_makes_the_run_an_estimate() -> None:
    """Rank 0 may have read nothing itself; domains in notes are those of their node."""
    other = part(1, "b")
    (reading,) = other.run.meters
    estimate = replace(reading, is_estimate=True)
    run = replace(other.run, meters=(estimate,), notes=("estimated, not read: node0/gpu1",))
    whole = joined([part(0, "a"), replace(other, run=run)], 2)

    assert whole.origin is RunOrigin.ESTIMATED
    assert whole.notes == ("estimated, not read: node1/gpu1",)


def test_one_meter_that_cannot_tell_stages_apart_leaves_their_energy_open() -> None:
    """Stages that add up to a part of the energy only would mislead."""
    run = joined([part(0, "a"), part(1, "a", split=False)], 2)

    assert [use.energy_j for use in run.stages.values()] == [None, None, None]


def test_a_device_that_one_rank_leaves_to_another_is_not_missing() -> None:
    """It is missing where no one reads it after all."""
    shared, lost = (f"node0/{name}: {READ_ELSEWHERE}" for name in ("gpu0", "gpu5"))
    other = part(1, "a")
    other = replace(other, run=replace(other.run, missing=(shared, lost)))
    run = joined([part(0, "a"), other], 2)

    assert run.missing == ("node0/board: none", lost)


def test_ranks_that_never_came_are_named() -> None:
    """A rank that crashed: the others' energy is kept and said not to be the whole."""
    run = joined([part(0, "a"), part(3, "a")], 4)

    assert run.notes == ("nothing came from ranks 1, 2; not counted",)
    assert run.exit_code is None  # the meters read work that no one counted: fits leave it out


def test_parts_are_left_and_collected(tmp_path: Path) -> None:
    """Whatever another program left there is no part."""
    folder = tmp_path / "run.json.parts"
    leave(part(2, "a"), folder)
    (folder / "rank1.json").write_text(json.dumps({"rank": 1}))
    now = iter(range(100))
    found = collect(folder, 4, wait_s=5, clock=lambda: next(now), sleep=lambda _: None)

    assert [one.rank for one in found] == [2]
    assert found[0] == part(2, "a")
    assert not folder.exists()


def test_the_summary_says_what_a_user_looks_for() -> None:
    """Stages by step, energy, and what was not read."""
    run = joined([part(0, "a")], 1)
    lines = list(summary_lines(replace(run, notes=("a note",))))

    assert lines == [
        "wattree: job: 5 steps in 10.00 s on 1 node, 100.0 J, 10.0 W (measured)",
        "  materials         200.000 ms a step   10.0%  busy 400.000 ms        10.0 J",
        "  computing        1800.000 ms a step   90.0%  busy 1000.000 ms        85.0 J",
        "  communicating       0.000 ms a step    0.0%  busy 0.000 ms         5.0 J",
        "  not read: node0/board: none",
        "  note: a note",
    ]
