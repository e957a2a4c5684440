"""Layers of one rank are plain linear layers, and what needs no peer is checked without one."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from wattree.errors import MissingExtraError, StrategyError
from wattree.runtime import (
    ColumnParallelLinear,
    GatherRowsLinear,
    LowRankLinear,
    PhantomLinear,
    RowParallelLinear,
)
from wattree.runtime.regions import crossed

KINDS = {
    "phantom": (PhantomLinear, {"ghosts": 3}),
    "shared": (PhantomLinear, {"ghosts": 3, "variant": "shared", "regather": True}),
    "block-diagonal": (PhantomLinear, {"ghosts": 0}),
    "low rank": (LowRankLinear, {"ghosts": 3}),
    "rows": (GatherRowsLinear, {}),
    "column": (ColumnParallelLinear, {}),
    "row": (RowParallelLinear, {"sequence_parallel": True}),
}


@pytest.mark.parametrize("name", KINDS)
def test_one_rank_is_a_linear_layer_bit_for_bit(name: str) -> None:
    """Initial weights, output and every gradient: one rank adds nothing."""
    kind, as_dict = KINDS[name]
    torch.manual_seed(4)
    layer = kind(12, 7, **as_dict)
    torch.manual_seed(4)
    plain = torch.nn.Linear(12, 7)
    found, wanted = [], []
    if name == "row":  # whose bias begins as zeros
        plain.bias.data.zero_()
    for module, into in ((layer, found), (plain, wanted)):
        x = torch.linspace(-1, 1, 60).view(5, 12).requires_grad_()
        y = module(x)
        y.sin().sum().backward()
        into += [y, x.grad, *[each for p in module.parameters() for each in (p.detach(), p.grad)]]

    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert torch.equal(layer.dense_weight(), plain.weight)
    assert torch.equal(layer.dense_bias(), plain.bias)


def test_gathering_again_where_nothing_is_gathered_is_refused() -> None:
    """Silently ignored, a user measures memory that it does not save."""
    for kind, parallel in ((ColumnParallelLinear, False), (RowParallelLinear, True)):
        with pytest.raises(StrategyError, match="regather"):
            kind(12, 7, sequence_parallel=parallel, regather=True)


@pytest.mark.parametrize("name", KINDS)
def test_gradcheck_of_one_rank(name: str) -> None:
    """The gradients are those of the function."""
    kind, as_dict = KINDS[name]
    layer = kind(6, 4, dtype=torch.float64, **as_dict)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    names = [key for key, _ in layer.named_parameters()]

    def call(x: Any, *values: Any) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *layer.parameters()))


def test_layers_of_one_rank_have_no_parameters_without_gradient() -> None:
    """Data parallelism waits for every parameter's gradient."""
    assert [name for name, _ in PhantomLinear(8, 8, ghosts=2).named_parameters()] == [
        "weight",
        "bias",
    ]


def test_copies_and_meta_devices() -> None:
    """A model is copied, or made without memory first, like any other."""
    layer = PhantomLinear(8, 8, ghosts=2, device="meta")
    real = copy.deepcopy(layer).to_empty(device="cpu")
    real.reset_parameters()

    assert layer.weight.is_meta
    assert float(real.weight.detach().abs().max()) <= 8**-0.5


def test_every_wrong_choice_is_named() -> None:
    """All problems of widths and ghosts are reported at once."""
    with pytest.raises(StrategyError) as caught:
        PhantomLinear(8, 8, ghosts=9, variant="both", name="mlp.up")

    assert str(caught.value) == (
        "strategy rejected, 2 problem(s):\n"
        "  at mlp.up.ghosts: 9 ghosts of shards as small as 8 (8 over 1 ranks); use 0 to 8\n"
        "  at mlp.up.variant: 'both' is none of pair, shared"
    )


def test_the_package_loads_no_torch_and_names_the_extra_without_it() -> None:
    """Planning works without torch; a layer asks for it by its extra."""
    program = (
        "import sys, wattree.runtime as runtime\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "runtime.PhantomLinear\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (
        f"{MissingExtraError.__name__}: wattree.runtime.PhantomLinear needs the package 'torch'"
        in run.stderr
    )


def test_second_derivatives_at_borders_between_ranks_are_rejected() -> None:
    """A collective has none that autograd could know: it would be silently wrong."""
    x = torch.ones(3, requires_grad=True)
    y = crossed(x, lambda given: given * 2, lambda gradient: gradient * 2)
    (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)

    assert torch.equal(gradient.detach(), torch.full((3,), 8.0))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
