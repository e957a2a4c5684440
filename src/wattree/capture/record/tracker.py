"""Records dispatched operators, tensors, storages and the tensors that autograd saves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wattree.capture.record.dtypes import check_dtypes
from wattree.capture.record.flop import flop_of, gradient_flop_of
from wattree.capture.record.private import (
    DATA_DEPENDENT,
    current_node_sequence,
    fake_device,
    newest_sequence,
    storage_key,
)
from wattree.capture.record.routing import Routing, gradient_of_masked
from wattree.errors import ModelError


@dataclass(slots=True)
class RunTensor:
    """As `RecordedTensor`, with sizes of this run."""

    shape: tuple[int, ...]
    dtype: str
    storage: int
    storage_elements: int
    source: str = "operator"
    name: str = ""
    requires_grad: bool = False


@dataclass(slots=True)
class RunOperator:
    """As `RecordedOperator`, with sizes of this run."""

    target: str
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: dict[str, Any]
    flop: int = 0
    input_gradient_flop: int = 0
    weight_gradient_flop: int = 0
    saved: list[int] = field(default_factory=list)
    is_view: bool = False
    is_pointwise: bool = False
    in_place: bool = False
    region: int | None = None
    followed: bool = True


@dataclass(slots=True)
class TrackedRun:
    """Everything one run tells."""

    operators: list[RunOperator] = field(default_factory=list)
    tensors: list[RunTensor] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    loss: int | None = None
    modules: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    recomputed_flop: int = 0
    trained: bool = True  # something that it returned needs a gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingLimits:
    """When a run is given up.

    Attributes:
        seconds: Wall-clock time of one run. [s]
        storage_bytes: Of all tensors made in forward; only where they are real. [B]
    """

    seconds: float = 300.0
    operators: int = 1_000_000
    storage_bytes: float = float("inf")


@dataclass(slots=True, eq=False)
class Again:
    """A region that backward runs forward again.

    Attributes:
        operators: Those of the forward that were not met again yet, in order.
        node: Sequence number of the node whose backward asked for it.
    """

    operators: list[RunOperator]
    node: int | None

    def next_called(self, target: str) -> RunOperator | None:
        """Return the next operator of a name; None, passing by none, if there is no more."""
        for place, operator in enumerate(self.operators):
            if operator.target == target:
                del self.operators[: place + 1]
                return operator
        return None


class Tracker(TorchDispatchMode):
    """Numbers tensors and storages, and writes operators down."""

    def __init__(
        self, limits: RecordingLimits | None = None, routing: Routing | None = None
    ) -> None:
        super().__init__()
        self.run = TrackedRun()
        self.routing = routing  # only where tensors have values
        self.limits = limits or RecordingLimits()
        self.paths: list[str] = [""]
        self.forward = True
        self.region: int | None = None
        self.again: list[Again] = []
        self.failed: tuple[str, str] | None = None  # operator and module that raised
        self._numbers: dict[int, int] = {}  # id of a tensor object → index of its newest value
        self._storages: dict[int, int] = {}  # storage → its number
        self._newest: dict[int, int] = {}  # number of a storage → its newest value
        self._live: list[Any] = []  # so that no id is given twice
        self._by_sequence: dict[int, list[RunOperator]] = {}
        self._weights: set[int] = set()  # storages of parameters and of what is made of them alone
        self._weight_numbers: set[int] = set()  # the same by number
        self._constants: set[int] = set()  # storages of buffers and of what comes from no tensor
        self._saves: list[tuple[int, int]] = []  # sequence number and tensor
        self._makers: dict[int, RunOperator] = {}  # value → operator that autograd did not see
        self._bytes = 0
        self._end = time.monotonic() + self.limits.seconds

    def number(self, tensor: torch.Tensor, **known: Any) -> int:
        """Return the index of `tensor`, entering it if it is new."""
        if id(tensor) not in self._numbers:
            return self._enter(tensor, **known)
        index = self._numbers[id(tensor)]
        if index in self._makers and tensor.requires_grad and not tensor.is_leaf:
            self._follow(index)
        return index

    def save(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Record that autograd saves `tensor`, at its present version, for the current operator."""
        number = self._storages.get(storage_key(tensor))
        if number is not None:
            index = self._numbers.get(id(tensor), self._newest[number])
            self._saves.append((newest_sequence(), index))
        return tensor, tensor._version  # noqa: SLF001

    def saved(self, kept: tuple[torch.Tensor, int]) -> torch.Tensor:
        """Return the tensor that `save` saved, unless it was overwritten: autograd rejects that."""
        tensor, version = kept
        if tensor._version != version:  # noqa: SLF001
            raise ModelError(
                "a tensor that backward needs "
                f"({str(tensor.dtype).removeprefix('torch.')} of {list(tensor.shape)}) was "
                f"written to in place after it was kept{self._needed_by()}; PyTorch refuses it "
                "when it trains: use an operator that is not in place (y = y + 1 for y.add_(1))"
            )
        return tensor

    def _needed_by(self) -> str:
        node = current_node_sequence()
        found = [] if node is None else self._by_sequence.get(node, [])
        makers = [o for o in found if not o.is_view]
        if not makers:
            return ""
        return f", for the gradient of {makers[0].target}{_at(makers[0].module)}"

    def end_forward(self) -> None:
        """Start backward; assign each operator its saved tensors."""
        self.forward = False
        for sequence, index in self._saves:
            if found := self._by_sequence.get(sequence):
                makers = [operator for operator in found if not operator.is_view]
                (makers or found)[0].saved.append(index)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in {"prim", "profiler"}:
            device = fake_device(func, args)
            return func(*args, **kwargs) if device is None else device
        if time.monotonic() > self._end:
            raise ModelError(
                _ENDLESS.format(f"in {self.limits.seconds:.0f} s", _at(self.paths[-1]))
            )
        try:
            return (self._forward if self.forward else self._backward)(func, args, kwargs)
        except ModelError:
            raise
        except Exception:
            self.failed = self.failed or (str(func), self.paths[-1])
            raise

    def _forward(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        sequence = newest_sequence()
        given = list(_flat((args, kwargs.values())))
        inputs = tuple(self.number(t) for t in given)
        check_dtypes(func, given)
        out = func(*args, **kwargs)
        if self.routing is not None:
            self.routing.follow(func, given, out, self.paths[-1])
        in_place = func._schema.is_mutable  # noqa: SLF001
        before = {self.run.tensors[i].storage for i in inputs}
        outputs = tuple(self._enter(t) for t in _flat(out))
        operator = RunOperator(
            target=_name(func),
            module=self.paths[-1],
            inputs=inputs,
            outputs=outputs,
            arguments=_arguments(func, args, kwargs),
            flop=flop_of(func, args, kwargs, out),
            is_view=not in_place
            and bool(outputs)
            and all(self.run.tensors[i].storage in before for i in outputs),
            is_pointwise=torch.Tag.pointwise in func.tags,
            in_place=in_place,
            region=self.region,
            followed=torch.is_grad_enabled(),
        )
        self.run.operators.append(operator)
        if not operator.followed:
            self._makers |= dict.fromkeys(outputs, operator)
        if len(self.run.operators) > self.limits.operators:
            raise ModelError(
                _ENDLESS.format(f"in {self.limits.operators:,} operators", _at(self.paths[-1]))
            )
        self._by_sequence.setdefault(sequence, []).append(operator)
        self._follow_weights(given, out)
        return out

    def _backward(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        try:
            out = func(*args, **kwargs)
        except DATA_DEPENDENT:
            if (out := gradient_of_masked(func, args)) is None:
                raise
        node = current_node_sequence()
        again = self.again[-1] if self.again and self.again[-1].node == node else None
        if again is not None:
            self._repeat(func, again, out, args, kwargs)
            return out
        found = self._by_sequence.get(node, []) if node is not None else []
        operator = max(found, key=lambda o: o.flop, default=None)
        split = gradient_flop_of(func, args)
        if split is None:
            flop = flop_of(func, args, kwargs, out)
            if not flop:
                return out
            split = (0, flop) if self._is_of_weight(found, args) else (flop, 0)
        if operator is None and torch.is_grad_enabled():
            # A backward that runs a forward of its own, as reversible layers do.
            self.run.recomputed_flop += sum(split)
            return out
        operator = operator or self.run.operators[-1]
        operator.input_gradient_flop += split[0]
        operator.weight_gradient_flop += split[1]
        return out

    def _repeat(
        self, func: Any, again: Again, out: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """Count repeated forward work, and map its new nodes to the first ones."""
        self.run.recomputed_flop += flop_of(func, args, kwargs, out)
        operator = again.next_called(_name(func))
        if operator is not None:
            self._by_sequence.setdefault(newest_sequence(), []).append(operator)
        self._follow_weights(list(_flat((args, kwargs.values()))), out)

    def _is_of_weight(self, operators: list[RunOperator], args: Any) -> bool:
        """Return whether a matmul of backward computes the gradient of a weight.

        A weight's gradient is made of the output's gradient and the other operand; the other
        operand's is made of the output's gradient and the weight.
        """
        of_weights = [
            self._is_weight(i) for o in operators if o.flop for i in o.inputs if not o.is_view
        ]
        if not any(of_weights):
            return False
        reads = any(storage_key(t) in self._weights for t in _flat(args))
        return not reads or all(of_weights)

    def _follow(self, index: int) -> None:
        """Record that autograd follows a value and its operator, though it ran without gradients.

        So do functions with a backward of their own: of their forward only the result is followed.
        """
        left = [index]
        while left:
            operator = self._makers.pop(left.pop(), None)
            if operator is not None:
                operator.followed = True
                left += operator.inputs

    def _is_weight(self, index: int) -> bool:
        return self.run.tensors[index].storage in self._weight_numbers

    def _follow_weights(self, given: list[torch.Tensor], out: Any) -> None:
        """Note tensors that are made of parameters and constants alone: casts, fused weights."""
        keys = {storage_key(t) for t in given}
        is_weight = bool(keys & self._weights)
        is_fixed = keys <= self._weights | self._constants if is_weight else keys <= self._constants
        for tensor in _flat(out):
            key = storage_key(tensor)
            self._live.append(tensor)
            if not is_fixed:  # written in place, perhaps
                self._constants.discard(key)
                continue
            (self._weights if is_weight else self._constants).add(key)
            if is_weight and (number := self._storages.get(key)) is not None:
                self._weight_numbers.add(number)

    def _enter(self, tensor: torch.Tensor, **known: Any) -> int:
        """Enter a new value of `tensor` and return its index."""
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        is_new = key not in self._storages
        number = self._storages.setdefault(key, len(self._storages))
        self._live += [tensor, storage]
        self.run.tensors.append(
            RunTensor(
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                storage=number,
                storage_elements=storage.nbytes() // tensor.element_size(),
                requires_grad=tensor.requires_grad,
                **known,
            )
        )
        index = len(self.run.tensors) - 1
        self._numbers[id(tensor)] = index
        self._newest[number] = index
        if known.get("source") == "parameter":
            self._weights.add(key)
            self._weight_numbers.add(number)
        if known.get("source") == "buffer":
            self._constants.add(key)
        if is_new:
            self._grow(storage.nbytes())
        return index

    def _grow(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes > self.limits.storage_bytes:
            raise ModelError(
                f"its tensors take more than {self.limits.storage_bytes / 2**30:.0f} GiB, too much "
                f"to run it on real values{_at(self.paths[-1])}; give smaller example inputs"
            )


_ENDLESS = (
    "the module did not end {}{}; look for a loop without an end, or one over samples or steps "
    "that should be one operator"
)


def _at(path: str) -> str:
    return f", in module '{path}'" if path else ""


def _name(func: Any) -> str:
    return str(func).removesuffix(".default") if func.namespace == "wattree" else str(func)


def _flat(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among an operator's arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | type({}.values())):
        for item in value:
            yield from _flat(item)


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of the schema, tensors as their place among the inputs."""
    count = -1

    def plain(value: Any) -> Any:
        nonlocal count
        if isinstance(value, torch.Tensor):
            count += 1
            return {"tensor": count}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return str(value)

    names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001
    found = {name: plain(value) for name, value in zip(names, args, strict=False)}
    return found | {name: plain(value) for name, value in kwargs.items()}
