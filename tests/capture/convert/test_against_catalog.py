"""A captured Llama costs what the catalog's does: the same steps, by another way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from wattree.job import job_from_mapping
from wattree.predict import simulate

#: A quarter of Llama 3.1 8B's layers, so that all strategies fit and few tasks are executed.
MODULE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def build():
    config = LlamaConfig(
        num_hidden_layers=8, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, use_cache=False,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation="sdpa")

def example_inputs(batch, sequence_length):
    ids = torch.zeros(batch, sequence_length, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}
"""
WRITTEN = {
    "layers": 8, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "vocab": 128256,
    "gated": True, "activation": "silu", "norm": "rms", "positions": "rotary",
    "tied_embedding": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the name of the module."""
    file: Path = tmp_path_factory.mktemp("model") / "llama.py"
    file.write_text(MODULE)
    return f"{file}:build"


@pytest.mark.parametrize(
    "strategy",
    [
        {"preset": "ddp", "dp": 8},
        {"preset": "fsdp", "fsdp": 8},
        {"tp": 8},
        {"tp": 4, "dp": 2, "sequence_parallel": True},
        {"pp": 4, "dp": 2},
    ],
    ids=str,
)
def test_step_time_and_memory_are_those_of_the_catalogue(
    strategy: dict[str, Any], captured: str
) -> None:
    """Within 3 %: rotations are two operators, and tables of angles are read."""

    def result(model: object) -> Any:
        job = job_from_mapping(
            {
                "model": model,
                "data": {"sequence_length": 2048, "global_batch": 32},
                "cluster": {"node": "dgx-h100", "nodes": 1},
                "strategy": {**strategy, "micro_batch": 1},
                "software": "megatron-core",
            }
        )
        return simulate(job).result

    found, expected = result({"module": captured}), result({"transformer": WRITTEN})

    assert found.parameters == expected.parameters
    assert found.step_time_s == pytest.approx(expected.step_time_s, rel=0.03)
    assert found.memory.peak_bytes == pytest.approx(expected.memory.peak_bytes, rel=0.03)
