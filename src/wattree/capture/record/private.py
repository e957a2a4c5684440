"""The parts of PyTorch without a public name that recording needs; nothing else here uses any.

Each is one narrow function, so that a version of PyTorch that renames one is mended in one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses import fake_tensor as fake
from torch.distributions import Distribution
from torch.utils import checkpoint

#: What fake tensors raise where a result depends on values.
DATA_DEPENDENT: tuple[type[Exception], ...] = (
    fake.DynamicOutputShapeException,
    fake.DataDependentOutputException,
)
#: What they raise for operators without a rule.
UNSUPPORTED: tuple[type[Exception], ...] = (
    fake.UnsupportedFakeTensorException,
    fake.UnsupportedOperatorException,
)


def fake_mode() -> Any:
    """Return a mode under which operators on fake tensors compute sizes alone."""
    return fake.FakeTensorMode(allow_non_fake_inputs=True)


def fake_tensor(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake CPU tensor of the same size and strides.

    On the CPU and not on meta: which kernels an operator is made of depends on the device.
    """
    made: torch.Tensor = fake.FakeTensor(mode, tensor.detach().to("meta"), torch.device("cpu"))
    return made


def fake_device(func: Any, args: tuple[Any, ...]) -> torch.device | None:
    """Return the device that an operator asks a fake tensor for; None if it asks something else.

    Most dispatched calls of a run on fake tensors ask this, and PyTorch's own answer is slow.
    """
    if func is torch.ops.prim.device.default and type(args[0]) is fake.FakeTensor:
        return args[0].fake_device
    return None


@contextmanager
def conditions_hold() -> Iterator[None]:
    """Take conditions on values of tensors as met, as a compiler does: they are not computed.

    Those are assertions, and the arguments and samples that distributions look at.
    """
    before, validates = torch._check_tensor_all_with, Distribution._validate_args
    torch._check_tensor_all_with = lambda *_: None
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch._check_tensor_all_with = before
        Distribution.set_default_validate_args(validates)


def newest_sequence() -> int:
    """Return the sequence number of autograd's newest node in this thread."""
    return int(torch.autograd._get_sequence_nr()) - 1


def current_node_sequence() -> int | None:
    """Return the sequence number of the node whose backward runs; None outside of backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def storage_key(tensor: torch.Tensor) -> int:
    """Return the key of a storage, the same for all its views while it exists."""
    return int(tensor.untyped_storage()._cdata)


def own_tensors(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield one module's parameters, buffers and other tensors: container, key, value.

    The value is a tensor, or a list, tuple or mapping that may hold some.
    """
    places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, module.__dict__)
    for place in places:
        for key, value in list(place.items()):
            if isinstance(value, torch.Tensor) or (
                isinstance(value, list | tuple | dict) and not key.startswith("_")
            ):
                yield place, key, value


@contextmanager
def quiet() -> Iterator[None]:
    """Prevent PyTorch from logging the content of our error message."""
    logger = logging.getLogger(fake.__name__)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def original_module(module: nn.Module) -> nn.Module | None:
    """Return the module that `torch.compile` wrapped; None if it did not."""
    found = getattr(module, "_orig_mod", None)
    return found if isinstance(found, nn.Module) else None


def is_compiled(module: nn.Module) -> bool:
    """Return whether `torch.compile` wrapped a module or one in it, or `compile()` was called."""
    return any(
        original_module(child) is not None or child._compiled_call_impl is not None
        for child in module.modules()
    )


@contextmanager
def implementing(kernels: Mapping[str, Callable[..., Any]], key: str) -> Iterator[None]:
    """Let operators of `aten` be carried out by other functions, under one dispatch key."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, kernel in kernels.items():
            library.impl(name, kernel, key)
        yield


@contextmanager
def watching_checkpoints(
    forward: Callable[[object], Any], backward: Callable[[object], Any]
) -> Iterator[None]:
    """Call back around each checkpointed region.

    Args:
        forward: Makes a context for the region's forward, of an object that identifies it.
        backward: The same for running it again.
    """
    with ExitStack() as undo:
        _around_hook(undo, checkpoint._checkpoint_hook, forward)
        _around_hook(undo, checkpoint._recomputation_hook, backward)
        _around_static(undo, checkpoint.CheckpointFunction, "forward", forward)
        _around_static(undo, checkpoint.CheckpointFunction, "backward", backward)
        yield


def _around_hook(undo: ExitStack, hook: Any, around: Callable[[object], Any]) -> None:
    """Enter `around(frame)` with a pair of hooks that is made for a frame."""
    made, enter, leave = hook.__init__, hook.__enter__, hook.__exit__
    open_: dict[int, list[Any]] = {}

    def init(self: Any, frame: Any, *rest: Any) -> None:
        # A recomputation gets a weak reference to the frame of the forward.
        self.wattree_region = frame() if rest else frame
        made(self, frame, *rest)

    def entered(self: Any) -> Any:
        context = around(self.wattree_region)
        context.__enter__()
        open_.setdefault(id(self), []).append(context)
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        open_[id(self)].pop().__exit__(None, None, None)
        return result

    for name, replacement in (("__init__", init), ("__enter__", entered), ("__exit__", left)):
        _replace(undo, hook, name, replacement)


def _around_static(undo: ExitStack, owner: Any, name: str, around: Callable[[object], Any]) -> None:
    original = getattr(owner, name)

    def wrapped(ctx: Any, *args: Any) -> Any:
        with around(ctx):
            return original(ctx, *args)

    _replace(undo, owner, name, staticmethod(wrapped))


def _replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    undo.callback(setattr if had else delattr, owner, name, *([before] if had else []))
