"""Samples packed of documents: attention ends with each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wattree
from wattree.cost import load_calibration
from wattree.errors import JobError, WattreeError
from wattree.frameworks import export_recipe
from wattree.graph import AttentionMask
from wattree.job import job_from_mapping
from wattree.predict.generation import workload_setting


def _job(sequence: int, batch: int, document: int | None = None, **more: Any) -> wattree.Job:
    data = {"sequence_length": sequence, "global_batch": batch}
    if document is not None:
        data["document_length"] = document
    return job_from_mapping(
        {
            "model": "qwen2.5-7b",
            "data": data,
            "cluster": {"node": "dgx-h100"},
            "strategy": {"dp": 8, "sharding": "zero3", "recompute": "full"},
            "software": "hf-trainer",
            **more,
        },
        "job.yaml",
    )


def _run(job: wattree.Job) -> wattree.Result:
    return wattree.simulate(job).result


@given(
    st.integers(1, 2**20),
    st.floats(0.001, 1.0),
    st.booleans(),
    st.none() | st.integers(1, 2**20),
)
def test_documents_see_what_samples_of_their_length_see(
    sequence: int,
    share: float,
    causal: bool,  # noqa: FBT001
    window: int | None,
) -> None:
    """Windows included: the scores of `1 / share` documents, and no more than of one sample."""
    mask = AttentionMask(causal=causal, window=window)
    packed = AttentionMask(causal=causal, window=window, document_share=share)
    alone = mask.visible_share(share * sequence) * (share * sequence) ** 2

    assert packed.visible_share(sequence) * sequence**2 == pytest.approx(alone / share)


def test_packed_samples_do_the_work_of_their_documents() -> None:
    """Four documents in a sample: the FLOP of four samples, in nearly the time of these."""
    whole, packed, apart = (_job(*one) for one in ((16384, 8), (16384, 8, 4096), (4096, 32)))
    flop = [workload_setting(job, load_calibration()).model_flop() for job in (packed, apart)]
    times = [_run(job).step_time_s for job in (whole, packed)]
    estimated = [wattree.estimate(job).step_time_s for job in (whole, packed)]

    assert flop[0] == pytest.approx(flop[1])
    assert times[1] < 0.9 * times[0]
    assert estimated[1] / estimated[0] == pytest.approx(times[1] / times[0], rel=0.01)
    assert any("all documents have 4096 tokens" in line for line in _run(packed).assumed)


def test_documents_of_whole_samples_change_nothing() -> None:
    """And shorter ones make no step slower, with positions split over ranks too."""
    splits = (
        {"dp": 8},
        {"dp": 2, "cp": 4, "context": "ring"},
        {"dp": 2, "cp": 4, "context": "gather"},
    )
    for split in splits:
        strategy = {**split, "recompute": "full"}
        lengths = (None, 16384, 8192, 2048)
        jobs = [_job(16384, 8, one, strategy=strategy) for one in lengths]
        times = [_run(job).step_time_s for job in jobs]

        assert times[0] == times[1]
        assert times == sorted(times, reverse=True)


def test_attention_that_computes_all_scores_ignores_documents() -> None:
    """A mask that hides other documents saves unfused kernels nothing."""
    whole, packed = (
        wattree.simulate(_job(4096, 8, one, traits={"fused_attention": False}))
        for one in (None, 512)
    )

    assert whole.result.step_time_s == packed.result.step_time_s
    assert any("data.document_length: has no effect" in line for line in packed.warnings)


def test_documents_longer_than_their_sample_are_refused() -> None:
    """They are cut where it ends."""
    with pytest.raises(JobError, match=r"document_length: found 8192, expected at most"):
        _job(4096, 8, 8192)


def test_no_export_leaves_documents_out(tmp_path: Path) -> None:
    """A framework's settings do not say how long they are."""
    with pytest.raises(WattreeError, match=r"data.document_length: found 4096"):
        export_recipe(_job(16384, 8, 4096), "hf-trainer", tmp_path / "out")
