"""One run of a module, forward and backward, under a tracker."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from wattree.capture.record.fused import fused_operators
from wattree.capture.record.private import (
    conditions_hold,
    current_node_sequence,
    watching_checkpoints,
)
from wattree.capture.record.tracker import Again, TrackedRun, Tracker
from wattree.capture.record.trees import tensors_in
from wattree.errors import ModelError


def run_module(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    tracker: Tracker,
    attention: str = "fused",
    loss: str = "auto",
    backward: bool = True,
) -> TrackedRun:
    """Run `module` forward and backward and return the recorded events.

    Args:
        module: Its parameters and the arguments are fake, or all are real.
        attention: `fused`, `cpu` or `math`; see `record`.
        loss: `auto`: backward starts from the result if that is a scalar, or from its entry
            `loss`; `none`: always from the sum of all floating-point outputs.
        backward: Whether backward is run, too.
    """
    run = tracker.run
    run.modules = {path: type(m).__name__ for path, m in module.named_modules()}
    _enter_known(module, args, kwargs, tracker)
    regions = Regions(tracker)
    with (
        _plain_kernels(attention),
        conditions_hold(),
        fused_operators(attention=attention == "fused", recurrent=attention == "fused"),
        tracker,
        _paths(module, tracker),
        regions.watched(),
    ):
        with torch.autograd.graph.saved_tensors_hooks(tracker.save, tracker.saved):
            out = module(*args, **kwargs)
        run.outputs = tuple(tracker.number(t) for t in tensors_in(out))
        if not run.outputs:
            raise ModelError(
                f"it returned {type(out).__name__} without a tensor; let forward return its result"
            )
        tracker.end_forward()
        start = _start(out, loss)
        run.trained = start is not None
        if start is not None and start.ndim == 0 and any(start is t for t in tensors_in(out)):
            run.loss = tracker.number(start)
        if start is not None and backward:
            start.backward()
    _forget_gradients(module)
    return run


def _start(out: Any, loss: str) -> Any:
    """Return the tensors from which backward starts; None if nothing needs a gradient."""
    if loss == "auto" and isinstance(out, Mapping):
        named = out.get("loss")
        if isinstance(named, torch.Tensor) and named.ndim == 0 and named.requires_grad:
            return named
    floating = [
        t for t in tensors_in(out) if t.requires_grad and (t.is_floating_point() or t.is_complex())
    ]
    if loss == "auto" and len(floating) == 1 and floating[0].ndim == 0:
        return floating[0]
    total: Any = None
    for tensor in floating:
        part = tensor.abs().sum() if tensor.is_complex() else tensor.sum()
        total = part if total is None else total + part
    return total


def _forget_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    gc.collect(0)


@contextmanager
def _plain_kernels(attention: str) -> Iterator[None]:
    """Disable the fused layers of eval mode, and fused attention if `math` is set."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if attention == "math":
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                yield
        else:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _enter_known(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], tracker: Tracker
) -> None:
    """Number parameters, buffers and inputs, and note which parameters are tied."""
    named: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in named:
            tracker.run.tied[name] = named[id(parameter)]
            continue
        named[id(parameter)] = name
        tracker.number(parameter, source="parameter", name=name)
    for name, buffer in module.named_buffers():
        tracker.number(buffer, source="buffer", name=name)
    for path, child in module.named_modules():
        for key, value in vars(child).items():
            if isinstance(value, torch.Tensor):
                tracker.number(value, source="buffer", name=f"{path}.{key}".lstrip("."))
    for position, value in enumerate(tensors_in((args, dict(kwargs)))):
        tracker.number(value, source="input", name=f"input {position}")


@contextmanager
def _paths(module: nn.Module, tracker: Tracker) -> Iterator[None]:
    """Update `tracker.paths` to the module that runs."""
    handles = []

    def enter(path: str) -> Any:
        def hook(*_: Any) -> None:
            tracker.paths.append(path)

        return hook

    def leave(*_: Any) -> None:
        tracker.paths.pop()

    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(enter(path), prepend=True))
        handles.append(child.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Regions:
    """Numbers the checkpointed regions of a run, reentrant and other ones."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.numbers: dict[int, int] = {}  # id of a frame or context → region
        self.live: list[object] = []  # so that no id is given twice

    def watched(self) -> AbstractContextManager[None]:
        """Return a context in which regions are reported to the tracker."""
        return watching_checkpoints(self._forward, self._again)

    @contextmanager
    def _forward(self, key: object) -> Iterator[None]:
        tracker = self.tracker
        if not tracker.forward:  # a region inside one that runs again: its operators are known
            self.live.append(key)
            yield
            return
        self.live.append(key)
        number = self.numbers.setdefault(id(key), len(self.numbers))
        # The innermost region counts, as it is the one whose operators backward runs again.
        before, tracker.region = tracker.region, number
        try:
            yield
        finally:
            tracker.region = before

    @contextmanager
    def _again(self, key: object) -> Iterator[None]:
        tracker = self.tracker
        number = self.numbers.get(id(key))
        of_region = [o for o in tracker.run.operators if o.region == number]
        again = Again(operators=of_region, node=current_node_sequence())
        tracker.again.append(again)
        try:
            yield
        finally:
            tracker.again.remove(again)
