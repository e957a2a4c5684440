"""Out and in again: what is replayed is what was simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wattree
from tests.interchange.traces import job
from wattree.hardware import load_node
from wattree.interchange import Platform, export_chakra, replay

STRATEGIES = {
    "3d": {"dp": 2, "tp": 2, "pp": 2},
    "3d, sequence parallel": {
        "dp": 2, "tp": 2, "pp": 2, "sequence_parallel": True, "sharding": "zero1",
    },
    "zero3": {"dp": 8, "sharding": "zero3"},
    "context parallel": {"dp": 4, "cp": 2},
    "ulysses in line": {"dp": 4, "cp": 2, "context": "ulysses", "in_line": ["context"]},
    "no sync": {"dp": 8, "sharding": "zero3", "reduce_every_micro_batch": False},
    "offload": {
        "dp": 8,
        "in_line": ["gradients"],
        "offload": {"activations": {"layers": 2}},
    },
    "interleaved": {
        "dp": 2, "tp": 2, "pp": 2, "schedule": "interleaved", "virtual_stages": 2,
    },
}  # fmt: skip
#: Turns of a ring are no collectives of the schema, and shorter than the microseconds it counts in.
OURS = {"ring": {"dp": 2, "cp": 4, "context": "ring"}}
#: Without Wattree's attributes a trace does not say which collectives slow compute down: those
#: hidden beside products of tensor parallelism do not here, but would on a cluster. Times are whole
#: microseconds, carried along each stream.
TOLERANCE = {"3d, sequence parallel": 0.03}


@pytest.mark.parametrize("name", [*STRATEGIES, *OURS])
def test_a_trace_of_our_own_replays_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """Every start and end, not only the makespan."""
    small = job((STRATEGIES | OURS)[name])
    direct = wattree.simulate(small, fold=False).trace
    export_chakra(small, tmp_path)
    again = replay(tmp_path).trace

    np.testing.assert_array_equal(again.start_s, direct.start_s)
    np.testing.assert_array_equal(again.end_s, direct.end_s)
    assert sorted(again.peak_bytes) == sorted(direct.peak_bytes)
    assert again.events == direct.events


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("on_cluster", [False, True], ids=["recorded", "cluster"])
def test_a_plain_trace_replays_within_its_tolerance(
    name: str, tmp_path: Path, *, on_cluster: bool
) -> None:
    """Anyone's reader has only the plain attributes; they must tell nearly the same."""
    small = job(STRATEGIES[name])
    direct_s = wattree.simulate(small).result.step_time_s
    export_chakra(small, tmp_path, own_attributes=False)
    platform = Platform(cluster=small.cluster) if on_cluster else None
    done = replay(tmp_path, platform=platform)

    assert done.times_from == ("cluster" if on_cluster else "recorded")
    assert done.step_time_s == pytest.approx(direct_s, rel=TOLERANCE.get(name, 0.01))


def test_ranks_of_several_nodes_keep_their_place(tmp_path: Path) -> None:
    """Groups across nodes cost network time; a wrong rank number would make them local."""
    large = job({"dp": 4, "tp": 2, "pp": 2}, nodes=2)
    direct = wattree.simulate(large, fold=False)
    export_chakra(large, tmp_path)
    again = replay(tmp_path)
    plain = replay(tmp_path, platform=Platform(cluster=large.cluster))

    np.testing.assert_array_equal(again.trace.end_s, direct.trace.end_s)
    assert plain.step_time_s == pytest.approx(direct.result.step_time_s, rel=0.01)


def test_another_cluster_changes_communication_only(tmp_path: Path) -> None:
    """That is what a trace is exported for: what would it do elsewhere?"""
    small = job({"dp": 2, "tp": 4})
    export_chakra(small, tmp_path)
    slower = Platform(cluster=replace(small.cluster, node=load_node("dgx-a100")))
    fast, slow = (
        replay(tmp_path, platform=Platform(cluster=small.cluster)),
        replay(tmp_path, platform=slower),
    )
    kinds = fast.trace.graph.kind == 0

    assert slow.step_time_s > fast.step_time_s
    assert fast.trace.graph.work_s[kinds].sum() == pytest.approx(
        slow.trace.graph.work_s[slow.trace.graph.kind == 0].sum()
    )


def test_the_same_job_gives_the_same_files(tmp_path: Path) -> None:
    """A trace under version control changes when the job does, and only then."""
    for name in ("a", "b"):
        export_chakra(job(STRATEGIES["3d"]), tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())

    assert len(files) == 9
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
