"""Error messages for failures in a step: which rank, which layer, and the remedy."""

from __future__ import annotations

import math
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wattree.errors import CommunicationError, RunError
from wattree.runtime.layers.operator import LayerOperator
from wattree.runtime.regions import local_part

#: What gloo, NCCL and the store say where the process at the other end has gone.
_GONE = (
    "connection closed",
    "connection reset",
    "broken pipe",
    "connection refused",
    "socket",
    "timed out",
    "timeout",
    "remote process exited",
)
_NO_ROOM = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate")


def is_echo(error: BaseException) -> bool:
    """Return whether an error only reports that another rank ended."""
    if isinstance(error, CommunicationError):
        return "ranks disagree" not in str(error)
    is_ours = isinstance(error, RuntimeError) and not is_out_of_memory(error)
    return is_ours and any(word in str(error).lower() for word in _GONE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on the device or the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _NO_ROOM)


def innermost(error: BaseException) -> BaseException:
    """Return the error from which others were raised, one after another."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def layer_in(error: BaseException, module: nn.Module) -> str:
    """Return the innermost layer of a model in which an error was raised; empty if in none."""
    names = {id(layer): name for name, layer in module.named_modules() if name}
    # Backward runs operators, which know their layers' places and are no modules.
    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for key in ("self", "layer"):
            owner = frame.f_locals.get(key)
            found = owner.place if isinstance(owner, LayerOperator) else names.get(id(owner), found)
    return found


def out_of_memory(error: BaseException, module: nn.Module, rank: int, step: int) -> RunError:
    """Return the error of a rank whose memory ran out."""
    layer = layer_in(error, module)
    where = f" in layer '{layer}'" if layer else " in backward or in the update"
    text = str(error).strip().splitlines()
    reason = f" ({text[0][:160]})" if text else ""
    return RunError(
        f"rank {rank}",
        [
            f"out of memory{where}, step {step + 1}{reason}; a smaller strategy.micro_batch or "
            "data.global_batch, or more tp, needs less"
        ],
    )


def broken_loss(
    losses: list[float],
    parts: list[float],
    *,
    first: int,
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    control: Any,
    is_staged: bool = False,
) -> RunError:
    """Return the error of a loss that is no number; a collective call.

    Args:
        losses: Of the steps since the last talk, over all ranks.
        first: Number of the first of these steps, from 0.
        inputs: A micro-batch, to find the layer with.
        control: All ranks, on the CPU.
        is_staged: The module is a stage of a pipeline, which only its schedule runs.
    """
    at = next(number for number, loss in enumerate(losses) if not math.isfinite(loss))
    if is_staged:
        layer_here = _broken_weights(module)
        is_mine = bool(layer_here) or not math.isfinite(parts[at])
    else:
        layer_here = _first_broken(module, inputs)  # on all ranks: layers wait for each other
        is_mine = not math.isfinite(parts[at])
    mine = layer_here if is_mine else None
    text: list[str | None] = [None] * dist.get_world_size(control)
    dist.all_gather_object(text, mine, control)
    rank = next((number for number, layer in enumerate(text) if layer is not None), 0)
    layer = text[rank]
    where = f", {layer}" if layer else ", in the loss itself"
    return RunError(
        f"rank {rank}",
        [
            f"the loss of step {first + at + 1} is {losses[at]}{where}; a smaller "
            "training.learning_rate, finite inputs or another precision helps; no checkpoint "
            "holds it"
        ],
    )


def _broken_weights(module: nn.Module) -> str:
    """Return the first layer whose weights are not finite; empty if all are."""
    for name, parameter in module.named_parameters():
        if not torch.isfinite(local_part(parameter)).all():
            layer, _, key = name.rpartition(".")
            return f"layer '{layer}', whose {key} holds numbers that are not finite"
    return ""


def _first_broken(module: nn.Module, inputs: tuple[Tensor, ...]) -> str:
    """Return the inputs or the first layer that are not finite; empty if all are."""
    broken_inputs = any(each.is_floating_point() and not each.isfinite().all() for each in inputs)
    found = ["whose inputs (data.source) hold numbers that are not finite"] * broken_inputs
    hooks = []

    def looked(name: str) -> Any:
        def look(layer: nn.Module, arguments: Any, output: Any) -> None:
            del arguments
            broken = [
                key
                for key, parameter in layer.named_parameters(recurse=False)
                if not torch.isfinite(parameter).all()
            ]
            if broken:
                found.append(f"layer '{name}', whose {broken[0]} holds numbers that are not finite")
            elif isinstance(output, Tensor) and not torch.isfinite(output).all():
                found.append(f"layer '{name}', whose output is not finite")

        return look

    for name, layer in module.named_modules():
        if name and not any(True for _ in layer.children()):
            hooks.append(layer.register_forward_hook(looked(name)))
    try:
        with torch.no_grad():
            module(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else ""
