"""Grouped products of experts and scans of states: the recorded work, and all parameters."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from wattree.capture import dense_forward_flop
from wattree.capture.convert import model_graph
from wattree.capture.huggingface_modules import (
    ConfigurationChoices,
    huggingface_module,
    recorded_config,
)
from wattree.capture.recording import TensorSource

_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "mamba": {
        **_SIZES, "model_type": "mamba", "state_size": 4, "architectures": ["MambaForCausalLM"],
    },
    "mamba2": {
        **_SIZES, "model_type": "mamba2", "state_size": 8, "num_heads": 4, "head_dim": 16,
        "n_groups": 2, "chunk_size": 8, "architectures": ["Mamba2ForCausalLM"],
    },
    "qwen3_next": {
        **_SIZES, "model_type": "qwen3_next", "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "intermediate_size": 64, "num_experts": 0, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "linear_attention"],
        "architectures": ["Qwen3NextForCausalLM"],
    },
    "kimi_linear": {
        **_SIZES, "model_type": "kimi_linear", "num_attention_heads": 4, "intermediate_size": 64,
        "linear_num_heads": 4, "linear_head_dim": 8, "mlp_layer_types": ["dense", "dense"],
        "pad_token_id": 0,
        "layer_types": ["linear_attention", "linear_attention"],
        "architectures": ["KimiLinearForCausalLM"],
    },
    "longcat_flash": {  # 2 of 3 experts that tokens pick do work, and have matrices
        "model_type": "longcat_flash", "hidden_size": 32, "num_layers": 1, "vocab_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "head_dim": 8,
        "ffn_hidden_size": 64, "expert_ffn_hidden_size": 16, "n_routed_experts": 8,
        "zero_expert_num": 4, "moe_topk": 3, "pad_token_id": 0,
        "architectures": ["LongcatFlashForCausalLM"],
    },
    "mixtral": {
        **_SIZES, "model_type": "mixtral", "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        "architectures": ["MixtralForCausalLM"],
    },
}  # fmt: skip
FUNCTIONS = {
    "mamba": ("scan_product", 2),
    "mamba2": ("chunked_product", 2),
    "qwen3_next": ("chunked_product", 2),
    "kimi_linear": ("chunked_product", 2),
    "longcat_flash": ("grouped_linear", 2),
    "mixtral": ("grouped_linear", 4),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_kernel_of_a_library_keeps_its_work(name: str) -> None:
    """Two layers with it, each of which is a product in the graph."""
    function, count = FUNCTIONS[name]
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
        if operator.function == function
    ]
    assert len(found) == count
    assert dense_forward_flop(graph, recording.batch, 16) == pytest.approx(recorded, rel=1e-9)
    assert graph.parameters == parameters
    assert not any("wattree" in w or "grouped_mm" in w for w in graph.warnings)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_stands_for_kernels_is_no_module_that_trains(name: str) -> None:
    """Operators known by their shapes make zeros: experts and routers got them as gradients."""
    torch.manual_seed(0)
    found = huggingface_module({**CONFIGS[name], "pad_token_id": 0}, "a")
    module = found.build()
    _, inputs = found.inputs(2, 16)
    inputs = {key: torch.randint(1, 64, value.shape) for key, value in inputs.items()}
    with warnings.catch_warnings(action="ignore"):  # of the library
        module(**inputs).backward()

    gradients = {key: value.grad for key, value in module.named_parameters()}
    assert [key for key, value in gradients.items() if value is None or not value.any()] == []


def test_experts_that_return_what_they_read_do_no_work_and_have_no_matrices() -> None:
    """Two of three picks meet 3 matrices of 32 x 16, of which there are those of 8 experts."""
    recording = recorded_config(CONFIGS["longcat_flash"], "a", sequence=16)

    grouped = [o for o in recording.operators if "grouped_mm" in o.target]
    flop = sum(o.flop.value(micro_batch=2, sequence=16) for o in grouped)
    tensors = [t for t in recording.tensors if "experts." in t.name]
    assert flop == 2 * (2 * 16) * 2 * 3 * 32 * 16  # FLOP, rows, picks, matrices
    assert sum(math.prod(e.coefficient for e in t.extents) for t in tensors) == 8 * 3 * 32 * 16


#: Products for each token and head: with the state, and of a chunk's keys and values.
@pytest.mark.parametrize(
    ("name", "heads", "products", "saved"),
    [
        # 3 with the state of 8 x 8; in chunks of 64, 3 of keys and 2 of values; a row of a matrix.
        ("qwen3_next", 4, 3 * 8 * 8 + 64 * (3 + 2) * 8, 64),
        ("kimi_linear", 4, 3 * 8 * 8 + 64 * (3 + 2) * 8, 128),
        # 2 with the state of 8 x 16; chunks of 8, keys once for the two heads of a group; output.
        ("mamba2", 4, 2 * 8 * 16 + 8 * (8 / 2 + 16), 16),
    ],
)
def test_a_recurrence_over_chunks_does_and_saves_what_its_kernels_do(
    name: str, heads: int, products: float, saved: int
) -> None:
    """Not every intermediate result in fp32, as without them."""
    recording = recorded_config(CONFIGS[name], "a", sequence=64)

    tokens = recording.batch * 64
    done = [o for o in recording.operators if o.target.startswith("wattree.chunked_product")]
    passes = [o for o in recording.operators if o.target.startswith("wattree.chunked_pass")]
    flop = [o.flop.value(micro_batch=recording.batch, sequence=64) for o in done]
    assert flop == pytest.approx([2 * tokens * heads * products] * 2, rel=0.03)
    for each in passes:
        kept = recording.tensors[each.outputs[2]]
        assert math.prod(e.coefficient for e in kept.extents) == heads * saved
        assert each.outputs[2] in each.saved
        assert each.outputs[0] not in each.saved


@pytest.mark.parametrize("narrow", [True, False])
def test_what_a_module_widens_is_seen_in_16_bits(*, narrow: bool) -> None:
    """The gated norm of Mamba 2 computes in fp32, so that it keeps fp32 whatever the weights."""
    choices = ConfigurationChoices(narrow=narrow)
    recording = recorded_config(CONFIGS["mamba2"], "a", choices=choices, sequence=16)

    norms = {o.module for o in recording.operators if o.module.endswith("mixer.norm")}
    kept = {i for o in recording.operators if o.module in norms for i in o.saved}
    tensors = [recording.tensors[index] for index in kept]
    parameters = {t.dtype for t in recording.tensors if t.source is TensorSource.PARAMETER}
    assert parameters == {"bfloat16" if narrow else "float32"}
    assert "float32" in {each.dtype for each in tensors if each.source is TensorSource.OPERATOR}
