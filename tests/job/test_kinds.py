"""A file of the wrong kind is named as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import wattree
from wattree.design import load_study
from wattree.errors import JobError


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("examples/design/dlrm.yaml", "a design study, expected a job: use `wattree design`"),
        ("src/wattree/cost/calibration.yaml", "a calibration, expected a job: give it as"),
        ("src/wattree/hardware/catalog/nodes/dgx-h100.yaml", "a node, expected a job: name it as"),
        ("src/wattree/hardware/catalog/devices/a30.yaml", "a device, expected a job: name it as"),
    ],
)
def test_what_is_no_job_says_what_it_is(root: Path, file: str, kind: str) -> None:
    """One line, instead of one for each key that a job does not have."""
    with pytest.raises(JobError) as caught:
        wattree.load_job(root / file)

    assert len(caught.value.problems) == 1
    assert f"this is {kind}" in str(caught.value)


def test_a_job_is_no_study(root: Path) -> None:
    """The other way round."""
    with pytest.raises(JobError, match="this is a job, expected a design study"):
        load_study(root / "examples" / "llama-3.1-8b-tree.yaml")


def test_a_job_with_a_missing_key_is_still_a_job() -> None:
    """What is wrong with it is said key by key."""
    with pytest.raises(JobError, match="data: is missing"):
        wattree.job_from_mapping({"model": "gpt2", "cluster": {"node": "dgx-h100"}})


def test_a_plan_is_no_job() -> None:
    """Its JSON holds strategies, and not what they train."""
    with pytest.raises(JobError, match=r"this is a plan, expected a job: `wattree plan --out`"):
        wattree.job_from_mapping({"candidates": 3, "ranked": [], "best": None})
