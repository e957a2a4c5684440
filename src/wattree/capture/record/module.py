"""A module made ready to be run: built without memory, unwrapped, its tensors made fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from wattree.capture.record.private import fake_tensor, is_compiled, original_module, own_tensors
from wattree.capture.record.trees import map_tensors
from wattree.capture.recording import TRAIT_UNSET
from wattree.errors import ModelError

#: Most memory that building and running on real values may take, each. [B]
REAL_LIMIT_BYTES = 4 * 2**30

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def build_on_meta(build: Callable[[], Any], name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the built module with its weights on meta, and the removed wrappers.

    Raises:
        ModelError: What was built is no module that can be run.
    """
    with torch.device("meta"):
        made = build()
    return _usable(made, name)


def build_real(build: Callable[[], Any], name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the module built with values on the CPU, from seed 0.

    Raises:
        ModelError: It takes more than `REAL_LIMIT_BYTES`, or is no module.
    """
    with torch.random.fork_rng(devices=[]), _MemoryGuard(name):
        torch.manual_seed(0)
        made = build()
    return _usable(made, name)


def make_fake(module: nn.Module, mode: Any) -> None:
    """Put fake tensors in the place of parameters, buffers and plain attributes, tied ones once."""
    fakes: dict[int, Any] = {}

    def made(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in fakes:
            fake: Any = fake_tensor(mode, tensor)
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
            fakes[id(tensor)] = fake
        found: torch.Tensor = fakes[id(tensor)]
        return found

    for child in module.modules():
        for place, key, value in own_tensors(child):
            place[key] = map_tensors(value, made)


def parameter_bytes(module: nn.Module) -> int:
    """Return the size of all parameters and buffers. [B]"""
    tensors = {id(t): t for t in [*module.parameters(), *module.buffers()]}
    return sum(t.numel() * t.element_size() for t in tensors.values())


class _MemoryGuard(TorchDispatchMode):
    """Stops a build that creates more tensors than allowed, before they are filled."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.made_bytes = name, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not args_hold(out, args):
            self.made_bytes += out.untyped_storage().nbytes()
        if self.made_bytes > REAL_LIMIT_BYTES:
            raise ModelError(
                f"model {self.name}: its build function needs values, and with values takes more "
                f"than {REAL_LIMIT_BYTES / 2**30:.0f} GiB; let it use no values of tensors "
                "(.item(), .tolist(), if tensor:), so that it builds on the meta device"
            )
        return out


def args_hold(out: torch.Tensor, args: Any) -> bool:
    """Return whether `out` is another view of an argument."""
    pointer = out.untyped_storage().data_ptr()
    return any(
        isinstance(arg, torch.Tensor) and arg.untyped_storage().data_ptr() == pointer
        for arg in args
    )


def _usable(made: Any, name: str) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the module inside a wrapper."""
    warnings = []
    if not isinstance(made, nn.Module):
        raise ModelError(
            f"model {name}: its build function returned {type(made).__name__}, expected a "
            "torch.nn.Module"
        )
    if is_compiled(made):
        warnings.append(
            f"{TRAIT_UNSET.format('compiled')}, but the module is compiled (torch.compile): "
            "predicted as eager; set traits: {compiled: true}"
        )
    if any(_is_channels_last(parameter) for parameter in made.parameters()):
        warnings.append(
            f"{TRAIT_UNSET.format('channels_last')}, but weights of the module are channels_last: "
            "predicted with conversions of the layout; set traits: {channels_last: true}"
        )
    while True:
        inner = original_module(made)
        if inner is None and isinstance(made, _WRAPPERS):
            inner = made.module
            warnings.append(
                f"{type(made).__name__} around the model is left out: replicas are the strategy's"
            )
        if inner is None:
            break
        made = inner
    _refuse_unusable(made, name)
    return made, tuple(warnings)


def _is_channels_last(weight: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return (
        weight.ndim in formats
        and not weight.is_contiguous()
        and (weight.is_contiguous(memory_format=formats[weight.ndim]))
    )


def _refuse_unusable(module: nn.Module, name: str) -> None:
    for path, child in module.named_modules():
        where = f"module '{path}' " if path else "the module "
        if isinstance(child, torch.jit.ScriptModule):
            raise ModelError(
                f"model {name}: {where}is a TorchScript module, whose operators cannot be "
                "recorded; return the nn.Module it was made of"
            )
        if type(child).__name__ in {"FullyShardedDataParallel", "FSDPModule"}:
            raise ModelError(
                f"model {name}: {where}is already sharded ({type(child).__name__}); return the "
                "plain module and choose the sharding by 'strategy'"
            )
        if any(is_lazy(parameter) for parameter in child.parameters(recurse=False)):
            raise ModelError(
                f"model {name}: {where}({type(child).__name__}) has parameters without a size; "
                "give the layer its input size"
            )
