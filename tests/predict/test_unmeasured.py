"""What results list as assumed: devices without measured runs, traffic that is hidden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.hardware.user_files import DEVICE, NODE
from wattree.job import Job, job_from_mapping
from wattree.predict import simulate
from wattree.predict.checked import checked
from wattree.strategy import StrategyOptions


def job(node: str, model: str = "gpt2") -> Job:
    """Return a small job of one node."""
    length = {"sequence_length": 256} if model == "gpt2" else {}
    return job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": 16, **length},
            "cluster": {"node": node},
            "strategy": "ddp",
        }
    )


def test_a_device_without_measured_runs_is_marked(tmp_path: Path) -> None:
    """By the constants that stand in, in `check` and results; networks have rows of their own."""
    (tmp_path / "my-card.yaml").write_text(DEVICE)
    own = tmp_path / "my-node.yaml"
    own.write_text(NODE)
    words = "no measured runs of models of this kind; predicted by constants of"
    jobs = {
        f"my-card: {words} all devices": job(str(own)),
        f"h100-sxm-80gb: {words} its architecture": job("dgx-h100", "resnet50"),
        "": job("dgx-h100"),
    }
    for said, each in jobs.items():
        for assumed in (checked(each).assumed, simulate(each).result.assumed):
            assert [line for line in assumed if words in line] == ([said] if said else [])


def test_hidden_context_traffic_is_listed() -> None:
    """In `check`, too: most software waits for it; what a job states is no assumption."""
    plain = job("dgx-h100")
    said: dict[str, list[int]] = {"overlapped": [], "gather": []}
    for context in ("overlapped", "gather"):
        options = StrategyOptions(dp=4, cp=2, context=context)
        own = replace(plain, strategy=options)
        for assumed in (checked(own).assumed, simulate(own).result.assumed):
            lines = [line for line in assumed if line.startswith("context overlapped: ")]
            said[context].append(len(lines))

    assert said == {"overlapped": [1, 1], "gather": [0, 0]}
