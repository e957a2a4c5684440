"""Frozen parameters and low-rank adapters."""

from __future__ import annotations

from math import prod

import pytest

from tests.capture.graphs import catalog_graph
from wattree.capture import freeze, load_model, model_names
from wattree.capture.adapters import with_lora
from wattree.capture.figures import dense_forward_flop
from wattree.capture.linear_layers import LIBRARY_MODULES, layer_targets, partial_targets
from wattree.cost import SOFTWARE
from wattree.errors import ModelError


def test_adapters_train_rank_times_both_widths() -> None:
    """`r (in + out)` for each target of each layer [LoRA, section 4.1], and nothing else trains."""
    graph = with_lora(
        load_model("llama-3.1-8b"), rank=16, targets=["attention.qkv", "mlp.down"], joint=True
    )

    assert graph.trainable_parameters == 32 * 16 * ((4096 + 6144) + (14336 + 4096))
    assert graph.parameters == 8_030_261_248 + graph.trainable_parameters


@pytest.mark.parametrize(
    ("name", "targets", "widths"),
    [
        ("llama-3.1-8b", ["q_proj", "k_proj", "v_proj", "o_proj"], [8192, 5120, 5120, 8192]),
        ("llama-3.1-8b", ["q_proj", "v_proj"], [8192, 5120]),
        ("llama-3.1-8b", ["k_proj"], [5120]),
        ("llama-3.1-8b", ["gate_proj", "mlp.down"], [18432, 18432]),
        ("llama-3.1-8b", ["all-linear"], [8192, 5120, 5120, 8192, *[18432] * 3]),
        ("llama-3.1-8b", ["q_proj", "attention.qkv"], [8192, 5120, 5120]),
        ("gpt2", ["attention.qkv"], [768 + 3 * 768]),
        ("phi-3-mini-4k", ["all-linear"], [4 * 3072, 2 * 3072, 3072 + 16384, 8192 + 3072]),
    ],
)
def test_each_module_of_the_library_has_its_own_pair(
    name: str, targets: list[str], widths: list[int]
) -> None:
    """As PEFT's `print_trainable_parameters` counts, by `in + out` of each linear layer."""
    base, rank, tokens = load_model(name), 16, 128
    graph = with_lora(base, rank=rank, targets=targets)
    added = dense_forward_flop(graph, 1, tokens) - dense_forward_flop(base, 1, tokens)

    assert graph.trainable_parameters == graph.layers * rank * sum(widths)
    assert added == 2 * tokens * graph.trainable_parameters
    assert graph.warnings == base.warnings


def test_software_says_how_many_layers_the_projections_are() -> None:
    """Megatron's modules have one for all; of the catalog each knows what the library joins."""
    found = {
        name: with_lora(load_model("llama-3.1-8b"), rank=16, targets=["q_proj"], joint=joint)
        for name, joint in ((each.name, each.joint_projections) for each in SOFTWARE.values())
    }
    joint = {name for name, graph in found.items() if graph.warnings}
    assert joint == {name for name in SOFTWARE if name.startswith("megatron")}


def test_operators_join_as_many_layers_as_the_library_has_modules() -> None:
    """What is adapted of an operator is found by the places of its modules."""
    odd = [
        (name, operator.path)
        for name in model_names()
        if (graph := catalog_graph(name)).own_family
        for operator in graph.operators
        if operator.function != "grouped_linear"
        and len(LIBRARY_MODULES.get(graph.architecture, {}).get(operator.path, [""]))
        not in {1, operator.linear_layers}
    ]
    assert odd == []


def test_every_expert_gets_its_own_pair() -> None:
    """Experts see different tokens."""
    graph = with_lora(load_model("mixtral-8x7b"), rank=4, targets=["moe.experts.down"])

    assert graph.trainable_parameters == 32 * 8 * 4 * (14336 + 4096)


def test_an_adapted_layer_writes_the_tensors_it_wrote_before() -> None:
    """What follows must not notice; what is added is the adapter's work."""
    base = load_model("llama-2-7b")
    graph = with_lora(base, rank=8, targets=["attention.qkv"], joint=True)
    paths = [op.path for op in graph.blocks["layer"].operators]
    added = dense_forward_flop(graph, 1, 128) - dense_forward_flop(base, 1, 128)

    assert paths[1:6] == [
        "attention.qkv", "attention.qkv.lora_a", "attention.qkv.lora_b", "attention.qkv.lora_add",
        "attention.rotary",
    ]  # fmt: skip
    assert added == 32 * 2 * 128 * 8 * (4096 + 3 * 4096)


def test_adapter_weights_are_as_large_as_their_dims() -> None:
    """Shards are cut from the dims, so the count must follow from them."""
    graph = with_lora(load_model("mixtral-8x7b"), rank=4, targets=["*"])

    for block in graph.blocks.values():
        for op in block.operators:
            if ".lora_" in op.path:
                for parameter in op.parameters:
                    size = prod(op.dim(name).extent.coefficient for name in parameter.dims)
                    assert parameter.elements == size


def test_a_frozen_product_keeps_no_input() -> None:
    """Only the weight's gradient would need it."""
    graph = freeze(load_model("llama-3.1-8b"), ["layer.mlp.down"])
    frozen = next(op for op in graph.blocks["frozen_layer"].operators if op.path == "mlp.down")

    assert frozen.saved == ()
    assert graph.trainable_parameters == 8_030_261_248 - 32 * 14336 * 4096


def test_freezing_some_layers_makes_them_a_block_of_their_own() -> None:
    """Layers 0 and 1 no longer do what the others do."""
    graph = freeze(load_model("gpt2"), ["layers.0.*", "layers.1.*"])
    per_layer = 12 * 768**2 + 13 * 768

    assert [i.block for i in graph.instances if i.is_layer] == ["frozen_layer"] * 2 + ["layer"] * 10
    assert graph.trainable_parameters == graph.parameters - 2 * per_layer
    assert graph.parameters == 124_439_808


def test_a_tied_head_freezes_with_its_table() -> None:
    """They are one tensor."""
    graph = freeze(load_model("gpt2"), ["embedding.embedding.tokens"])
    logits = next(op for op in graph.blocks["head"].operators if op.path == "logits")

    assert not logits.parameters[0].trainable


def test_freezing_keeps_the_encoder_attached() -> None:
    """A renamed decoder block still reads the encoder."""
    graph = freeze(load_model("t5-small"), ["decoder.layers.3.*"])

    (frozen,) = (i for i in graph.instances if i.block == "frozen_decoder_layer")
    assert frozen.reads[1] == "encoder.final/final_norm"


@pytest.mark.parametrize("rank", [0, -1, True, 2.5])
def test_an_impossible_rank_is_refused(rank: object) -> None:
    """Including booleans, which Python takes for numbers."""
    with pytest.raises(ModelError, match=r"gpt2: lora\.rank: found"):
        with_lora(load_model("gpt2"), rank=rank, targets=["mlp.up"])  # type: ignore[arg-type]


def test_a_target_that_matches_nothing_names_the_nearest() -> None:
    """Else a typing error would train nothing."""
    with pytest.raises(ModelError) as caught:
        with_lora(load_model("gpt2"), rank=8, targets=["atention.qkv"])

    assert str(caught.value) == (
        "gpt2: lora.targets: 'atention.qkv' matches no projection; did you mean 'attention.qkv'?"
    )


@pytest.mark.parametrize("targets", [["*_proj"], []])
def test_known_targets_are_few_and_begin_with_those_of_the_library(targets: list[str]) -> None:
    """Of 32 layers of the same names one list is enough."""
    with pytest.raises(ModelError, match=r"(known: |such as ')q_proj") as caught:
        with_lora(load_model("llama-3.1-8b"), rank=8, targets=targets)

    assert "o_proj" in str(caught.value) or not targets
    assert "layers." not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_pattern_that_freezes_nothing_is_refused() -> None:
    """As above."""
    with pytest.raises(ModelError, match=r"gpt2: freeze: 'layers.77.\*' matches no operator"):
        freeze(load_model("gpt2"), ["layers.77.*"])


def test_a_rank_above_a_side_of_the_matrix_is_refused() -> None:
    """Such an adapter is larger than what it adapts: a slip, not a wish."""
    with pytest.raises(ModelError) as caught:
        with_lora(load_model("gpt2"), rank=800, targets=["mlp.*"])

    assert str(caught.value) == (
        "gpt2: lora.rank: found 800, expected at most 768, the shorter side of the matrix of "
        "'mlp.up'; use a lower rank, or leave it out of lora.targets"
    )


def test_the_largest_rank_that_fits_is_admitted() -> None:
    """The bound is the side itself."""
    graph = with_lora(load_model("gpt2"), rank=768, targets=["mlp.up"])

    assert graph.trainable_parameters == 12 * 768 * (768 + 3072)


def test_freezing_everything_is_refused() -> None:
    """Nothing would be left to train, and the step would be no training step."""
    with pytest.raises(ModelError) as caught:
        freeze(load_model("gpt2"), ["*"])

    assert str(caught.value) == (
        "gpt2: freeze: the patterns leave no parameter to train, found '*'; freeze fewer operators"
    )


@pytest.mark.parametrize(
    ("name", "targets", "operators", "partial"),
    [
        ("llama-3.1-8b", ["q_proj", "k_proj", "v_proj", "down_proj"], "attention.qkv mlp.down", {}),
        ("qwen2.5-14b", ["self_attn.q_proj", "v_proj"], "attention.qkv", {"attention.qkv": (0, 2)}),
        ("gemma-2-9b", ["gate_proj", "attention.out"], "mlp.up attention.out", {"mlp.up": (0,)}),
        ("gpt2", ["c_proj"], "attention.out mlp.down", {}),
        ("pythia-1.4b", ["attention.dense", "mlp.*"], "attention.out mlp.*", {}),
    ],
)
def test_names_of_the_librarys_modules_are_understood(
    name: str, targets: list[str], operators: str, partial: dict[str, tuple[int, ...]]
) -> None:
    """As PEFT takes them: a module is an operator, or a part of one."""
    graph = load_model(name)

    assert layer_targets(graph, targets) == tuple(operators.split())
    assert partial_targets(graph, targets) == partial


def test_names_that_nothing_has_are_refused_with_one_list() -> None:
    """Once it came with each of them. A module of one layer alone is no operator's name."""
    targets = ["layers.0.self_attn.q_proj", "wqkv_zzz"]
    graph = load_model("llama-3.1-8b")
    with pytest.raises(ModelError) as caught:
        with_lora(graph, rank=8, targets=targets)
    assert str(caught.value).count("matches no projection") == 2
    assert str(caught.value).count("known: ") == 1
