"""What a capture is given from Python, and where a job finds its files later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.capture.test_module import MODULE, written
from wattree.capture import catalog_entry, load_model
from wattree.capture.load import located_model
from wattree.errors import ModelError


@pytest.fixture
def torch() -> Any:
    """Return torch, where it is installed."""
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention": "flash"}, "attention: found 'flash', expected one of fused, cpu, math"),
        ({"attention": None}, "attention: found None, expected one of fused, cpu, math"),
        ({"loss": "sum"}, "loss: found 'sum', expected one of auto, none"),
        ({"batch": 0}, "batch: found 0, expected a whole number from 1"),
        ({"sequence": 0}, "sequence: found 0, expected a whole number from 1"),
        ({"batch": 2.5}, "batch: found 2.5, expected a whole number from 1"),
    ],
)
def test_arguments_of_a_capture_are_checked(given: dict[str, Any], message: str) -> None:
    """Unknown names took another kernel without a word, and sizes of 0 ended in a division."""
    with pytest.raises(ModelError) as raised:
        wattree.capture_module("mine.py:build", **given)

    assert str(raised.value) == message


@pytest.mark.usefixtures("torch")
def test_a_job_names_the_same_files_after_the_folder_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of a job are those that it was read with; a notebook may change its folder later."""
    written(tmp_path, MODULE)
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(catalog_entry("llama-3.2-1b").config))
    monkeypatch.chdir(tmp_path)
    rest = {"cluster": {"node": "dgx-a100"}, "strategy": {"dp": 8}}
    jobs = [
        wattree.job_from_mapping({"model": model, "data": data, **rest})
        for model, data in (
            ("mine.py:build", {"global_batch": 8}),
            ("model", {"global_batch": 8, "sequence_length": 128}),
            ("model/config.json", {"global_batch": 8, "sequence_length": 128}),
        )
    ]
    before = [wattree.estimate(job) for job in jobs]
    monkeypatch.chdir(tmp_path.parent)

    assert [wattree.estimate(job) for job in jobs] == before


def test_a_module_is_no_function_that_builds_one(torch: Any) -> None:
    """It was called without inputs, and blamed for it."""
    with pytest.raises(ModelError, match=r"found a module \(Linear\), expected a function"):
        wattree.capture_module(torch.nn.Linear(4, 3), inputs=["float32[batch, 4]"])


@pytest.mark.usefixtures("torch")
def test_arguments_reach_example_inputs_that_have_them(tmp_path: Path) -> None:
    """Sizes of a model are stated once: those of its inputs follow."""
    text = MODULE.replace("example_inputs(batch)", "example_inputs(batch, width)")
    written(tmp_path, text.replace("randn(batch, 8)", "randn(batch, width)"))

    recording = wattree.capture_module(f"{tmp_path}/mine.py:build", arguments={"width": 16})

    assert sum(o.flop.coefficient for o in recording.operators) == 2 * 2 * 16 * 16


@pytest.mark.usefixtures("torch")
def test_inputs_may_be_constants(tmp_path: Path) -> None:
    """Counts of steps, scales and flags are no tensors."""
    source = "import torch\n\nclass Steps(torch.nn.Linear):\n    def forward(self, x, steps, turn):"
    body = (
        "\n        for _ in range(steps):\n            x = super().forward(x)\n        return x\n"
    )
    written(tmp_path, f"{source}{body}\ndef build():\n    return Steps(8, 8)\n")

    recording = wattree.capture_module(
        f"{tmp_path}/mine.py:build", inputs=["float32[batch, 8]", 3, True]
    )

    assert sum(o.flop.coefficient for o in recording.operators) == 3 * 128


def test_exported_graphs_are_refused_with_what_is_read(tmp_path: Path) -> None:
    """ONNX and saved programs, whether the file exists or not."""
    (tmp_path / "a.onnx").write_bytes(b"\x08")

    for name in (str(tmp_path / "a.onnx"), "a.pt2", located_model("a.onnx", tmp_path)):
        with pytest.raises(ModelError, match=r"not read; expected the function that builds"):
            load_model(name)


def test_a_folder_with_a_configuration_may_have_any_name(tmp_path: Path) -> None:
    """Checkpoints are saved in folders such as `step-100.ckpt`."""
    folder = tmp_path / "step-100.ckpt"
    folder.mkdir()
    sizes = '"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 4'
    (folder / "config.json").write_text(f'{{"model_type": "gpt2", {sizes}}}')

    assert load_model(folder).parameters == load_model(folder / "config.json").parameters
