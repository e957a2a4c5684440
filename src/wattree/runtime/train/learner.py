"""One step of one rank: forward, backward and update of its micro-batches."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wattree.runtime.data import Batch
from wattree.runtime.models import Trainable
from wattree.runtime.reduce import Reduction, attach
from wattree.runtime.train.session import RankSession


class Learner:
    """A model with its optimizer.

    Args:
        trainable: This rank's part of the model.
        session: This rank.
        optimizer: Of a model's parameters.
        autocast: Context of forward passes.
        scale_losses: Whether gradients are scaled, as half precision needs it.
    """

    def __init__(
        self,
        trainable: Trainable,
        session: RankSession,
        *,
        optimizer: torch.optim.Optimizer,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        scale_losses: bool = False,
    ) -> None:
        self.trainable, self.optimizer = trainable, optimizer
        self.module = trainable.module
        self._group, self._autocast = trainable.group, autocast
        self._micro_batches = session.recipe.micro_batches
        self._scaler = torch.amp.GradScaler(session.device.type, enabled=scale_losses)
        self._partial = [
            parameter
            for parameter in self.module.parameters()
            if getattr(parameter, "is_partial", False)
        ]
        self.replicated: nn.Module = (
            self.module if session.data_group is None else _replicated(self.module, session)
        )
        self._reduction = _shared(self.replicated, session)

    def step(
        self,
        batches: Iterator[Batch],
        phase: Callable[[str, Any], Any],
        mark: Callable[[], Any],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Take one step; return this rank's loss before it, and the inputs of its last batch.

        Args:
            batches: Gives the step's micro-batches first.
            phase: Called with what ends and the mark of its begin; returns the mark of its end.
            mark: Makes marks.
        """
        total = torch.zeros((), dtype=torch.float64)
        inputs: tuple[Tensor, ...] = ()
        for number in range(self._micro_batches):
            inputs, targets = next(batches)
            begin = mark()
            is_last = number == self._micro_batches - 1
            with self._unsynchronized(is_last=is_last):
                with self._autocast():
                    outputs = self.replicated(*inputs)
                    loss = self.trainable.loss(outputs, targets) / self._micro_batches
                begin = phase("forward", begin)
                self._backward(loss)
            self._add_partial(is_last=is_last)
            phase("backward", begin)
            total = total.to(loss.device) + loss.detach()
        begin = mark()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        phase("optimizer", begin)
        return total, inputs

    def _backward(self, loss: Tensor) -> None:
        try:
            self._scaler.scale(loss).backward()
        except RuntimeError as error:  # DDP makes one of whatever a hook raises
            if self._reduction is not None and self._reduction.failure is not None:
                raise self._reduction.failure from error
            raise

    def _unsynchronized(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        if is_last or not isinstance(self.replicated, DistributedDataParallel):
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = self.replicated.no_sync()
        return context

    def _add_partial(self, *, is_last: bool) -> None:
        """Add up gradients of which each rank has those of its positions only."""
        if not is_last or not self._partial:
            return
        gradients = [p.grad for p in self._partial if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._group.all_reduce(flat, "norms").wait()
        for gradient, whole in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(whole.view_as(gradient))


def _shared(model: nn.Module, session: RankSession) -> Reduction | None:
    """Let replicas that share a device average their gradients there first."""
    processes = session.recipe.processes_per_device
    if processes == 1 or not isinstance(model, DistributedDataParallel):
        return None
    return attach(
        model,
        processes_per_device=processes,
        timeout_s=session.group.timeout_s,
        traffic=session.group.traffic,
    )


def _replicated(module: nn.Module, session: RankSession) -> nn.Module:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    # Buckets are laid out anew after the first step unless parameters may be unused. Where more
    # than two add up their gradients in a ring that changes the order in which they do, so that a
    # run that was resumed would differ in the last bits. Replicas that share a device add up in
    # the order of ranks, whatever the buckets are, and one of them goes to the ring.
    keep_buckets = session.recipe.dp // session.recipe.processes_per_device > 2
    warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    return DistributedDataParallel(
        module,
        device_ids=None if session.device.type == "cpu" else [session.device.index],
        process_group=session.data_group,
        find_unused_parameters=keep_buckets,
        gradient_as_bucket_view=True,
    )
