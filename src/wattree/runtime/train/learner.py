"""One step of one rank: forward, backward and update of its micro-batches, or forward alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wattree.runtime.data import Batch
from wattree.runtime.parallel.assemble import AssembledModel
from wattree.runtime.reduce import Reduction, attach
from wattree.runtime.regions import local_part
from wattree.runtime.train.health import innermost
from wattree.runtime.train.session import RankSession

if TYPE_CHECKING:
    from wattree.runtime.parallel.pipeline import Pipeline
    from wattree.runtime.parallel.watch import LibraryWatch


class Learner:
    """A model with its optimizer.

    Args:
        model: This rank's part of the model, as its strategy runs it.
        scale_losses: Whether gradients are scaled, as half precision needs it.

    Attributes:
        module: Its parameters, under the names that checkpoints have.
        replicated: What is called, where it is whole.
        copied: Elements of this rank that another stage has as well.
        watch: Counts what PyTorch's libraries send, and notes what stages wait for.
    """

    def __init__(
        self,
        model: AssembledModel,
        session: RankSession,
        *,
        optimizer: torch.optim.Optimizer,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]],
        scale_losses: bool = False,
    ) -> None:
        self.trainable, self.optimizer = model.trainable, optimizer
        self.module = model.trainable.module
        self.replicated: nn.Module = model.parts[0] if len(model.parts) == 1 else self.module
        self._group, self._partial = model.trainable.group, model.partial
        self._model, self.copied = model, model.copied
        self._autocast = autocast
        self._micro_batches = session.recipe.micro_batches
        self._trains = session.recipe.backward
        if not self._trains:
            self.replicated.eval()
        scales = scale_losses and self._trains
        self._scaler = torch.amp.GradScaler(session.device.type, enabled=scales)
        self._reduction = _shared(self.replicated, session)
        self.watch: LibraryWatch | None = None
        recipe = session.recipe
        self._experts = recipe.options.ep
        self._sharding = recipe.options.memory.sharding if recipe.is_fully_sharded else None
        self._pipeline: Pipeline | None = None
        if recipe.options.pp > 1:
            self._pipeline = self._pipelined(model, session)

    def _pipelined(self, model: AssembledModel, session: RankSession) -> Pipeline:
        from wattree.runtime.parallel.pipeline import Pipeline, as_stage

        for part in model.parts:
            as_stage(part, self._autocast)
        return Pipeline(model.parts, self.trainable.cuts, session, self._loss)

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
        """
        passes = self._one_by_one if self._pipeline is None else self._by_stages
        total, inputs = passes(batches, phase, mark)
        begin = mark()
        self._scaler.step(self.optimizer)  # without gradients it counts the step and does nothing
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        phase("optimizer", begin)
        return total, inputs

    def _loss(self, outputs: Tensor, targets: Tensor | None) -> Tensor:
        with self._autocast():
            return self.trainable.loss(outputs, targets) / self._micro_batches

    def _one_by_one(
        self, batches: Iterator[Batch], phase: Callable[[str, Any], Any], mark: Callable[[], Any]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute forward, and backward where there is one, of each micro-batch in turn."""
        total = torch.zeros((), dtype=torch.float64)
        inputs: tuple[Tensor, ...] = ()
        for number in range(self._micro_batches):
            inputs, targets = next(batches)
            begin = mark()
            is_last = number == self._micro_batches - 1
            with (
                self._unsynchronized(is_last=is_last),
                torch.set_grad_enabled(self._trains),
            ):
                with self._autocast():
                    outputs = self.replicated(*inputs)
                loss = self._loss(outputs, targets)
                begin = phase("forward", begin)
                if self._trains:
                    self._backward(loss)
            if self._trains:
                if is_last:
                    self._complete_gradients()
                phase("backward", begin)
            total = total.to(loss.device) + loss.detach()
        return total, inputs

    def _by_stages(
        self, batches: Iterator[Batch], phase: Callable[[str, Any], Any], mark: Callable[[], Any]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Let the stages of all ranks compute all micro-batches, in the order of the schedule."""
        from wattree.runtime.parallel.pipeline import StepNotes, joined

        assert self._pipeline is not None
        inputs, targets = joined([next(batches) for _ in range(self._micro_batches)])
        try:
            losses = self._pipeline.step(inputs, targets, StepNotes(phase, mark, self.watch))
        except RuntimeError as error:  # stages make one of whatever a layer raises
            raise innermost(error) from None
        begin = mark()
        self._complete_gradients()
        phase("backward", begin)
        total = torch.zeros((), dtype=torch.float64)
        for loss in losses:
            total = total.to(loss.device) + loss.detach()
        return total, inputs

    def _backward(self, loss: Tensor) -> None:
        try:
            self._scaler.scale(loss).backward()
        except RuntimeError as error:  # DDP makes one of whatever a hook raises
            if self._reduction is not None and self._reduction.failure is not None:
                raise self._reduction.failure from error
            raise

    def _unsynchronized(self, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        if self._sharding is not None:
            self._shard_between(self._sharding, is_last=is_last)
        if is_last or not isinstance(self.replicated, DistributedDataParallel):
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = self.replicated.no_sync()
        return context

    def _shard_between(self, sharding: str, *, is_last: bool) -> None:
        """Set `fully_shard`'s behavior between micro-batches, by the stage of ZeRO.

        Stages 1 and 2 keep parameters whole until the step ends, and stage 1 gradients too, as
        replicas do that share nothing.
        """
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(self.replicated, FSDPModule)
        if sharding in {"none", "zero1", "zero2"}:
            self.replicated.set_reshard_after_backward(is_last)
        if sharding in {"none", "zero1"}:
            self.replicated.set_requires_gradient_sync(is_last)

    def _complete_gradients(self) -> None:
        """Do the remaining work after replicas have the mean of their gradients."""
        self._add_partial()
        self._add_tied()
        self._add_twins()
        for each in self._model.experts:
            if each.grad is not None:  # the mean over those that have it, of the sum over ep
                local_part(each.grad).div_(self._experts)

    def _add_partial(self) -> None:
        """Add up gradients of which each rank has those of its positions only."""
        if not self._partial:
            return
        gradients = [local_part(p.grad) for p in self._partial if p.grad is not None]
        with _flattened(gradients) as flat:
            self._group.all_reduce(flat, "norms").wait()

    def _add_tied(self) -> None:
        """Give the copies of a parameter of the first and the last stage the sum of gradients."""
        gradients = [local_part(each.grad) for each in self._model.tied if each.grad is not None]
        if not gradients:
            return
        total = torch.stack(gradients).sum(0)
        if self._model.tied_group is not None:
            self._group.traffic.add("stages", total.nbytes)
            dist.all_reduce(total, group=self._model.tied_group)
        for gradient in gradients:
            gradient.copy_(total)

    def _add_twins(self) -> None:
        """Give parameters that two stages hold the sum of the gradients of both."""
        gradients = [local_part(each.grad) for each in self._model.twins if each.grad is not None]
        if not gradients:
            return
        with _flattened(gradients) as flat:
            self._group.traffic.add("gradients", flat.nbytes)
            dist.all_reduce(flat, group=self._model.twins_group)


@contextlib.contextmanager
def _flattened(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield one vector with the elements of tensors, and copy it back into them."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    yield flat
    for tensor, whole in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(whole.view_as(tensor))


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
