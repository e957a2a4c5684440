"""Devices and links that differ: single factors and draws with a seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from wattree.errors import JobError
from wattree.hardware import Cluster
from wattree.job import job_from_mapping


def cluster(**section: Any) -> Cluster:
    """Return the cluster of a job whose cluster section has `section` besides."""
    return job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 8},
            "precision": "bf16",
            "cluster": {"node": "dgx-h100", "nodes": 8, **section},
            "strategy": "auto",
        }
    ).cluster


def test_stragglers_are_drawn_for_every_device() -> None:
    """Log-normal about 1, with the spread asked for."""
    factors = np.array(list(cluster(stragglers={"spread": 0.05, "seed": 3}).slowdown.values()))

    logs = np.log(factors)
    assert len(factors) == 64
    assert abs(logs.mean()) < 4 * 0.05 / math.sqrt(64)
    assert logs.std() == pytest.approx(0.05, rel=0.3)


def test_the_same_seed_gives_the_same_stragglers() -> None:
    """And another seed others."""
    one, again, other = (
        cluster(stragglers={"spread": 0.05, "seed": seed}).slowdown for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


def test_a_given_factor_comes_on_top_of_the_draw() -> None:
    """Device 3 is twice as slow as the draw says."""
    drawn = cluster(stragglers={"spread": 0.05, "seed": 1}).slowdown
    both = cluster(stragglers={"spread": 0.05, "seed": 1}, slowdown={"3": 2}).slowdown

    assert both[3] == pytest.approx(2 * drawn[3])
    assert all(both[device] == drawn[device] for device in drawn if device != 3)


def test_slow_links_are_told_apart_from_slow_devices() -> None:
    """Each has its own key."""
    found = cluster(slow_links={"5": 4})

    assert dict(found.slow_links) == {5: 4.0}
    assert not found.slowdown


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"stragglers": {"spread": 0}}, "cluster.stragglers.spread"),
        ({"stragglers": {"spread": float("nan")}}, "cluster.stragglers.spread"),
        ({"stragglers": {"spread": 1.5}}, "up to 1"),
        ({"stragglers": {"spread": 0.1, "seed": -1}}, "cluster.stragglers.seed"),
        ({"stragglers": {"width": 0.1}}, "unknown key 'width'"),
        ({"slow_links": {"x": 2}}, "cluster.slow_links"),
        ({"slow_links": {"64": 2}}, "cluster.slow_links.64: there is no device 64"),
        ({"slow_links": {"1": 0}}, "cluster.slow_links.1"),
        (
            {"slowdown": {"64": 2}, "stragglers": {"spread": 0.1}},
            "cluster.slowdown.64: there is no device 64",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(section: dict[str, Any], expected: str) -> None:
    """With the place or the value."""
    with pytest.raises(JobError) as caught:
        cluster(**section)

    assert expected in str(caught.value)


def test_a_factor_below_1_is_no_fault() -> None:
    """It makes the device faster, which measured factors may be, and slips too."""
    job = job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 8},
            "cluster": {"node": "dgx-h100", "slowdown": {"3": 0.5, "4": 1.5}},
        }
    )

    assert job.warnings == (
        "cluster.slowdown: 0.5 makes device 3 faster than the others; a fault takes factors above "
        "1",
    )
