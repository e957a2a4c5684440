"""Hybrids of Mamba-2, attention and feed-forward layers: sizes, work and what backward keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from wattree import job_from_mapping, simulate
from wattree.capture import (
    build_transformer,
    catalog_entry,
    config_shape,
    dense_forward_flop,
    load_model,
)
from wattree.capture.huggingface import transformer_from_config
from wattree.capture.mapping import transformer_from_mapping
from wattree.errors import JobError, ModelError
from wattree.graph import Block, ModelGraph
from wattree.lowering.block import compile_model
from wattree.lowering.program import CollectiveInstruction
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import tree_of

#: Of no published model; every size differs from every other.
SMALL: dict[str, Any] = {
    "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"],
    "hybrid_override_pattern": "MEM*-E", "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 48, "vocab_size": 1024, "intermediate_size": 640,
    "ssm_state_size": 32, "n_groups": 4, "conv_kernel": 4, "mamba_num_heads": 24,
    "mamba_head_dim": 40, "chunk_size": 64, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 320, "moe_shared_expert_intermediate_size": 704,
    "moe_latent_size": 128, "max_position_embeddings": 8192, "mlp_hidden_act": "relu2",
}  # fmt: skip
PLAIN = {**SMALL, "hybrid_override_pattern": "E-*M", "moe_latent_size": None, "n_groups": 2}
#: github:NVIDIA-NeMo/Megatron-Bridge at 067f987df0: recipes/nemotronh/h100/nemotron_3_nano_4b.py.
NANO_4B: dict[str, Any] = {
    "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 3136,
    "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
    "intermediate_size": 12544, "num_attention_heads": 40, "num_key_value_heads": 8,
    "head_dim": 128, "mamba_num_heads": 96, "mamba_head_dim": 80, "ssm_state_size": 128,
    "n_groups": 8, "chunk_size": 256,
}  # fmt: skip
TOKENS = 2048


def graph_of(config: dict[str, Any], predictions: int = 0) -> ModelGraph:
    """Return the graph of a configuration."""
    return build_transformer(replace(config_shape(config, "test"), predictions=predictions))


def by_hand(config: dict[str, Any]) -> tuple[int, float]:
    """Return parameters, and FLOP of a forward pass of one token, of the layers and both tables.

    A closed form of its own: sizes of matrices as the papers give them, two FLOP for each weight
    that a token meets, plus what attention and the scan multiply of activations.
    """
    width, vocab = config["hidden_size"], config["vocab_size"]
    heads, state, groups = (config[k] for k in ("mamba_num_heads", "ssm_state_size", "n_groups"))
    inner, chunk = heads * config["mamba_head_dim"], config.get("chunk_size", 128)
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    expert = 2 * (config.get("moe_latent_size") or width) * config.get("moe_intermediate_size", 0)
    routers = width * config.get("n_routed_experts", 0)
    always = 2 * width * config.get("moe_shared_expert_intermediate_size", 0) + routers
    always += 2 * width * (config.get("moe_latent_size") or 0)
    projected = inner + (inner + 2 * groups * state) + heads
    mixed = width * projected + inner * width
    # Mamba-2, arXiv:2405.21060, section 6: scores of a chunk by group and their values, and twice
    # the state: what a chunk adds to it, and what is read from it.
    scan = groups * chunk * state + inner * chunk + 2 * inner * state
    of_mamba = mixed + (inner + 2 * groups * state) * (config.get("conv_kernel", 4) + 1)
    layers = {
        "M": (of_mamba + 3 * heads + inner, mixed + scan),
        "*": (width * (2 * q + 2 * kv), width * (2 * q + 2 * kv) + 2 * TOKENS * q),
        "-": (2 * width * config["intermediate_size"],) * 2,
        "E": (
            always + config.get("n_routed_experts", 0) * expert,
            always + config.get("num_experts_per_tok", 0) * expert,
        ),
    }
    pattern = config["hybrid_override_pattern"]
    parameters = sum(layers[letter][0] + width for letter in pattern) + 2 * vocab * width + width
    return parameters, 2.0 * (sum(layers[letter][1] for letter in pattern) + vocab * width)


@each("config", [SMALL, PLAIN, NANO_4B])
def test_sizes_and_work_are_those_of_the_closed_form(config: dict[str, Any]) -> None:
    """Every parameter is counted, and every product of a token with one."""
    parameters, flop = by_hand(config)
    graph = graph_of(config)

    found = dense_forward_flop(graph, 1, TOKENS) / TOKENS

    assert graph.parameters == parameters
    assert found == pytest.approx(flop, rel=2e-3)  # the scan's sums are cut to whole numbers


def test_a_model_that_no_catalog_lists_has_its_published_count() -> None:
    """Model verification card of nemotron-3-nano-4b: 3,973,556,832 parameters in 263 tensors."""
    assert graph_of(NANO_4B).parameters == 3_973_556_832


#: Routing biases (one per expert and mixture layer), which are stored and not trained.
@pytest.mark.parametrize(
    ("name", "predictions", "published", "biases"),
    [
        # Model verification card: 32,913,266,240 parameters, with one module of prediction.
        ("nemotron-3.5-lightning", 1, 32_913_266_240, 24 * 128),
        # Modules share their parameters.
        ("nemotron-3.5-lightning", 2, 32_913_266_240, 24 * 128),
    ],
)
def test_modules_of_prediction_have_the_published_count(
    name: str, predictions: int, published: int, biases: int
) -> None:
    """Tables, head and the modules of greater depth add nothing."""
    graph = load_model(name, arguments={"predictions": predictions})

    assert graph.parameters + biases == published


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("nemotron-3-nano", (31.5e9, 31.65e9), (3.2e9, 3.7e9)),
        ("nemotron-3-super", (120e9, 121e9), (12e9, 13e9)),
        ("nemotron-3-ultra", (545e9, 555e9), (54e9, 57e9)),
        ("nemotron-h-8b", (8.05e9, 8.15e9), (8.05e9, 8.15e9)),
        ("nemotron-h-47b", (46.5e9, 47.5e9), (46.5e9, 47.5e9)),
        ("nemotron-h-56b", (55.5e9, 56.5e9), (55.5e9, 56.5e9)),
        ("kimi-k2", (1.02e12, 1.04e12), (31.5e9, 33e9)),
    ],
)
def test_total_and_active_parameters_are_those_that_were_published(
    name: str, total: tuple[float, float], active: tuple[float, float]
) -> None:
    """What a token meets: all of a model but the experts that it is not sent to."""
    config = catalog_entry(name).config
    assert config is not None
    graph, shape = load_model(name), config_shape(config, name)
    of_experts = sum(
        parameter.elements
        for instance in graph.instances
        for operator in graph.blocks[instance.block].operators
        for parameter in operator.parameters
        if operator.path.startswith("moe.experts")
    )
    idle = of_experts * (1 - shape.top_k / shape.experts) if shape.experts else 0

    assert total[0] <= graph.parameters <= total[1]
    assert active[0] <= graph.parameters - idle <= active[1]


def saved_elements(block: Block) -> float:
    """Return what one token leaves behind for backward, each tensor once."""
    kept: dict[str, float] = {}
    for operator in block.operators:
        for operand in (*operator.inputs, *operator.outputs):
            if operand.tensor in operator.saved:
                size = operand.fraction
                for name in operand.dims:
                    size *= operator.dim(name).extent.coefficient
                kept[operand.tensor] = size
    return sum(kept.values())


def test_mamba_saves_what_its_published_kernel_saves() -> None:
    """`MambaSplitConv1dScanCombinedFn.save_for_backward`: zxbcdt and the scan's output.

    Besides these the norm before it and both projections save what they read.
    """
    shape = config_shape(SMALL, "test")
    inner = shape.mamba_heads * shape.mamba_head_dim
    projected = 2 * inner + 2 * shape.mamba_groups * shape.mamba_state + shape.mamba_heads
    block = graph_of(SMALL).blocks["mamba_layer"]

    assert saved_elements(block) == pytest.approx(2 * shape.hidden + projected + 2 * inner)


def test_prediction_adds_the_work_of_its_layers_and_of_the_head() -> None:
    """Each depth runs attention, a mixture, a projection of two states, and all logits again."""
    without, single, double = (
        dense_forward_flop(graph_of(SMALL, count), 1, TOKENS) for count in (0, 1, 2)
    )
    alone = graph_of({**SMALL, "hybrid_override_pattern": "*E"})
    width = SMALL["hidden_size"]

    assert single - without == pytest.approx(
        dense_forward_flop(alone, 1, TOKENS) + 2 * TOKENS * 2 * width * width
    )
    assert double - single == pytest.approx(single - without)


def test_a_transformer_block_describes_the_same_model() -> None:
    """A job can say it without a file."""
    keys = ("layers", "pattern", "hidden", "heads", "kv_heads", "head_dim", "vocab", "ffn",
            "activation", "norm", "positions", "mamba_heads", "mamba_head_dim", "mamba_groups",
            "mamba_state", "mamba_chunk", "experts", "top_k", "expert_ffn", "shared_ffn",
            "expert_latent")  # fmt: skip
    shape = config_shape(SMALL, "test")
    block = transformer_from_mapping({key: getattr(shape, key) for key in keys}, "model")

    assert block.parameters == graph_of(SMALL).parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hybrid_override_pattern": "MXE"},
            "hybrid_override_pattern: found 'MXE', expected one letter of M * - E for each layer",
        ),
        (
            {"num_hidden_layers": 7},
            "num_hidden_layers: found 7, expected 6, as the pattern has",
        ),
        (
            {"layers_block_type": ["mamba", "lstm"]},
            "layers_block_type: found 'lstm', expected a list of mamba, attention, mlp, moe, "
            "linear_attention, full_attention",
        ),
        (
            {"n_groups": 5},
            "n_groups: found 5, expected a number that divides mamba_num_heads (24)",
        ),
        (
            {"layers_block_type": [["mamba"]]},
            "layers_block_type: found ['mamba'], expected a list of mamba",
        ),
        ({"use_bias": True}, "use_bias: found true, expected false: Mamba's projections have no"),
    ],
)
def test_what_cannot_be_a_hybrid_is_said(change: dict[str, Any], message: str) -> None:
    """A wrong size must not pass for another model."""
    with pytest.raises(ModelError) as refused:
        config_shape({**SMALL, **change}, "test")

    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 64}, "window: has no effect with a pattern"),
        ({"parallel": True}, "parallel: has no effect with a pattern"),
        ({"encoder_layers": 2}, "encoder_layers: has no effect with a pattern"),
        ({"head": "none", "predictions": 1}, "predictions: a head of kind 'none' predicts no"),
    ],
)
def test_fields_that_a_pattern_leaves_no_room_for_are_refused(
    change: dict[str, Any], message: str
) -> None:
    """Without a word they would be another model."""
    with pytest.raises(ModelError, match=message):
        replace(config_shape(SMALL, "test"), **change)


def test_layers_of_further_predictions_have_the_sizes_of_the_file() -> None:
    """Also where no other layer has them."""
    config = {**SMALL, "hybrid_override_pattern": "*E", "mtp_hybrid_override_pattern": "M-"}
    shape = config_shape(config, "test")

    assert (shape.ffn, shape.mamba_heads) == (640, 24)


def test_other_models_predict_further_tokens_with_a_layer_like_their_last() -> None:
    """DeepSeek-V3, section 4.2: 671B without, 685B in the repository with a copy of both tables."""
    plain, further = (
        load_model("deepseek-v3", arguments={"predictions": count}) for count in (0, 1)
    )

    copies = 2 * 129_280 * 7168
    assert further.parameters + copies == pytest.approx(684.5e9, rel=1e-4)
    work = [dense_forward_flop(graph, 1, 4096) for graph in (plain, further)]
    assert work[1] / work[0] == pytest.approx(1 + 1 / 61 + 0.022, abs=0.01)
    counted = {**dict(catalog_entry("glm-4.5").config or {}), "num_nextn_predict_layers": 1}
    assert "predictions: 1" in transformer_from_config(counted, "test").assumed[0]
    with pytest.raises(ModelError, match="predictions: found 2, expected 0: only decoders"):
        load_model("bert-base", arguments={"predictions": 2})


def test_generation_is_refused(tmp_path: Path) -> None:
    """A decode step of a scan has kernels of its own, of which nothing is modeled."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL), encoding="utf-8")
    job = {
        "model": {"name": str(file)},
        "data": {"prompt_length": 64, "generate_length": 2, "global_batch": 8},
        "cluster": {"node": "dgx-h100", "nodes": 1},
        "strategy": {"dp": 8},
        "workload": "generate",
    }

    with pytest.raises((JobError, ModelError), match="state-space layers"):
        simulate(job_from_mapping(job, source="test"))


@each(
    "strategy",
    [
        {"dp": 16},
        {"dp": 2, "ep": 8},
        {"tp": 4, "dp": 4, "sequence_parallel": True},
        {"tp": 2, "dp": 2, "ep": 4, "sequence_parallel": True, "expert_over_tensor": True},
        {"pp": 2, "dp": 8, "schedule": "1f1b"},
        {"pp": 2, "dp": 2, "ep": 4, "schedule": "interleaved", "virtual_stages": 3},
        {"cp": 2, "tp": 2, "dp": 4, "sequence_parallel": True},
        {"dp": 16, "recompute": "full", "sharding": "zero3"},
    ],
)
def test_every_parallelism_runs_all_of_the_work(strategy: dict[str, Any], tmp_path: Path) -> None:
    """Whatever is split, the devices together do the FLOP of the model, and no device waits."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL), encoding="utf-8")
    predictions = 0 if strategy.get("pp", 1) > 1 else 2
    job = {
        "model": {"name": str(file), "arguments": {"predictions": predictions}},
        "data": {"sequence_length": TOKENS, "global_batch": 32},
        "cluster": {"node": "dgx-h100", "nodes": 2},
        "precision": "fp8",
        "strategy": strategy,
    }

    result = simulate(job_from_mapping(job, source="test")).result
    alone = simulate(job_from_mapping({**job, "strategy": {"dp": 16}}, source="test")).result

    assert result.model_flop_per_step == pytest.approx(alone.model_flop_per_step)
    assert result.step_time_s > 0.5 * alone.step_time_s


def exchanged(letter: str, axis: str, **degrees: int) -> list[tuple[str, str]]:
    """Return kind and phase of what ranks along an axis exchange for a layer of one branch."""
    graph = graph_of({**SMALL, "hybrid_override_pattern": letter})
    options = StrategyOptions(**degrees, sequence_parallel=axis == "tp")
    program = compile_model(graph, tree_of(options, graph), frozenset({axis}))
    layer = program.programs[program.instances[1]]
    return [
        (step.kind.value, phase)
        for phase in ("forward", "backward")
        for step in getattr(layer, phase)
        if isinstance(step, CollectiveInstruction)
    ]


def test_tensor_parallel_ranks_exchange_as_much_for_mamba_as_for_an_mlp() -> None:
    """One column-parallel and one row-parallel projection, and nothing in between."""
    mamba = exchanged("M", "tp", tp=4)

    assert mamba == exchanged("-", "tp", tp=4)
    assert mamba[:2] == [("all_gather", "forward"), ("reduce_scatter", "forward")]


def test_context_parallel_ranks_exchange_positions_for_heads() -> None:
    """The scan goes through all positions; Megatron-Core's `MambaContextParallel` does the same."""
    kinds = {kind for kind, _ in exchanged("M", "cp", cp=4)}

    assert kinds == {"all_to_all"}
