"""Plain steps that are measured on an accelerator: their jobs, and what runs them, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_steps, reports
from wattree import job_from_mapping, simulate
from wattree.files import read_yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

CASES = read_yaml(gpu_steps.CASES)
#: Sizes of a model that runs in a moment, by the names that libraries have for them.
_SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 100, "image_size": 32,
    "n_embd": 32, "n_layer": 1, "n_head": 4, "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize("case", CASES["reports"], ids=lambda case: case["name"])
def test_what_is_measured_is_a_job(case: dict[str, Any]) -> None:
    """With the model that its module is."""
    job = job_from_mapping({**case["job"], "cluster": {"node": "dgx-h200"}}, source=case["name"])
    name = case["job"]["model"]

    assert job.software in ("hf-trainer", "pytorch")
    assert (name["name"] if isinstance(name, dict) else name) in CASES["modules"]


@pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
@pytest.mark.parametrize(
    "name",
    [
        "Llama 3.2 1B trains, 4 x 2,048",
        "Llama 3.2 1B trains, 4 x 2,048, recomputed",
        "Llama 3.2 3B trains in pure bf16, 2 x 4,096",
        "OLMoE 1B-7B trains in pure bf16, 2 x 2,048",
        "RoBERTa base trains in TF32, 32 x 128",
        "BERT large trains, 32 x 512",
        "ViT-L/16 trains, 64 images",
        "Llama 3.2 1B forward, 8 x 2,048",
        "Llama 3.2 1B generates, 1 x 128 + 64",
    ],
)
def test_a_step_runs_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small model, on the CPU: updates, finite results, or the tokens that were asked for."""
    from benchmarks.gpu_steps_run import step_of

    (job,) = (case["job"] for case in CASES["reports"] if case["name"] == name)
    sizes = {"sequence_length": 8, "prompt_length": 8, "generate_length": 2, "global_batch": 2}
    job = {**job, "data": {key: sizes[key] for key in job["data"]}}
    module = CASES["modules"][job["model"]]
    config = {key: _SMALL.get(key, value) for key, value in module["config"].items()}

    updates: list[object] = []
    update = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda optimizer: updates.append(update(optimizer))
    )
    step = step_of(job, {**module, "config": config}, "cpu")
    results = [step(), step()]

    if job.get("workload") == "generate":
        assert [tuple(ids.shape) for ids in results] == [(2, 8 + 2)] * 2
    elif job.get("workload") == "forward":
        assert all(torch.isfinite(found.logits).all() for found in results)
    else:
        assert len(updates) == 2


def tiny(num_classes: int) -> Any:
    """Return a network of images that is as small as it can be."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), torch.nn.Linear(2 * 6 * 6, num_classes)
    )


def test_a_step_of_images_accumulates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches of a function's model, channels last, before one update."""
    from benchmarks.gpu_steps_run import step_of

    losses: list[Any] = []
    loss_of = torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        torch.nn.functional,
        "cross_entropy",
        lambda scores, labels: losses.append(loss_of(scores, labels)) or losses[-1],
    )
    job = {
        "model": "tiny", "data": {"global_batch": 6}, "precision": "bf16", "optimizer": "momentum",
        "software": "pytorch", "traits": {"channels_last": True}, "strategy": {"micro_batch": 2},
    }  # fmt: skip
    updates: list[object] = []
    monkeypatch.setattr(torch.optim.SGD, "step", lambda _: updates.append(len(losses)))
    step = step_of(job, {"function": f"{__name__}.tiny", "classes": 3, "image_size": 8}, "cpu")
    step()
    step()

    assert updates == [3, 6]
    assert all(torch.isfinite(loss) for loss in losses)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a device")
def test_without_a_device_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is said."""
    monkeypatch.setattr(gpu_steps, "RESULTS", tmp_path)

    assert gpu_steps.main([]) == 0
    assert "nothing is measured or written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_energy_is_compared_with_that_of_the_device_which_has_the_job() -> None:
    """And not of the others of its node, seven of which at rest draw 75 W each."""
    (case,) = (each for each in CASES["reports"] if each["name"] == "GPT-2 trains, 2 x 256")
    one = {**case["job"], "cluster": {"node": "dgx-h200"}}
    (found,) = reports._predicted({"name": case["name"], "energy": "6 J", "job": one})
    result = simulate(job_from_mapping(one, source=case["name"])).result

    assert found["quantity"] == "energy_j"
    assert 75.0 < found["predicted"] / result.step_time_s < 300.0
