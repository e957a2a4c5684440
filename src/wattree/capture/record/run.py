"""One run of a module: every dispatched operator, what autograd keeps, and what backward does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from wattree.capture.record.flop import flop_of

__all__ = ["Run", "RunOperator", "RunTensor", "run_module"]


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
    sequence: int
    flop: int = 0
    input_gradient_flop: int = 0
    weight_gradient_flop: int = 0
    saved: list[int] = field(default_factory=list)
    is_view: bool = False
    in_place: bool = False
    region: int | None = None


@dataclass(slots=True)
class Run:
    """Everything one run tells."""

    operators: list[RunOperator] = field(default_factory=list)
    tensors: list[RunTensor] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    loss: int | None = None
    modules: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    recomputed_flop: int = 0


class _Tracker(TorchDispatchMode):
    """Numbers tensors and storages, and writes operators down."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.paths: list[str] = [""]
        self.forward = True
        self.numbers: dict[int, int] = {}  # id of a tensor object → index of its newest value
        self.storages: dict[int, int] = {}  # storage → its number
        self.newest: dict[int, int] = {}  # number of a storage → its newest value
        self.alive: list[Any] = []  # so that no id is given twice
        self.by_sequence: dict[int, RunOperator] = {}
        self.parameter_storages: set[int] = set()

    def number(self, tensor: torch.Tensor, **known: Any) -> int:
        """Return the index of `tensor`, entering it if it is new."""
        if id(tensor) in self.numbers:
            return self.numbers[id(tensor)]
        return self.enter(tensor, **known)

    def enter(self, tensor: torch.Tensor, **known: Any) -> int:
        """Enter a new value of `tensor` and return its index."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        number = self.storages.setdefault(key, len(self.storages))
        self.alive += [tensor, storage]
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
        self.numbers[id(tensor)] = index
        self.newest[number] = index
        return index

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        sequence = torch.autograd._get_sequence_nr() - 1
        if not self.forward:
            out = func(*args, **kwargs)
            self._backward(func, args, kwargs, out)
            return out
        inputs = [self.number(t) for t in tree_flatten((args, kwargs))[0] if _is_tensor(t)]
        out = func(*args, **kwargs)
        written = [t for t in tree_flatten(out)[0] if _is_tensor(t)]
        in_place = func._schema.is_mutable
        before = {self.run.tensors[i].storage for i in inputs}
        outputs = tuple(self.enter(t) for t in written)
        operator = RunOperator(
            target=str(func),
            module=self.paths[-1],
            inputs=tuple(inputs),
            outputs=outputs,
            arguments=_arguments(func, args, kwargs),
            sequence=sequence,
            flop=flop_of(func, args, kwargs, out),
            is_view=not in_place
            and bool(outputs)
            and all(self.run.tensors[i].storage in before for i in outputs),
            in_place=in_place,
        )
        self.run.operators.append(operator)
        self.by_sequence.setdefault(sequence, operator)
        return out

    def _backward(self, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
        flop = flop_of(func, args, kwargs, out)
        if not flop:
            return
        node = torch._C._current_autograd_node()
        operator = self.by_sequence.get(node._sequence_nr()) if node is not None else None
        if operator is None:
            self.run.recomputed_flop += flop
        else:
            operator.input_gradient_flop += flop

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that autograd keeps `tensor` for the operator at hand."""
        operator = self.by_sequence.get(torch.autograd._get_sequence_nr() - 1)
        key = tensor.untyped_storage()._cdata
        number = self.storages.get(key)
        pending = (torch.autograd._get_sequence_nr() - 1, number)
        if number is not None:
            if operator is not None:
                operator.saved.append(self.newest[number])
            else:
                self.pending.append((pending[0], self.newest[number]))
        return tensor

    pending: list[tuple[int, int]] = []


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of the schema, tensors as their place among the inputs."""
    count = -1

    def plain(value: Any) -> Any:
        nonlocal count
        if _is_tensor(value):
            count += 1
            return {"tensor": count}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return str(value)

    names = [argument.name for argument in func._schema.arguments]
    found = {name: plain(value) for name, value in zip(names, args, strict=False)}
    return found | {name: plain(value) for name, value in kwargs.items()}


@contextmanager
def _paths(module: nn.Module, tracker: _Tracker) -> Iterator[None]:
    """Keep `tracker.paths` at the module that runs."""
    handles = []

    def enter(path: str) -> Any:
        def hook(*_: Any) -> None:
            tracker.paths.append(path)

        return hook

    def leave(*_: Any) -> None:
        tracker.paths.pop()

    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(enter(path)))
        handles.append(child.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_module(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run:
    """Run `module` forward and backward on the given (fake) arguments and return what happened.

    Backward starts from the output if it is a scalar, else from the sum of all floating-point
    outputs.
    """
    run = Run(modules={path: type(m).__name__ for path, m in module.named_modules()})
    tracker = _Tracker(run)
    tracker.pending = []
    named: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in named:
            run.tied[name] = named[id(parameter)]
            continue
        named[id(parameter)] = name
        tracker.number(parameter, source="parameter", name=name)
    for name, buffer in module.named_buffers():
        tracker.number(buffer, source="buffer", name=name)
    for position, value in enumerate(tree_flatten((args, dict(kwargs)))[0]):
        if _is_tensor(value):
            tracker.number(value, source="input", name=f"input {position}")
    with tracker, _paths(module, tracker):
        with torch.autograd.graph.saved_tensors_hooks(tracker.save, lambda tensor: tensor):
            out = module(*args, **kwargs)
        run.outputs = tuple(tracker.number(t) for t in tree_flatten(out)[0] if _is_tensor(t))
        tracker.forward = False
        for sequence, index in tracker.pending:
            if (operator := tracker.by_sequence.get(sequence)) is not None:
                operator.saved.append(index)
        floating = [
            t
            for t in tree_flatten(out)[0]
            if _is_tensor(t) and t.requires_grad and (t.is_floating_point() or t.is_complex())
        ]
        if len(floating) == 1 and floating[0].ndim == 0:
            run.loss = tracker.number(floating[0])
        total: Any = sum(t.abs().sum() if t.is_complex() else t.sum() for t in floating)
        if floating:
            total.backward()
    return run
