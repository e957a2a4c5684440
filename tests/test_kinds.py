"""A file of the wrong kind is named as what it is."""

from __future__ import annotations

from json import dumps
from pathlib import Path

import pytest

import wattree
from tests.samples import sample_result
from wattree.cost import load_calibration
from wattree.design import load_study
from wattree.errors import JobError, RunError
from wattree.learn.explain import trace_paths
from wattree.trace import read_run
from wattree.validation.rows import read_rows


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


def test_a_job_is_no_table_and_no_trace(root: Path) -> None:
    """One line, instead of one for each column; the command for it is named."""
    job = root / "examples" / "llama-3.1-8b-tree.yaml"

    with pytest.raises(JobError, match=r"this is a job, expected a table of measured runs"):
        read_rows(job)
    with pytest.raises(JobError, match=r"this is a job, expected a trace of PyTorch's profiler"):
        list(trace_paths([job], []))


def test_a_job_is_no_calibration_and_no_run(root: Path) -> None:
    """Options of the same command take both."""
    job = root / "examples" / "llama-3.1-8b-tree.yaml"

    with pytest.raises(JobError, match="this is a job, expected a calibration"):
        load_calibration(job)
    with pytest.raises(RunError, match="this is a job, expected a measured run"):
        read_run(job)


def test_a_job_with_a_missing_key_is_still_a_job() -> None:
    """What is wrong with it is said key by key."""
    with pytest.raises(JobError, match="data: is missing"):
        wattree.job_from_mapping({"model": "gpt2", "cluster": {"node": "dgx-h100"}})


def test_a_plan_is_no_job() -> None:
    """Its JSON holds strategies, and not what they train."""
    with pytest.raises(JobError, match=r"this is a plan, expected a job: `wattree plan --out`"):
        wattree.job_from_mapping({"candidates": 3, "feasible": 1, "ranked": [], "best": None})


def test_what_wattree_wrote_is_named(tmp_path: Path) -> None:
    """Reports that `--json` writes: one line each, with what to give instead."""
    path = tmp_path / "written.json"
    for text, kind in (
        (sample_result().as_json(), "a result, expected a job: use `wattree compare`"),
        ({"smallest": None, "tried": {}, "ruled_out": {}}, "a plan of several sizes"),
        ({"runs": [], "differing": {}, "reasons": []}, "a comparison"),
        ({"machine": {}, "measurements": 9, "constants": {}}, "a report of a profile"),
    ):
        path.write_text(dumps(text))
        with pytest.raises(JobError, match=f"this is {kind}") as caught:
            wattree.load_job(path)
        assert len(caught.value.problems) == 1


def test_known_keys_are_listed_once() -> None:
    """However many keys are unknown; the next list is another's."""
    job = {"model": "gpt2", "data": {"x1": 1, "x2": 2}, "cluster": {}, "y1": 3, "y2": 4}
    with pytest.raises(JobError) as caught:
        wattree.job_from_mapping(job)

    unknown = [line for line in caught.value.problems if "unknown key" in line]
    assert [line.count("known keys:") for line in unknown] == [1, 0, 1, 0]


def test_a_large_plan_is_named_before_its_size(tmp_path: Path) -> None:
    """Plans of many strategies are larger than any job; their first keys are enough."""
    text = '{"schema": "wattree-plan/1", "candidates": 9, "simulated": 2, "feasible": 3, "best": {'
    path = tmp_path / "plan.json"
    path.write_text(text + " " * (1 << 20))

    with pytest.raises(JobError, match=r"this is a plan, expected a job"):
        wattree.load_job(path)


def test_what_is_large_and_of_no_known_kind_is_too_large(tmp_path: Path) -> None:
    """Keys of nested values say nothing of the file."""
    path = tmp_path / "other.json"
    path.write_text('{"other": {"candidates": 9, "feasible": 3}' + " " * (1 << 20))

    with pytest.raises(JobError, match="expected at most 1048576 B"):
        wattree.load_job(path)
