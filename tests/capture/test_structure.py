"""What the graphs are made of: operators, tensors, shares, masks, ties."""

from __future__ import annotations

from math import prod

import pytest

from tests.capture.graphs import catalog_graph
from wattree.capture import TransformerShape, build_transformer, load_model, model_names
from wattree.capture.figures import operator_flop
from wattree.errors import ModelError
from wattree.graph import Block, DimRole, ModelGraph, Operand, Operator, OperatorKind

SMALL = {"layers": 2, "hidden": 64, "heads": 8, "vocab": 100}


def operator(graph: ModelGraph, block: str, path: str) -> Operator:
    """Return one operator of a block."""
    return next(op for op in graph.blocks[block].operators if op.path == path)


def elements(op: Operator, operand: Operand, *, micro_batch: float, sequence: float) -> float:
    """Return how many values an operand holds."""
    extents = (
        op.dim(d).extent.value(micro_batch=micro_batch, sequence=sequence) for d in operand.dims
    )
    return operand.fraction * prod(extents)


def saved_values(block: Block, *, micro_batch: float, sequence: float) -> dict[str, float]:
    """Return tensor → values kept for backward, each tensor once."""
    sizes = {}
    for op in block.operators:
        for operand in (*op.inputs, *op.outputs):
            sizes.setdefault(
                operand.tensor, elements(op, operand, micro_batch=micro_batch, sequence=sequence)
            )
    written = {
        out.tensor: elements(op, out, micro_batch=micro_batch, sequence=sequence)
        for op in block.operators
        for out in op.outputs
    }
    return {name: (sizes | written)[name] for op in block.operators for name in op.saved}


def test_a_llama_layer_has_the_operators_that_strategies_name() -> None:
    """Presets match these paths; renaming one would silently unsplit it."""
    layer = load_model("llama-3.1-8b").blocks["layer"]

    assert [op.path for op in layer.operators] == [
        "input_norm", "attention.qkv", "attention.rotary", "attention.core", "attention.out",
        "attention.residual", "mlp_norm", "mlp.up", "mlp.activation", "mlp.down", "mlp.residual",
    ]  # fmt: skip


def test_grouped_query_attention_splits_its_projection_by_key_heads() -> None:
    """32 query and 8 key/value heads of 128: 4096 + 2 x 1024 features in 8 units."""
    qkv = operator(load_model("llama-3.1-8b"), "layer", "attention.qkv")

    assert qkv.dim("out").extent.coefficient == 6144
    assert qkv.dim("out").units == 8
    assert {out.tensor: out.fraction * 6144 for out in qkv.outputs} == {"q": 4096, "kv": 2048}


def test_attention_reads_keys_of_all_positions() -> None:
    """The key dim is contracted: splitting it is context parallelism."""
    core = operator(load_model("llama-3.1-8b"), "layer", "attention.core")

    assert core.dim("kv_seq").role is DimRole.CONTRACTED
    assert core.inputs[1].dims == ("batch", "kv_seq", "heads")
    assert elements(core, core.inputs[1], micro_batch=1, sequence=10) == 10 * 2048


def test_a_tensor_has_one_size_wherever_it_is_seen() -> None:
    """Writer and readers of a tensor must agree, or memory and traffic would not."""
    partial_reads = {
        ("attention.rotary", "kv"),
        ("attention.k_norm", "kv"),
        ("attention.rotary", "kv_normed"),
        ("attention.core", "position_scores"),
    }  # values pass through unread; of the scores by position, those between its tokens
    disagreements = []
    for name in model_names():
        graph = catalog_graph(name)
        for block in graph.blocks.values():
            sizes: dict[str, float] = {}
            for op in block.operators:
                for operand in (*op.inputs, *op.outputs):
                    size = elements(op, operand, micro_batch=4, sequence=64)
                    known = sizes.setdefault(operand.tensor, size)
                    skips = (op.path, operand.tensor) in partial_reads
                    if known != pytest.approx(size) and not skips:
                        disagreements.append((name, op.path, operand.tensor, known, size))

    assert disagreements == []


def test_latent_attention_has_the_ranks_of_deepseek() -> None:
    """Queries through 1536, keys and values through 512 plus 64 shared rotary features."""
    graph = load_model("deepseek-v3")
    shapes = {
        op.path: (op.dim("in").extent.coefficient, op.dim("out").extent.coefficient)
        for op in graph.blocks["layer"].operators
        if op.kind is OperatorKind.MATMUL and op.path.startswith("attention")
    }

    assert shapes == {
        "attention.q_down": (7168, 1536),
        "attention.q_up": (1536, 128 * 192),
        "attention.kv_down": (7168, 512 + 64),
        "attention.kv_up": (512, 128 * 256),
        "attention.out": (128 * 128, 7168),
    }


def test_the_first_layers_of_deepseek_are_dense() -> None:
    """Three, then 58 mixtures."""
    kinds = [i.block for i in load_model("deepseek-v3").instances if i.is_layer]

    assert kinds == ["layer"] * 3 + ["moe_layer"] * 58


def test_experts_work_on_the_tokens_routed_to_them() -> None:
    """Top 2 of 8: every token is worked on twice, whatever the number of experts."""
    graph = load_model("mixtral-8x7b")
    up = operator(graph, "moe_layer", "moe.experts.up")
    dispatch = operator(graph, "moe_layer", "moe.dispatch")

    assert operator_flop(up, micro_batch=3, sequence=100) == 2 * 3 * 100 * 2 * 4096 * 2 * 14336
    assert elements(dispatch, dispatch.outputs[0], micro_batch=3, sequence=100) == (
        3 * 100 * 2 * 4096
    )
    assert dispatch.dim("expert").units == 8


def test_mixtures_of_qwen2_have_a_gated_shared_expert() -> None:
    """The gate is one feature wide and scales the shared experts' output."""
    graph = load_model("qwen2-57b-a14b")

    assert operator(graph, "moe_layer", "moe.shared.gate").parameters[0].elements == 3584
    assert {o.tensor for o in operator(graph, "moe_layer", "moe.residual").inputs} == {
        "attention.residual", "moe.combine", "moe.shared.scale",
    }  # fmt: skip


def test_gemma_3_has_five_windows_to_one_full_layer() -> None:
    """Window layers and full ones are different blocks, since their work differs."""
    graph = load_model("gemma-3-1b")
    kinds = [instance.block for instance in graph.instances if instance.is_layer]

    assert kinds[:7] == ["window_layer"] * 5 + ["layer", "window_layer"]
    mask = operator(graph, "window_layer", "attention.core").mask
    assert mask is not None
    assert mask.window == 512


def test_a_window_hides_what_lies_further_back() -> None:
    """Counted pair by pair: position i sees min(i + 1, window) positions."""
    core = operator(load_model("mistral-7b"), "window_layer", "attention.core")
    assert core.mask is not None
    pairs = sum(min(position + 1, 4096) for position in range(10_000))

    assert core.mask.visible_share(10_000) == pytest.approx(pairs / 10_000**2, rel=1e-12)


def test_a_bidirectional_encoder_sees_everything() -> None:
    """BERT has no causal mask."""
    core = operator(load_model("bert-base"), "layer", "attention.core")
    assert core.mask is not None

    assert core.mask.visible_share(512) == 1


def test_a_tied_head_counts_its_table_once() -> None:
    """It is computed with, yet neither stored nor updated twice."""
    graph = load_model("gpt2")
    weight = operator(graph, "head", "logits").parameters[0]

    assert weight.tied_to == "embedding/embedding.tokens.weight"
    assert weight.elements == 50257 * 768
    assert graph.blocks["head"].parameter_elements == 2 * 768


def test_an_odd_vocabulary_can_be_split() -> None:
    """Frameworks pad GPT-2's 50257 rows before they split them; the count stays exact."""
    graph = load_model("gpt2")
    tables = [
        operator(graph, "embedding", "embedding.tokens"),
        operator(graph, "head", "logits"),
        operator(graph, "head", "loss"),
    ]

    assert [op.dim("vocab").units for op in tables] == [50304] * 3
    assert [op.dim("vocab").extent.coefficient for op in tables] == [50257] * 3


def test_every_tie_leads_to_a_parameter_of_its_size() -> None:
    """A tie to nothing would lose parameters without a word; one to a part of a matrix is right."""
    broken = []
    for name in model_names():
        graph = catalog_graph(name)
        owned = {
            f"{instance.path}/{p.name}": p.elements
            for instance in graph.instances
            for op in graph.blocks[instance.block].operators
            for p in op.parameters
            if p.tied_to is None
        }
        broken += [
            (name, p.name)
            for instance in graph.instances
            for op in graph.blocks[instance.block].operators
            for p in op.parameters
            if p.tied_to is not None
            and owned.get(p.tied_to.replace("./", f"{instance.path}/"), 0.0)
            # Keys and queries of positions are those of tokens, without values.
            != p.elements * (1.5 if p.name == "attention.positions.weight" else 1.0)
        ]

    assert broken == []


def test_saved_activations_of_a_gpt_layer_are_those_of_korthikanti() -> None:
    """Table 2 of arXiv:2205.05198 counts 34 sbh bytes without the attention scores.

    In 16-bit values: norms 2 x 2, qkv input 2, q k v 6, flash output (input of the projection) 2,
    input of the first MLP product 2, of GeLU 8, of the second product 8: 32 sbh bytes, and two
    one-byte masks of dropout.
    """
    shape = TransformerShape(
        **SMALL, qkv_bias=True, attention_out_bias=True, mlp_bias=True, positions="learned",
        max_positions=128, dropout=0.1,
    )  # fmt: skip
    layer = build_transformer(shape).blocks["layer"]
    values = saved_values(layer, micro_batch=2, sequence=32)
    masks = sum(op.saved_mask_bytes * 2 * 32 * 64 for op in layer.operators)

    assert 2 * sum(values.values()) + masks == 34 * 2 * 32 * 64


def test_a_gated_layer_keeps_gate_and_up() -> None:
    """SwiGLU's backward needs both of its inputs, the next product its output."""
    layer = load_model("llama-3.1-8b").blocks["layer"]
    values = saved_values(layer, micro_batch=1, sequence=8)

    assert values["mlp.up"] == 8 * 2 * 14336
    assert values["mlp.activation"] == 8 * 14336


def test_dropout_keeps_only_its_mask() -> None:
    """One byte for each value."""
    dropped = operator(load_model("gpt2"), "layer", "mlp.dropout")

    assert (dropped.saved, dropped.saved_mask_bytes) == ((), 1.0)


def test_the_decoder_of_t5_reads_the_encoder() -> None:
    """Its cross-attention needs the encoder's last output alongside the previous layer's."""
    graph = load_model("t5-small")

    reads = [instance.reads for instance in graph.instances if instance.path.startswith("decoder.")]
    assert {read[1] for read in reads[1:]} == {"encoder.final/final_norm"}
    assert [read[0].partition("/")[0] for read in reads[1:]] == [
        "decoder.embedding",
        *(f"decoder.layers.{i}" for i in range(5)),
    ]
    assert [tensor.name for tensor in graph.blocks["decoder_layer"].inputs] == ["hidden", "encoded"]


def test_parallel_branches_share_their_input() -> None:
    """GPT-J normalizes once and adds both branches."""
    layer = load_model("gpt-j-6b").blocks["layer"]
    reads = {op.path: op.inputs[0].tensor for op in layer.operators}

    assert reads["attention.qkv"] == reads["mlp.up"] == "input_norm"
    assert "mlp_norm" not in reads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "kv_heads: found 3, expected a number that divides heads (8)"),
        ({"heads": 7}, "hidden: found 64, expected a multiple of heads (7)"),
        ({"experts": 4, "top_k": 5}, "top_k: found 5, expected 1 to 4, the number of experts"),
        ({"layers": 0}, "layers: found 0, expected a whole number from 1 to 10000"),
        ({"dropout": 1.5}, "dropout: found 1.5, expected a probability below 1"),
        ({"norm": "batch"}, "norm: found 'batch', expected one of rms, layer"),
        ({"padded_vocab": 99}, "padded_vocab: found 99, expected at least vocab (100)"),
        ({"positions": "learned"}, "max_positions: found 0, expected the length of the learned"),
    ],
)
def test_an_impossible_shape_is_refused(change: dict[str, object], message: str) -> None:
    """Shapes also come from code, so they check themselves."""
    with pytest.raises(ModelError) as caught:
        TransformerShape(**{**SMALL, **change})  # type: ignore[arg-type]

    assert message in str(caught.value)
