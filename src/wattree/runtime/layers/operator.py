"""Integrates multi-rank operators with PyTorch: autograd and autocast.

One `torch.autograd.Function` runs an operator's forward and backward. `torch.compile` breaks the
graph there: a collective that is started in one line and awaited in another has a handle that is no
tensor, and ranks must not have their collectives reordered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from wattree.errors import CommunicationError
from wattree.runtime.group import Group

#: Tensors, the weight first; those that a layer does without are None.
Parameters = Sequence[Any]
#: Longest name that ranks tell each other.
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardCall:
    """Arguments of a backward pass.

    Attributes:
        delta: Gradient of the output.
        x: The input; None where the operator does not keep it.
        parameters: The weight first.
        made: What forward made for it.
        needs: Whether the gradients of input and parameters are wanted, one by one.
    """

    delta: Tensor
    x: Any
    parameters: Parameters
    made: Sequence[Tensor]
    needs: Sequence[bool]

    def own_gradients(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return those of weight and bias, of the rows of an input; None if not wanted."""
        return (
            torch.mm(self.delta.t(), x) if self.needs[1] else None,
            self.delta.sum(0) if self.needs[2] else None,
        )


class LayerOperator(ABC):
    """Forward and backward of a layer, without its parameters.

    Operators are immutable but for what ranks have agreed on; copies of a layer share theirs.

    Args:
        place: Of the layer, for messages.
        overlap: Whether communication goes on during local products.
        in_features: Last dim of the input on this rank.
    """

    #: Whether backward reads the input; otherwise it gets None for it.
    saves_input: bool = True
    #: Whether all ranks have the same number of rows.
    same_rows: ClassVar[bool] = True

    def __init__(
        self, *, group: Group, place: str, overlap: bool, in_features: int, facts: dict[str, Any]
    ) -> None:
        self.group, self.place, self.overlap = group, place, overlap
        self.in_features, self.facts = in_features, facts
        self._agreed: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def __deepcopy__(self, _: Any) -> LayerOperator:
        """Return itself."""
        return self

    @abstractmethod
    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return the output and the tensors saved for backward; none of these is an input."""

    @abstractmethod
    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return gradients of input and parameters; None for those that are not needed."""

    @property
    def at(self) -> str:
        """Return the origin of a message."""
        return f"rank {self.group.rank} of {self.group.size}, layer '{self.place}'"

    def check(self, x: Tensor, parameters: Parameters) -> None:
        """Reject inputs that do not fit the parameters."""
        weight = parameters[0] if parameters else x
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise CommunicationError(
                f"{self.at}: the input has shape {tuple(x.shape)}, but its last dim should be "
                f"{self.in_features} on this rank"
            )
        if x.device != weight.device or x.dtype != weight.dtype:
            raise CommunicationError(
                f"{self.at}: the input is {x.dtype} on {x.device}, the weight {weight.dtype} on "
                f"{weight.device}; move or convert one of them, or use autocast"
            )

    def agreed(self, x: Tensor, needs: Sequence[bool] = ()) -> list[dict[str, Any]]:
        """Return the description of a call by every rank, which they compare at the first call.

        Raises:
            CommunicationError: Ranks disagree, one does not answer, or the backend cannot carry
                such tensors.
        """
        key = (tuple(x.shape), x.dtype, x.device.type, *needs)
        found = self._agreed.get(key)
        if found is None:
            self.group.check_device(x.device, self.place)
            rows = "rows" if self.same_rows else "own_rows"
            facts = {
                **self.facts,
                "name": self.place[:_LONGEST_NAME],
                "dtype": str(x.dtype).removeprefix("torch."),
                "device": x.device.type,
                rows: list(x.shape[:-1]),
                "requires_grad of input and parameters": [int(need) for need in needs],
            }
            found = self._agreed[key] = self.group.compare(facts, self.place, x.device)
        return found


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the type that `nn.functional.linear` would take an input as; None for its own."""
    kind = x.device.type
    is_cast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if is_cast else None


@_disable_dynamo
def run(operator: LayerOperator, x: Tensor, *parameters: Tensor | None) -> Tensor:
    """Return the output of an operator, under autograd and autocast.

    Args:
        x: Its input, in the shape that the operator wants.
        parameters: The weight first.
    """
    if (dtype := autocast_dtype(x)) is not None:
        x = x.to(dtype)
        parameters = tuple(None if each is None else each.to(dtype) for each in parameters)
    operator.check(x, parameters)
    return _Eager.apply(operator, x, *parameters)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return `x weight^T + bias` of rows."""
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)


def transposed_into(buffer: Tensor, left: Tensor, right: Tensor) -> None:
    """Write the transpose of `left @ right` to a room, features first.

    Of few rows, CPU libraries take 12 to 16 % less for this product and a copy than for the
    product of the transposes, whose long side are its rows.
    """
    buffer.copy_(torch.mm(left, right).t())


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: LayerOperator, x: Tensor, *parameters: Tensor | None) -> Tensor:
        operator.agreed(x, ctx.needs_input_grad[1:])
        z, made = operator.forward(x, parameters)
        ctx.operator, ctx.count = operator, len(parameters)
        ctx.save_for_backward(x if operator.saves_input else None, *parameters, *made)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        x, *rest = ctx.saved_tensors
        parameters, made = rest[: ctx.count], rest[ctx.count :]
        call = BackwardCall(
            delta=delta, x=x, parameters=parameters, made=made, needs=ctx.needs_input_grad[1:]
        )
        return None, *ctx.operator.backward(call)
