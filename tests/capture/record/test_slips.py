"""What users get wrong, and modules that run though PyTorch would not train them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn.attention.flex_attention import flex_attention

from tests.capture.record.case_modules import WIDTH, Case, linear, one, rows
from tests.capture.record.cases import CASES
from wattree.capture import capture_module
from wattree.capture.record import record
from wattree.capture.record.trees import tensors_in
from wattree.errors import ModelError


def refused(build: Callable[[], Any], inputs: Any = rows) -> str:
    """Return why a module is refused."""
    with pytest.raises(ModelError) as caught:
        capture_module(build, inputs=inputs)
    return str(caught.value)


@pytest.mark.parametrize(
    "inputs", [["float32[8, 8]"], lambda batch: torch.randn(8, WIDTH)], ids=["declared", "made"]
)
def test_inputs_that_do_not_grow_with_the_batch(inputs: Any) -> None:
    """Work for each sample would be work divided by nothing."""
    assert "none of its inputs grows with the batch (float32[8, 8] at 2" in refused(linear, inputs)


def test_one_input_that_grows_is_enough() -> None:
    """Others, such as tables and adjacencies, may be the same for all samples."""
    made = capture_module(
        one(lambda self, x, y: self.a(x) + y), inputs=["float32[batch, 8]", "float32[8]"]
    )

    assert [bool(t.extents[0].batch) for t in made.tensors if t.source == "input"] == [True, False]


def test_a_write_that_autograd_refuses() -> None:
    """Eager PyTorch refuses the same module, and names no operator."""
    (case,) = (case for case in CASES if case.what == "writing in place to what backward needs")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        case.build()(*case.inputs(2)).sum().backward()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.group == "Structure"], ids=lambda case: case.what
)
def test_what_is_recorded_can_be_trained(case: Case) -> None:
    """Every module of the table's group that writes in place, on real values."""
    torch.manual_seed(0)
    module = case.build()
    if not isinstance(module, nn.Module) or case.refusal:
        return
    made = module(*(case.inputs(2) if case.sequence is None else case.inputs(2, case.sequence)))

    sum(t.sum() for t in tensors_in(made) if t.requires_grad).backward()
    assert any(parameter.grad is not None for parameter in module.parameters())


class _Hidden(nn.Module):
    """Layers where PyTorch does not look."""

    def __init__(self, *, named: bool) -> None:
        super().__init__()
        self.a = linear()
        self.more: Any = {"b": linear()} if named else [linear()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the hidden layer makes."""
        return (self.more["b"] if isinstance(self.more, dict) else self.more[0])(self.a(x))


@pytest.mark.parametrize("named", [False, True])
def test_modules_in_a_plain_list(named: bool) -> None:  # noqa: FBT001
    """Not a device that the code asks for."""
    message = refused(lambda: _Hidden(named=named))

    assert f"the {'dict' if named else 'list'} 'more' holds modules" in message
    assert "nn.ModuleList" in message
    assert "asks for a device" not in message


class _Squared(torch.autograd.Function):
    """Computes with NumPy."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return squares."""
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(_ctx: Any, *grads: Any) -> Any:
        """Pass the gradient on."""
        return grads[0]


def test_numpy_is_called_by_its_name() -> None:
    """No operator is dispatched where `.numpy()` fails."""
    made = capture_module(one(lambda self, x: _Squared.apply(self.a(x))), inputs=rows)

    assert any("calls .numpy(), whose result depends on values" in told for told in made.warnings)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda batch: None, "returned None, expected a tensor, a tuple"),
        (lambda batch: torch.ones(batch, 8).tolist(), "returned a list, expected a tensor"),
        (lambda batch: torch.ones(batch, 8, device="cpu").numpy(), "returned a numpy.ndarray"),
        (lambda batch: [torch.ones(batch, 8)], "a list give one argument, a tuple gives several"),
    ],
)
def test_example_inputs_of_no_use(made: Any, found: str) -> None:
    """Said of the function, not of the layer that cannot take them."""
    assert found in refused(linear, made)


class _Loop(nn.Module):
    """A mixture of experts that calls them one by one."""

    def __init__(self, *, experts: int, top: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(linear() for _ in range(experts))
        self.top = top

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the experts' results, each added to its rows."""
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.gate(flat).softmax(-1).topk(self.top)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            out = out.index_add(0, row, expert(flat[row]) * weights[row, place, None])
        return out.view(x.shape)


class _Masked(_Loop):
    """The best one alone, by a mask, and only where it has rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the experts' results, each written to its rows."""
        best = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = best == number
            if mask.any():
                out[mask] = expert(x[mask])
        return out


@pytest.mark.parametrize("batch", [8, 1024])
@pytest.mark.parametrize(
    ("build", "experts", "top", "sequence"),
    [
        (_Loop, 4, 2, None),
        (_Loop, 8, 2, 16),
        (_Loop, 3, 1, 10),
        (_Masked, 4, 1, None),
        (_Masked, 6, 1, None),
    ],
)
def test_rows_of_a_router_are_spread_evenly(
    build: type[_Loop], experts: int, top: int, sequence: int | None, batch: int
) -> None:
    """The gate and `top` experts for every row, at any batch; no draw says that."""

    def inputs(count: int, length: int | None) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (torch.randn(*([count] if length is None else [count, length]), WIDTH),), {}

    made = record(
        lambda: build(experts=experts, top=top), inputs, name="mixture", sequence=sequence
    )
    at = {"micro_batch": batch, "sequence": sequence or 1}
    tokens = batch * (sequence or 1)

    assert sum(o.flop.value(**at) for o in made.operators) == pytest.approx(
        2 * tokens * WIDTH * (experts + top * WIDTH)
    )
    assert any(f"evenly over its {experts} entries" in told for told in made.warnings)


def test_conditions_on_values_are_taken_as_met() -> None:
    """They decide nothing but whether the module stops; compilers assume them, too."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x < 100.0)
        return Normal(0.0, 1.0).log_prob(self.a(x))

    before = Normal(0.0, 1.0)._validate_args

    made = capture_module(one(forward), inputs=["float32[batch, 8]"])

    assert made.how == "fake tensors"
    assert Normal(0.0, 1.0)._validate_args == before


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        (
            lambda self, x: torch.cond(x.sum() > 0, self.a, torch.sin, (x,)),
            "such as 'cond', .*an if",
        ),
        (
            lambda self, x: flex_attention(*(self.a(x)[:, None, None],) * 3),
            "FlexAttention.*; call F.scaled_dot_product_attention",
        ),
    ],
)
def test_operators_that_take_functions_are_refused_with_what_to_write(
    forward: Any, found: str
) -> None:
    """PyTorch's own messages name neither."""
    assert re.search(found, refused(one(forward)))


def test_a_loop_over_steps_is_not_run_at_every_length() -> None:
    """With more work at one step more, none of the other lengths does the same."""
    lengths = []

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        lengths.append(x.shape[1])
        return sum(self.a(x[:, step]) for step in range(x.shape[1]))  # type: ignore[return-value]

    record(one(forward), lambda *sizes: ((torch.randn(*sizes, 8),), {}), name="loop", sequence=8)

    assert lengths == [8, 4, 9, 8]  # the last with another batch


def test_work_that_follows_values_is_refused_as_that() -> None:
    """Where no top-k decides, nothing can be spread; a loop over samples is but one cause."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        for value in x[:, 0].tolist():
            y = y * value
        return y

    message = refused(one(forward))

    assert "does other work with a batch of 4 than with 2" in message
    assert "or it follows values that are drawn at random" in message
    assert "experts as one tensor with bmm" in message


def test_picks_among_words_are_no_routing() -> None:
    """A batch that gives every word a row could not be run; counts stay those of the draw."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.a(x))
        return scores if (scores.argmax(-1) == 5).any() else scores * 2

    made = capture_module(one(forward, head=lambda: nn.Linear(WIDTH, 5000)), inputs=rows)

    assert made.batch == 2
    assert any("those of one draw" in told for told in made.warnings)
    assert not any("spread evenly" in told for told in made.warnings)
