"""Modules with counts made by independent software: FLOP, gradients, what autograd keeps."""

from __future__ import annotations

import importlib.util
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from wattree.capture.record import record
from wattree.capture.recording import Recording, TensorSource

MODULES = (
    *("checkpointed", "conv_zoo", "custom_autograd", "dict_inputs", "dlrm", "fft_mixer"),
    *("gpt_tied", "inplace_ops", "mlp_wide", "moe_top2", "ncf", "resnet50"),
    *("transformer_encoder", "unet"),
)
WITH_ATTENTION = ("gpt_tied", "transformer_encoder")


def recorded(
    known_models: Path, name: str, size: str, attention: Any
) -> tuple[Recording, dict[str, Any]]:
    """Return the recording of a module at the size whose counts are known, and the counts."""
    file = known_models / "modules" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    expected = json.loads((known_models / "expected.json").read_text())["modules"][name][size]
    small = size == "small"
    recording = record(
        lambda: code.build(small),
        lambda batch, _: (_positional(code.example_inputs(batch, small)), {}),
        name=name,
        batch=expected["batch"],
        attention=attention,
        loss="none",
    )
    return recording, expected


def _positional(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def flop(recording: Recording, *quantities: str) -> float:
    """Return the sum of some kinds of FLOP at the recorded batch."""
    return sum(
        getattr(operator, quantity).value(micro_batch=recording.batch, sequence=1)
        for operator in recording.operators
        for quantity in quantities
    )


def saved_bytes(recording: Recording) -> float:
    """Return the bytes of storages kept for backward, without inputs, parameters and buffers."""
    known = {t.storage for t in recording.tensors if t.source is not TensorSource.OPERATOR}
    kept = {}
    for operator in recording.operators:
        for tensor in (recording.tensors[index] for index in operator.saved):
            if tensor.storage not in known:
                elements = tensor.storage_elements.value(micro_batch=recording.batch, sequence=1)
                kept[tensor.storage] = elements * getattr(torch, tensor.dtype).itemsize
    return sum(kept.values())


@pytest.mark.parametrize("name", MODULES)
def test_a_module_counts_as_other_software_counts_it(known_models: Path, name: str) -> None:
    """Parameters, forward, forward and backward: all of them to the last digit."""
    recording, expected = recorded(known_models, name, "full", "fused")

    parameters = sum(
        prod(int(extent.value(micro_batch=1, sequence=1)) for extent in tensor.extents)
        for tensor in recording.tensors
        if tensor.source is TensorSource.PARAMETER
    )
    again = recording.recomputed_flop.value(micro_batch=recording.batch, sequence=1)
    gradients = flop(recording, "input_gradient_flop", "weight_gradient_flop")
    assert parameters == expected["params"]
    assert flop(recording, "flop") == expected["flops_forward"]
    assert flop(recording, "flop") + gradients + again == expected["flops_forward_backward"]


@pytest.mark.parametrize(
    ("name", "attention"),
    [*((name, "cpu") for name in MODULES), *((name, "fused") for name in WITH_ATTENTION)],
)
def test_a_module_keeps_what_was_measured(known_models: Path, name: str, attention: str) -> None:
    """The measured bytes of eager PyTorch on a CPU, whose attention is fused here."""
    recording, expected = recorded(known_models, name, "small", attention)

    assert saved_bytes(recording) == expected["saved_activation_bytes"]


@pytest.mark.parametrize("name", [*WITH_ATTENTION, "resnet50"])
def test_decomposed_attention_keeps_scores(known_models: Path, name: str) -> None:
    """As measured at full size on meta tensors, where attention is decomposed."""
    recording, expected = recorded(known_models, name, "full", "math")

    assert saved_bytes(recording) == expected["saved_activation_bytes_meta"]


class _Marked(torch.nn.Module):
    """Tokens of which one has an embedding of its own, as T5Gemma 2 has for ends of images."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.end = torch.nn.Embedding(64, 8), torch.nn.Parameter(torch.zeros(8))
        self.out = torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return features of tokens."""
        x = self.table(ids)
        x[ids == 3] = self.end
        return self.out(x)


def test_what_is_written_under_a_mask_needs_no_values() -> None:
    """Its gradient has as many rows as the mask has places, which are summed up."""
    recording = record(
        _Marked,
        lambda batch, sequence: ((torch.zeros(batch, sequence or 1, dtype=torch.long),), {}),
        name="a",
        sequence=16,
    )

    assert recording.how == "fake tensors"
    assert not recording.warnings
