"""Traces of another job are told from those of this one by what they computed and exchanged."""

from __future__ import annotations

from typing import Any

import pytest

from wattree.cost import load_calibration
from wattree.job import job_from_mapping
from wattree.kineto.matmuls import Matmuls
from wattree.learn.predicted_step import step_of
from wattree.learn.traced_work import TracedWork, contradictions
from wattree.predict import Setting, setting_of

LINEAR = {"is_whole": True, "ranks": 2, "world": 2, "collectives": 2.0}


def setting(sharding: str = "none", node: str = "2x-epyc-7742") -> Setting:
    """Return the setting of a stack of linear layers on a node."""
    ranks = int(node[0])
    return setting_of(
        job_from_mapping(
            {
                "model": {"ffn": {"width": 64, "depth": 8}},
                "data": {"global_batch": 32},
                "precision": "fp32",
                "software": "pytorch",
                "cluster": {"node": node},
                "strategy": {"sharding": sharding, "dp": ranks, "micro_batch": 32 // ranks},
            }
        ),
        load_calibration(),
    )


@pytest.mark.parametrize(
    ("times", "facts", "words"),
    [
        (1.0, {}, []),
        (23 / 24, {}, []),
        (0.5, {}, ["found matmuls of"]),
        (8 / 6, {}, ["found matmuls of"]),
        (0.5, {"is_whole": False}, []),
        (0.0, {}, []),
        (1.0, {"narrow": 1.0}, ["found matmuls of 16 bits"]),
        (1.0, {"gathers": 16.0, "collectives": 24.0}, ["found 16 gathers"]),
        (0.5, {"world": 4}, ["found a run of 4 ranks, but the job has 2"]),
        (1.0, {"world": None}, []),
    ],
)
def test_work_of_another_job_is_named(
    times: float, facts: dict[str, Any], words: list[str]
) -> None:
    """Half the batch, more layers, another type, shards, ranks; not what is not recorded."""
    job = setting()
    flop = times * job.model_flop() / 2
    work = TracedWork(**{**LINEAR, "flop": flop, "flop_of_all": flop, **facts})
    found = list(contradictions(work, job, 2, 1.0, 0.0))
    assert len(found) == len(words)
    assert all(one.startswith(other) for one, other in zip(found, words, strict=True))


def test_shards_gather() -> None:
    """Traces of replicas are not those of a job with sharded parameters."""
    assert list(contradictions(TracedWork(**LINEAR), setting("zero3"), 2, 1.0, 0.0)) == [
        "found no gather of parameters, but the job's sharding is zero3"
    ]


def test_shards_on_processors_hide_nothing() -> None:
    """Without streams `fully_shard` waits for each collective; DDP does not."""
    for sharding in ("zero2", "zero3"):
        assert step_of(setting(sharding)).hidden_s == pytest.approx(0.0, abs=1e-12)
    assert step_of(setting("zero3", "4x-p100-sxm2")).hidden_s > 0.0


def test_matmuls_are_counted_by_their_shapes() -> None:
    """Of marked steps alone; damaged shapes count for nothing."""
    found = Matmuls()
    shapes: list[Any] = [[5], [3, 4], [4, 5]]
    given = {"Input Dims": shapes, "Input type": ["float"] * 3}
    for start_s in (0.5, 1.5, 9.0):
        found.take("aten::addmm", start_s, given)
    found.take("aten::addmm", 0.5, {**given, "Input Dims": [[5], [3, "4"], []]})
    found.take("aten::relu", 0.5, given)
    steps = [(0.0, 1.0), (1.0, 2.0)]
    assert found.of_steps(steps) == {("aten::addmm", "float"): 2.0 * 3 * 4 * 5}
