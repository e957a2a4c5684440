"""Blocks follow the module tree, operators say what they are, and known roles are found."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.capture.convert.recordings import module, small_model
from tests.compiler.jobs import Job
from wattree.capture import capture_module
from wattree.capture.convert import model_graph
from wattree.capture.record import record
from wattree.errors import StrategyError
from wattree.graph import DimRole, ModelGraph, Operator, OperatorKind, TensorRole
from wattree.strategy import StrategyOptions


def operators(graph: ModelGraph) -> list[Operator]:
    """Return the operators of all blocks, each once."""
    return [operator for block in graph.blocks.values() for operator in block.operators]


def graph_of(build: Any, *shape: int, normal: bool = True) -> ModelGraph:
    """Return the graph of a module that takes one tensor of floats, batch first."""
    recording = record(
        build, lambda batch, _: ((torch.zeros(batch, *shape),), {}), name="module under test"
    )
    return model_graph(recording, normal=normal)


def test_a_resnet_has_an_instance_for_each_bottleneck(known_models: Path) -> None:
    """Pipeline stages and recomputation go by layers, so that repeated modules must be found."""
    graph = model_graph(module(known_models, "resnet50"))
    layers = [instance for instance in graph.instances if instance.is_layer]

    assert [layer.path for layer in layers] == [f"body.{index}" for index in range(16)]
    assert layers[1].block == layers[2].block != layers[3].block
    assert [(instance.path, instance.is_layer) for instance in graph.instances[::17]] == [
        ("stem.0", False),
        ("head", False),
    ]


def test_a_convolution_says_what_it_slides_over(known_models: Path) -> None:
    """Costs go by window, channels and positions; halo exchanges by the names of positions."""
    graph = model_graph(module(known_models, "resnet50"))
    stem = graph.blocks["stem.0"].operators[0]
    extents = {dim.name: dim.extent.coefficient for dim in stem.dims}

    assert stem.kind is OperatorKind.CONVOLUTION
    assert extents == {"batch": 1, "out": 64, "height": 112, "width": 112, "in": 3, "taps": 49}
    assert stem.dim("taps").role is DimRole.OPAQUE
    assert stem.parameters[0].dims == ("out", "in", "taps")
    assert stem.inputs[0].fraction == 4.0  # stride 2 both ways
    assert stem.window is not None
    assert (stem.window.kernel, stem.window.stride) == ((7, 7), (2, 2))


def test_tables_of_a_tied_head_are_counted_once(known_models: Path) -> None:
    """The head computes with the table; the embedding stores it."""
    graph = model_graph(module(known_models, "gpt_tied"))
    ties = [p.tied_to for o in operators(graph) for p in o.parameters if p.tied_to]

    assert ties == ["model/tok.weight"]


@pytest.mark.parametrize(
    ("name", "columns", "rows"),
    [
        (
            "llama",
            ["self_attn.q_proj+k_proj+v_proj", "mlp.gate_proj+up_proj"],
            ["self_attn.o_proj", "mlp.down_proj"],
        ),
        (
            "bert",
            ["attention.self.query+key+value", "intermediate.dense"],
            ["attention.output.dense", "output.dense"],
        ),
        ("gpt2", ["attn.c_attn", "mlp.c_fc"], ["attn.c_proj", "mlp.c_proj"]),
        (
            "vit",
            ["attention.q_proj+k_proj+v_proj", "mlp.fc1"],
            ["attention.o_proj", "mlp.fc2"],
        ),
    ],
)
def test_column_and_row_pairs_are_found(name: str, columns: list[str], rows: list[str]) -> None:
    """Whatever its modules are called: the strands of heads and of the feed-forward part."""
    pytest.importorskip("transformers")
    graph = model_graph(small_model(name))
    layer = next(i.block for i in graph.instances if i.is_layer)
    block = graph.blocks[layer]
    found = {
        role: [o.path for o in block.operators if o.role is role]
        for role in (TensorRole.COLUMN, TensorRole.ROW)
    }
    attention = next(o for o in block.operators if o.kind is OperatorKind.ATTENTION)

    assert found == {TensorRole.COLUMN: columns, TensorRole.ROW: rows}
    assert attention.dim("heads").role is DimRole.SPLITTABLE
    assert any(o.role is TensorRole.POSITIONWISE for o in block.operators)


class Grouped(torch.nn.Module):
    """Attention of 8 heads over 2 of keys and values, whose projections are one."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.parts = how, [8, 2, 2]
        self.qkv, self.out = torch.nn.Linear(64, 96), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        y = self.qkv(x)
        if self.how == "by feature":  # queries, then keys, then values
            heads = [part.unflatten(-1, (-1, 8)) for part in y.split([64, 16, 16], -1)]
        elif self.how == "by head":
            heads = list(y.unflatten(-1, (12, 8)).split(self.parts, 2))
        else:  # queries, keys and values of each group side by side
            heads = list(y.unflatten(-1, (2, 6, 8)).split([4, 1, 1], 3))
            heads = [part.flatten(2, 3) for part in heads]
        q, k, v = (part.transpose(1, 2) for part in heads)
        if self.how == "by head":
            k, v = k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)
        z = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.how != "by head"
        )
        return x + self.out(z.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("how", ["by feature", "by head", "by group"])
def test_unequal_parts_of_one_projection_are_split_by_groups_of_heads(how: str) -> None:
    """Each rank has whole heads of keys and values with the queries that read them."""
    recording = capture_module(
        lambda: torch.nn.Sequential(Grouped(how), Grouped(how)),
        inputs=["float32[batch, seq, 64]"],
        sequence=32,
    )
    graph = model_graph(recording)
    block = graph.blocks[graph.instances[1].block]
    first = next(o for o in block.operators if o.role is TensorRole.COLUMN)
    last = next(o for o in block.operators if o.role is TensorRole.ROW)
    job = Job.of(graph, StrategyOptions(tp=2, micro_batch=16), sequence=32)
    moved = [(each.phase, each.kind) for each in job.collectives(block.name)]

    assert (first.dim("out").extent.coefficient, last.dim("in").extent.coefficient) == (2, 2)
    assert sum(parameter.elements for parameter in first.parameters) == 65 * 96
    assert moved == [("forward", "all_reduce"), ("backward", "all_reduce")]
    with pytest.raises(StrategyError, match="2 units of 'out' do not divide over axis 'tp'"):
        Job.of(graph, StrategyOptions(tp=4), sequence=32).compiled()


def test_a_large_vocabulary_is_split_at_both_ends() -> None:
    """Token table and logits; 2,000 rows are asked as the 2,048 that they are padded to."""
    pytest.importorskip("transformers")
    graph = model_graph(small_model("llama"))
    split = [o for o in operators(graph) if o.role is TensorRole.VOCABULARY]
    table, logits = split

    assert (table.kind, logits.kind) == (OperatorKind.EMBEDDING, OperatorKind.MATMUL)
    assert table.dim("vocab").units == logits.dim("out").units == 2048


def test_norms_rotations_and_gates_by_hand_become_one_operator_each() -> None:
    """As the catalog has them; kernel by kernel they are the same launches."""
    pytest.importorskip("transformers")
    recording = small_model("llama")
    normal, plain = (model_graph(recording, normal=normal) for normal in (True, False))

    def functions(graph: ModelGraph) -> list[str]:
        return [o.function for o in graph.blocks["LlamaDecoderLayer"].operators if o.kernels]

    assert functions(normal) == [
        *("rms_norm", "linear", "rotary", "rotary"),
        *("scaled_dot_product_attention", "linear", "add"),
        *("rms_norm", "linear", "silu_gate", "linear", "add"),
    ]
    # Three projections and two became one each, which saves three launches.
    launches = [
        sum(o.kernels for o in graph.blocks["LlamaDecoderLayer"].operators)
        for graph in (plain, normal)
    ]
    assert launches[0] - launches[1] == 3


class Written(torch.nn.Module):
    """A product between two functions that are written out, in the width of its weights."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
        self.scale = torch.nn.Parameter(torch.ones(256))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the second layer makes of the function's result."""
        made: torch.Tensor = self.down(self.function(self.up(x), self.scale))
        return made


def _gelu(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0))))


def _gemma_norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normed * (1.0 + scale.float())).type_as(x)


def _olmo_norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (scale * normed).to(x.dtype)


def _parts(x: torch.Tensor, _: torch.Tensor, room: Any = torch.empty_like) -> torch.Tensor:
    made: torch.Tensor = room(x)
    made[..., :64] = x[..., 64:128]
    made[..., 64:] = x[..., 64:].sigmoid()
    return made


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (_gelu, ["gelu_new"]),
        (lambda x, scale: _gelu(x, scale) * (x + 1), ["add", "gelu_new_gate"]),
        (lambda x, scale: _gelu(x, scale).pow(2), ["gelu_new", "pow"]),
        # Not those: the sum is of something else, and the powers are read once more.
        (
            lambda x, _: 0.5 * x * (1.0 + torch.tanh(x.exp() + x.pow(3) * 0.1)),
            ["mul", "exp", "pow", "mul", "add", "tanh", "add", "mul"],
        ),
        # Nor with a parameter in place of a constant, or a square in place of a half.
        (
            lambda x, scale: 0.5 * x * (torch.tanh(x + 0.1 * x.pow(3)) + scale),
            ["mul", "pow", "mul", "add", "tanh", "add", "mul"],
        ),
        (
            lambda x, scale: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + x.pow(3) * scale))),
            ["mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"],
        ),
        (
            lambda x, _: x * x * (1.0 + torch.tanh(0.8 * (x + 0.1 * x.pow(3)))),
            ["mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"],
        ),
        (_gemma_norm, ["rms_norm_fp32"]),
        (_olmo_norm, ["rms_norm_fp32"]),
    ],
)
def test_what_activations_and_norms_write_out_is_one_operator(function: Any, found: Any) -> None:
    """GPT-2's GELU, alone or as a gate, and norms that are scaled in fp32."""
    build = lambda: Written(function).to(torch.bfloat16)  # noqa: E731
    recording = record(
        build,
        lambda batch, _: ((torch.zeros(batch, 8, 64, dtype=torch.bfloat16),), {}),
        name="module under test",
    )

    made = [o.function for o in operators(model_graph(recording)) if o.kernels]

    assert made == ["linear", *found, "linear"]


@pytest.mark.parametrize("room", [lambda x: x.new_empty(x.shape), torch.zeros_like])
def test_a_tensor_that_is_written_in_parts_hands_gradients_on(room: Any) -> None:
    """Room is no input: who fills it has a gradient, and what is in it is kept.

    PyTorch hands out what `zeros_like` and `empty_like` make detached.
    """
    graph = graph_of(lambda: Written(partial(_parts, room=room)), 8, 64)
    found = operators(graph)
    made, last = next(o for o in found if o.function in {"room", "fill"}), found[-1]

    assert made.kernels == (room is torch.zeros_like)
    assert last.inputs[0].tensor in last.saved
    assert {each.name for o in found for each in o.parameters if not each.trainable} == {"scale"}
    assert not any(
        name.startswith("given") for block in graph.blocks.values() for name in block.given
    )


def test_recurrent_layers_are_products_in_turn() -> None:
    """One over all steps, one step by step, and gates; of each layer a block of its own."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.LSTM(16, 32, num_layers=2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rnn(x)[0]

    graph = graph_of(Net, 10, 16)
    for instance in graph.instances:
        operators = graph.blocks[instance.block].operators
        (recurrent,) = [o for o in operators if o.in_turn is not None]
        (input_product,) = [
            o for o in operators if o.kind is OperatorKind.MATMUL and o is not recurrent
        ]

        assert recurrent.kind is OperatorKind.MATMUL
        assert recurrent.dim(str(recurrent.in_turn)).extent.coefficient == 10
        assert operators.index(input_product) < operators.index(recurrent)
    assert [i.path for i in graph.instances] == ["rnn", "rnn@2"]


def test_checkpointed_regions_are_named(known_models: Path) -> None:
    """Their operators run again in backward, as the presets learn by patterns."""
    graph = model_graph(module(known_models, "checkpointed"))

    assert graph.checkpointed == ("blocks.*",)


def test_unread_parameters_are_counted_and_never_trained(known_models: Path) -> None:
    """A layer for an input that is not given takes memory all the same."""
    graph = model_graph(module(known_models, "dict_inputs"))
    unread = [p for o in operators(graph) for p in o.parameters if not p.trainable]

    assert sorted(p.name.rpartition(".")[2] for p in unread) == ["bias", "weight"]


def test_unknown_operators_are_named_and_cost_their_bytes() -> None:
    """Never nothing: what is not understood moves its operands once."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 9)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = self.layer(x).view(-1, 3, 3), x.view(-1, 3, 2)
            return torch.linalg.solve_triangular(left, right, upper=True)

    graph = graph_of(Net, 6)
    other = next(o for o in operators(graph) if o.kind is OperatorKind.OTHER)

    assert any("aten.linalg_solve_triangular.default" in warning for warning in graph.warnings)
    assert other.kernels == 1
    assert "batch" in other.outputs[0].dims
    assert other.outputs[0].fraction == 1.0
    assert [dim.extent.coefficient for dim in other.dims if dim.name != "batch"] == [
        *(3, 2, 3, 3, 3, 2)
    ]


class _Sampled(torch.nn.Module):
    """Samples its own input at places that it computes, as deformable attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = torch.nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return channels of `x` between its pixels."""
        grid = self.grid(x).permute(0, 2, 3, 1)
        x = torch.nn.functional.grid_sample(x, grid, align_corners=False)
        return x * torch.ops.aten._is_all_true(x > 0)


def test_samples_between_pixels_keep_batch_and_channels() -> None:
    """And are written for each place of the grid; no operator is unknown."""
    graph = graph_of(_Sampled, 8, 4, 6)

    (sampler,) = (op for op in operators(graph) if op.function == "grid_sampler")
    batch, channels, *_ = sampler.inputs[0].dims
    assert graph.warnings == ()
    assert sampler.outputs[0].dims[:2] == (batch, channels)
    assert set(sampler.outputs[0].dims[2:]) < set(sampler.inputs[1].dims)


def test_the_batch_survives_what_cannot_be_followed() -> None:
    """Rolls, windows, padding and odd reshapes: samples stay independent all the way."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.roll(self.first(x), 1, dims=1)
            y = torch.nn.functional.pad(y, (0, 0, 1, 1))
            return self.last(y.reshape(y.shape[0], 9, 4).flip(1))

    graph = graph_of(Net, 4, 6)

    assert all(output.dims[0] == "batch" for o in operators(graph) for output in o.outputs)
    assert not graph.warnings
