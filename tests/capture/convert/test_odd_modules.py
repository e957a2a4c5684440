"""Whatever a module does with its weights and gradients, its graph does the work that it did."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("torch")

import torch

from tests.capture.convert.odd_modules import (
    COMPUTED_WEIGHTS,
    STOPPED_GRADIENTS,
    WIDTH,
    Odd,
    normed_by_spectrum,
)
from tests.capture.convert.recordings import parameters
from tests.capture.convert.sums import backward_flop
from wattree.capture import dense_forward_flop
from wattree.capture.convert import model_graph
from wattree.capture.convert.siblings import with_joined_projections
from wattree.capture.record import record
from wattree.capture.recording import Recording
from wattree.cost.memory_bound import BY_FUNCTION
from wattree.graph import ModelGraph, OperatorKind, TensorRole

MODULES = COMPUTED_WEIGHTS | STOPPED_GRADIENTS
#: The recording's own, and one at which what grows otherwise than it should is far off.
BATCHES = (2, 64)


def recorded(odd: Odd, name: str) -> Recording:
    """Return the recording of an odd module."""
    build, shape = odd
    return record(build, lambda batch, _: ((torch.zeros(batch, *shape),), {}), name=name)


@cache
def known(name: str) -> Recording:
    """Return the recording of one in the list."""
    return recorded(MODULES[name], name)


def flop(recording: Recording, batch: int, *quantities: str) -> float:
    """Return the sum of some kinds of FLOP of a recording, at a batch."""
    return sum(
        getattr(operator, quantity).value(micro_batch=batch, sequence=1)
        for operator in recording.operators
        for quantity in quantities
    )


def trained(graph: ModelGraph) -> set[str]:
    """Return the parameters that are updated, by their names in the module."""
    return {
        name if name.startswith(("a.", "b.", "c.")) else f"{instance.path}.{name}"
        for instance in graph.instances
        for operator in graph.blocks[instance.block].operators
        for name in (p.name for p in operator.parameters if p.trainable and p.tied_to is None)
    }


@pytest.mark.parametrize("normal", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_the_graph_has_the_work_that_was_recorded(name: str, *, normal: bool) -> None:
    """Forward and backward, at any batch, and each parameter once."""
    recording = known(name)
    graph = model_graph(recording, normal=normal)
    backward = ("input_gradient_flop", "weight_gradient_flop")

    assert graph.parameters == parameters(recording)
    for batch in BATCHES:
        forward = dense_forward_flop(graph, batch, 1)
        assert forward == pytest.approx(flop(recording, batch, "flop"), rel=1e-9)
        derived = backward_flop(graph, batch, 1)
        assert derived == pytest.approx(flop(recording, batch, *backward), rel=1e-9)


@pytest.mark.parametrize("batch", BATCHES)
def test_vectors_of_a_spectrum_have_gradients_that_are_products(batch: int) -> None:
    """PyTorch makes outer products element by element, which it counts as nothing."""
    recording = recorded((normed_by_spectrum, (WIDTH,)), "spectral norm")
    graph = model_graph(recording)
    counted = flop(recording, batch, "input_gradient_flop", "weight_gradient_flop")
    of_each_layer = 2 * WIDTH**2 + 2 * WIDTH  # of the matrix times a vector, of that times another

    assert dense_forward_flop(graph, batch, 1) == pytest.approx(flop(recording, batch, "flop"))
    assert backward_flop(graph, batch, 1) == pytest.approx(counted + 2 * of_each_layer)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_grad", {"b.weight", "b.bias"}),
        ("all under no_grad", set()),
        ("detached", {"b.weight", "b.bias"}),
        ("target without", {"b.weight", "b.bias"}),
        ("dead branch", {"c.weight", "c.bias"}),
        ("shared, first without", {"a.weight", "a.bias"}),
        ("teacher", {"a.weight", "a.bias"}),
        ("detached weight", {"a.bias", "b.weight", "b.bias"}),
        ("biases alone", {"a.bias", "b.bias"}),
        ("clamped in place", {"a.weight", "a.bias", "b.weight", "b.bias"}),
    ],
)
def test_what_has_no_gradient_is_not_updated(name: str, expected: set[str]) -> None:
    """It has no optimizer state either, and nothing of it is sent."""
    assert trained(model_graph(known(name))) == expected


def test_groups_that_are_samples_are_split_as_samples() -> None:
    """Replicas have as many groups as they have samples."""
    graph = model_graph(known("modulated"))
    (convolution,) = [
        operator
        for block in graph.blocks.values()
        for operator in block.operators
        if operator.kind is OperatorKind.CONVOLUTION
    ]

    assert convolution.dim("batch").extent.batch == 1
    assert not convolution.has_dim("group")
    assert all("batch" in operand.dims for operand in convolution.inputs)


def test_matmuls_of_one_tensor_for_each_of_several_parts_stay_apart() -> None:
    """Only the features of linear layers lie side by side in one matrix."""
    first, *others = model_graph(known("side by side")).blocks.values()
    matmuls = (block.operators[0] for block in (first, *others) if block.parameter_elements)
    columns = (
        replace(each, path=f"linear_{place}", role=TensorRole.COLUMN)
        for place, each in enumerate(matmuls)
    )
    block = replace(first, operators=tuple(columns))

    assert with_joined_projections(block) == block


class _Bessel(torch.nn.Module):
    """An operator that no list names, of which PyTorch says that it is pointwise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.i0e(self.linear(x))


def test_operators_that_pytorch_tags_as_pointwise_are_element_wise() -> None:
    """Their names need no list: what is not known of an operator costs its layers their dims."""
    graph = model_graph(recorded((_Bessel, (WIDTH,)), "bessel"))

    (operator,) = (o for o in graph.operators if o.function == "special_i0e")
    assert (operator.kind, graph.warnings) == (OperatorKind.ELEMENTWISE, ())


class _Spectrum(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what becomes of a spectrum over two dims, the first of them long."""
        return torch.fft.irfft(torch.fft.rfft2(self.linear(x)), n=WIDTH)


def test_a_transform_has_a_kernel_for_each_dim_and_two_for_a_long_one() -> None:
    """Its function says how many, by which its passes are tabled."""
    graph = model_graph(recorded((_Spectrum, (8192, WIDTH)), "spectrum"))
    found = [(o.function, o.kernels) for o in graph.operators if o.kind is OperatorKind.FFT]

    assert found == [("fft_r2c_3", 3), ("fft_c2r_1", 1)]
    assert BY_FUNCTION.keys() >= dict(found).keys()
