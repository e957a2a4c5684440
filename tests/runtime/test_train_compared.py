"""Predictions beside what was trained: advice, and bytes that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer

pytest.importorskip("torch")

from wattree.job import Job, job_from_mapping

if TYPE_CHECKING:
    from wattree.runtime.train.outcome import Trained


def _job(**changes: Any) -> Job:
    job = {
        "model": {"ffn": {"width": 64, "depth": 2}},
        "data": {"global_batch": 16},
        "precision": "fp32",
        "cluster": {"node": "2x-epyc-7742", "nodes": 2},
        "strategy": {"preset": "phantom", "tp": 2, "ghosts": 4},
    }
    return job_from_mapping(job | changes, "job")


def test_comparisons_on_machines_nobody_timed_say_so() -> None:
    """Until the device has a latency of its own; accelerators have what ships."""
    from wattree.cost import Constant, load_calibration
    from wattree.runtime.train.compare import advice_of

    shipped = load_calibration()
    profiled = Constant(value=0.5, evidence="measured", source="a profile")
    computes = {**shipped.constants, "device.epyc-7742.matmul.fp32": profiled}
    as_dict = advice_of(_job(), replace(shipped, constants=computes), ranks=4)
    assert as_dict is not None
    assert as_dict.startswith("epyc-7742 is not calibrated: communication is predicted as between")
    assert "wattree profile --out calibration.yaml" in as_dict
    assert "--calibration calibration.yaml" in as_dict
    assert "\n" not in as_dict

    assert advice_of(_job(), replace(shipped, constants=computes), ranks=1) is None
    accelerators = _job(cluster={"node": "dgx-a100"}, strategy={"preset": "ddp"})
    assert advice_of(accelerators, shipped, ranks=8) is None
    timed = Constant(value=3e-4, evidence="measured", source="a profile")
    own = {**shipped.constants, "device.epyc-7742.alpha_s": timed}
    assert advice_of(_job(), replace(shipped, constants=own), ranks=4) is None


@pytest.mark.parametrize(
    ("strategy", "software", "words"),
    [
        ({"pp": 2, "tp": 2, "schedule": "zb-h1"}, None, "separate pass for their weights"),
        (
            {"tp": 4, "recompute": "full"},
            "pytorch",
            "that of PyTorch 2, eager, AMP by autocast",
        ),
        ({"tp": 4, "recompute": "full"}, "megatron-core", "predicted 100 B"),
        ({"tp": 4}, "pytorch", "predicted 100 B"),
    ],
)
def test_other_bytes_than_predicted_are_named(
    strategy: dict[str, Any], software: str | None, words: str
) -> None:
    """A prediction that misses collectives is also too fast, whatever its error of time is."""
    from wattree.runtime.train.compare import other_bytes

    data = {"sequence_length": 128, "global_batch": 16}
    given = {} if software is None else {"software": software}
    trained = _job(model="llama-3.1-8b", data=data, strategy=strategy, **given)

    assert list(other_bytes(trained, 100.0, 101.0)) == []
    (line,) = other_bytes(trained, 100.0, 139.0)
    assert line.startswith("a rank sends 139 B a step, +39% from the predicted 100 B")
    assert line.endswith(words)


def test_a_comparison_without_a_profile_leads_with_that(capsys: pytest.CaptureFixture[str]) -> None:
    """A difference from a datasheet is no error: none is shown, and what to do comes first."""
    from rich.console import Console

    from tests.samples import sample_result
    from wattree.cost import Constant, load_calibration
    from wattree.report.train_text import show_trained
    from wattree.runtime.train.compare import (
        ComparedFigure,
        PredictionComparison,
        advice_of,
        unprofiled_devices,
    )
    from wattree.trace import Run, RunOrigin, TrainingUse

    shipped = load_calibration()
    timed = Constant(value=3e-4, evidence="measured", source="a profile")
    own = replace(shipped, constants={**shipped.constants, "device.epyc-7742.matmul.fp32": timed})
    texts = []
    for calibration in (shipped, own):
        unprofiled = unprofiled_devices(_job(), calibration)
        comparison = PredictionComparison(
            figures=(ComparedFigure(name="step", predicted_s=8e-5, measured_s=1e-3),),
            predicted_sent_bytes=256.0,
            measured_sent_bytes=256.0,
            calibration=None,
            advice=advice_of(_job(), calibration, ranks=1, unprofiled=unprofiled),
            unprofiled=unprofiled,
        )
        use = TrainingUse(steps=1, first_step=0, measured_steps=1, losses=(1.0,), loss=1.0)
        run = Run(name="r", origin=RunOrigin.UNREAD, wall_s=1.0)
        show_trained(sample_result(training=use), run, comparison, Console(width=200))
        texts.append(capsys.readouterr().out)
    without, with_profile = texts

    assert "%" not in without.partition("of a step")[2]
    assert "no profile of this machine" in without.partition("of a step")[0]
    assert "wattree profile --out calibration.yaml" in without.partition("of a step")[0]
    assert "-92.0%" in with_profile
    assert "profile" not in with_profile
    accelerators = _job(cluster={"node": "dgx-h100"}, strategy={"preset": "ddp"})
    assert unprofiled_devices(accelerators, shipped) == ()
    assert unprofiled_devices(accelerators, shipped, on_processor=True) == ("h100-sxm-80gb",)


def test_warnings_of_a_comparison_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were in its JSON alone."""
    from tests.samples import sample_result
    from wattree.cli.train import deliver_trained
    from wattree.cli.train_request import TrainRequest
    from wattree.runtime.train import compare
    from wattree.runtime.train.compare import PredictionComparison
    from wattree.trace import Run, RunOrigin, TrainingUse

    use = TrainingUse(steps=1, first_step=0, measured_steps=1, losses=(1.0,), loss=1.0)
    run = Run(name="r", origin=RunOrigin.UNREAD, wall_s=1.0)
    found = SimpleNamespace(result=sample_result(training=use), run=run)
    comparison = PredictionComparison(
        figures=(),
        predicted_sent_bytes=1.0,
        measured_sent_bytes=2.0,
        calibration=None,
        warnings=("a rank sends 2 B",),
    )
    monkeypatch.setattr(compare, "compared", lambda *_, **__: comparison)

    request = TrainRequest(context=cast("typer.Context", None), job=Path("job.yaml"), compare=True)
    deliver_trained(request, cast("Trained", found))

    assert "wattree: job.yaml: warning: a rank sends 2 B" in capsys.readouterr().err
