"""What targets of adapters are called: as modules are, in captured models as in the catalog's."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from wattree.capture import load_model
from wattree.capture.adapters import with_lora
from wattree.capture.convert import model_graph
from wattree.capture.linear_layers import layer_targets
from wattree.capture.record import record
from wattree.errors import ModelError
from wattree.graph import ModelGraph

WIDTH, RANK = 32, 4
PAIR = 2 * WIDTH * RANK


class Attention(nn.Module):
    """Three projections of one tensor, and one back."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out = (nn.Linear(WIDTH, WIDTH) for _ in "qkvo")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over the second dim."""
        q, k, v = (
            project(x).unflatten(2, (4, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(seen.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention, as a part of something."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm, then attention."""
        return self.attention(self.norm(x))


@cache
def graph(*, normal: bool = False) -> ModelGraph:
    """Return two layers and a head; with `normal`, q, k and v are one product."""

    def build() -> nn.Module:
        body = nn.ModuleDict({"layers": nn.Sequential(Layer(), Layer())})
        return nn.Sequential(body["layers"], nn.Linear(WIDTH, 2 * WIDTH))

    found = record(build, lambda batch, _: ((torch.zeros(batch, 8, WIDTH),), {}), name="two layers")
    return model_graph(found, normal=normal)


@pytest.mark.parametrize(
    ("target", "trained"),
    [
        ("0.1.attention.q_proj", PAIR),  # a module of one layer
        ("0.*.attention.q_proj", 2 * PAIR),
        ("attention.q_proj", 2 * PAIR),
        ("q_proj", 2 * PAIR),  # as the adapters' own library takes it
        ("1", RANK * 3 * WIDTH),  # a layer that is a block of its own
    ],
)
def test_a_target_is_what_the_module_is_called(target: str, trained: int) -> None:
    """`r (in + out)` for each module that it names."""
    found = with_lora(graph(), rank=RANK, targets=[target])

    assert (found.trainable_parameters, found.warnings) == (trained, graph().warnings)


@pytest.mark.parametrize("normal", [False, True])
def test_the_usual_targets_are_the_projections_around_attention(*, normal: bool) -> None:
    """Also where modules have names of their own."""
    given = graph(normal=normal)
    before, after = (layer_targets(given, [t]) for t in ("attention.qkv", "attention.out"))

    joined = "attention.q_proj+k_proj+v_proj"
    names = [joined] if normal else [f"attention.{each}_proj" for each in "qkv"]
    assert (list(before), list(after)) == (names, ["attention.out"])


def test_a_module_that_copies_and_adds_is_called_what_it_is() -> None:
    """The output of attention in Stable Diffusion 3 is a part of a tensor, so its bias is apart."""
    found = with_lora(load_model("stable-diffusion-3-medium"), rank=RANK, targets=["to_out.0"])

    assert found.trainable_parameters == 24 * RANK * (1536 + 1536)


def test_layers_that_differ_in_their_targets_become_blocks_of_their_own() -> None:
    """The others go on as they were."""
    found = with_lora(load_model("gpt2"), rank=RANK, targets=["layers.3.attention.qkv"])
    blocks = [instance.block for instance in found.instances if instance.is_layer]

    assert blocks == ["layer"] * 3 + ["adapted_layer"] + ["layer"] * 8
    assert found.trainable_parameters == RANK * (768 + 3 * 768)


@pytest.mark.parametrize(
    ("targets", "pairs"), [(["q_proj", "v_proj"], 2), (["*_proj"], 3), (["k_proj"], 1)]
)
def test_modules_that_run_as_one_product_have_a_pair_each(targets: list[str], pairs: int) -> None:
    """Or one for all where the software has one module, which is reported if it is wider."""
    found, joint = (
        with_lora(graph(normal=True), rank=RANK, targets=targets, joint=joint)
        for joint in (False, True)
    )
    warnings = [line for line in joint.warnings if line.startswith("lora.targets: ")]

    assert found.trainable_parameters == 2 * pairs * PAIR
    assert joint.trainable_parameters == 2 * RANK * (WIDTH + 3 * WIDTH)
    assert bool(warnings) is (pairs < 3)


@pytest.mark.parametrize(
    ("target", "guess"),
    [("q_prj", "q_proj"), ("0.1.atention.q_proj", "0.1.attention.q_proj")],
)
def test_a_wrong_name_gets_that_of_a_module(target: str, guess: str) -> None:
    """In the form that was tried."""
    with pytest.raises(ModelError) as caught:
        with_lora(graph(), rank=RANK, targets=[target])

    assert str(caught.value) == (
        f"two layers: lora.targets: '{target}' matches no projection; did you mean '{guess}'?"
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [({}, ["in_proj", "out_proj"]), ({"kdim": 16}, ["q_proj", "k_proj", "v_proj", "out_proj"])],
)
def test_projections_of_multihead_attention_are_called_what_they_are(
    sizes: dict[str, int], expected: list[str]
) -> None:
    """It has weights, and calls functions on them, where others have modules."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True, **sizes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            keys = x[..., : sizes["kdim"]] if sizes else x
            return self.attention(x, keys, x)[0]

    found = model_graph(
        record(Net, lambda batch, _: ((torch.zeros(batch, 8, WIDTH),), {}), name="attention")
    )
    products = [
        operator.path.rpartition(".")[2]
        for block in found.blocks.values()
        for operator in block.operators
        if any(parameter.name.endswith("weight") for parameter in operator.parameters)
    ]

    assert products == expected
