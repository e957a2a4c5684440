"""Models wrapped by DDP, with gradients averaged for several processes per device."""

from __future__ import annotations

import functools
import sys
from typing import Any
from weakref import WeakKeyDictionary

from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from wattree.errors import RunError
from wattree.runtime.colocation.environment import ColocatedProcess
from wattree.runtime.patches import UNPATCHED
from wattree.runtime.patches.ending import end_by
from wattree.runtime.reduce import Reduction, attach

#: Hooks of torch that say what else is wanted of the mean, which this one does as well.
_KNOWN = {"allreduce_hook": False, "bf16_compress_hook": True}


def change_model(colocation: ColocatedProcess) -> None:
    """Attach a reduction to every model that the script wraps with DDP."""
    model = DistributedDataParallel
    # Not in the models, which scripts may copy and save.
    reductions: WeakKeyDictionary[Any, Reduction] = WeakKeyDictionary()
    begin, register = model.__init__, model.register_comm_hook
    if colocation.device == 0 and colocation.is_leader:
        _say_of_no_model(reductions)

    @functools.wraps(begin)
    def wrap(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        _say_of_batch_norm(self, colocation)
        reductions[self] = end_by(lambda: attach(self))

    @functools.wraps(register)
    def register_own(self: Any, state: Any, hook: Any) -> None:
        reduction = reductions.get(self)
        if reduction is None:
            register(self, state, hook)
        else:
            end_by(lambda: _follow(reduction, hook))

    model.__init__, model.register_comm_hook = wrap, register_own


def _say_of_no_model(reductions: WeakKeyDictionary[Any, Reduction]) -> None:
    """Warn at an optimizer's first step if no model is wrapped: processes train separately."""

    def look(*_: Any) -> None:
        handle.remove()
        if not reductions:
            sys.stderr.write(
                "wattree: warning: no model is wrapped with DistributedDataParallel, so nothing "
                "here averages gradients: unless the script does, its processes train models of "
                "their own\n"
            )

    handle = register_optimizer_step_pre_hook(look)


def _follow(reduction: Reduction, hook: Any) -> None:
    """Do the work of a hook of the script.

    Raises:
        RunError: It is none that is known here.
    """
    name = getattr(hook, "__name__", str(hook))
    if name not in _KNOWN:
        raise RunError(
            "register_comm_hook",
            [
                f"found the script's own hook '{name}', expected {' or '.join(_KNOWN)}: gradients "
                "of processes that share a device are averaged by a hook already; "
                f"{UNPATCHED}=hook leaves that out"
            ],
        )
    if _KNOWN[name]:
        reduction.compress()


def _say_of_batch_norm(model: Any, colocation: ColocatedProcess) -> None:
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and not isinstance(layer, SyncBatchNorm)
    ]
    if (
        layers
        and colocation.batch_rule == "fixed-global"
        and colocation.device == 0
        and colocation.is_leader
    ):
        sys.stderr.write(
            f"wattree: {len(layers)} layers of batch norm take their statistics over 1/"
            f"{colocation.processes} of the batch of a device; torch.nn.SyncBatchNorm, on "
            "accelerators, takes them over all ranks\n"
        )
