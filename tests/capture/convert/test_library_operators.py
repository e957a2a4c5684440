"""Grouped products of experts and selective scans: the recorded work, and all parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from wattree.capture import dense_forward_flop
from wattree.capture.convert import model_graph
from wattree.capture.huggingface_modules import recorded_config
from wattree.capture.recording import TensorSource

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {
        **_SIZES, "model_type": "mamba", "state_size": 4, "architectures": ["MambaForCausalLM"],
    },
    "mixtral": {
        **_SIZES, "model_type": "mixtral", "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        "architectures": ["MixtralForCausalLM"],
    },
}  # fmt: skip
FUNCTIONS = {"mamba": "scan_product", "mixtral": "grouped_linear"}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_kernel_of_a_library_keeps_its_work(name: str) -> None:
    """Two layers with it, each of which is a product in the graph."""
    recording = recorded_config(CONFIGS[name], "a", sequence=16)
    sizes = {"micro_batch": recording.batch, "sequence": recording.sequence or 1}

    graph = model_graph(recording)

    recorded = sum(operator.flop.value(**sizes) for operator in recording.operators)
    parameters = sum(
        math.prod(e.coefficient for e in tensor.extents)
        for tensor in recording.tensors
        if tensor.source is TensorSource.PARAMETER
    )
    found = [
        operator
        for instance in graph.instances
        for operator in graph.blocks[instance.block].operators
        if operator.function == FUNCTIONS[name]
    ]
    assert len(found) == (2 if name == "mamba" else 4)
    assert dense_forward_flop(graph, recording.batch, 16) == pytest.approx(recorded, rel=1e-9)
    assert graph.parameters == parameters
    assert not any("selective_scan" in w or "grouped_mm" in w for w in graph.warnings)
