"""Pipelines by `torch.distributed.pipelining`, in the order that the job's schedule gives.

The schedule that is predicted is the one that runs: its slots become the actions of PyTorch's
schedule runtime, which adds sends, receives, and the reduction of gradients at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

# The runtime of PyTorch's own zero-bubble schedules; the public classes take no order.
from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
)

from wattree.runtime.parallel.cut import StageLayers
from wattree.runtime.parallel.watch import LibraryWatch
from wattree.runtime.train.session import RankSession
from wattree.strategy import Schedule, SlotWork

_ACTIONS = {
    SlotWork.FORWARD: _ComputationType.FORWARD,
    SlotWork.BACKWARD: _ComputationType.FULL_BACKWARD,
    SlotWork.INPUT_GRADIENT: _ComputationType.BACKWARD_INPUT,
    SlotWork.WEIGHT_GRADIENT: _ComputationType.BACKWARD_WEIGHT,
}


class StepNotes:
    """When the stages of a rank compute in a step, and when they wait.

    Between two computations the schedule's runtime posts messages and waits for them, and at the
    end for gradients to be reduced: all of it is waiting.

    Args:
        phase: Called with what ends and the mark of its begin; returns the mark of its end.
        mark: Makes marks.
        watch: Takes waiting and bytes; None where no one looks.
    """

    def __init__(
        self,
        phase: Callable[[str, Any], Any],
        mark: Callable[[], Any],
        watch: LibraryWatch | None,
    ) -> None:
        self._phase, self._mark, self._watch = phase, mark, watch
        self._idle: Any = mark()

    def begin(self) -> Any:
        """Note that a computation begins; return its mark."""
        begin = self._mark()
        self._waited(begin)
        if self._watch is not None:
            self._watch.in_stages = False
        return begin

    def end(self, what: str, begin: Any) -> None:
        """Note that a computation ends."""
        self._idle = self._phase(what, begin)
        if self._watch is not None:
            self._watch.in_stages = True

    def close(self) -> None:
        """Note that the step's micro-batches are done."""
        self._waited(self._mark())
        if self._watch is not None:
            self._watch.in_stages = False

    def sent(self, operations: Sequence[Any]) -> None:
        """Count what goes to another stage."""
        if self._watch is not None and operations:
            self._watch.sent("stages", sum(each.tensor.nbytes for each in operations))

    def _waited(self, until: Any) -> None:
        if self._watch is not None:
            self._watch.stages_waited(self._idle, until)


class WatchedStage(PipelineStage):
    """A stage that notes what it does.

    Attributes:
        notes: Of the step that runs.
    """

    notes: StepNotes

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Compute forward, as the stage does."""
        return self._watched("forward", super().forward_one_chunk, arguments, options)

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Compute backward, as the stage does."""
        return self._watched("backward", super().backward_one_chunk, arguments, options)

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Compute gradients of weights, as the stage does."""
        return self._watched("backward", super().backward_weight_one_chunk, arguments, options)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Return what sends an output, as the stage does."""
        found: list[Any] = super().get_fwd_send_ops(fwd_chunk_id)
        self.notes.sent(found)
        return found

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        """Return what sends a gradient, as the stage does."""
        found: list[Any] = super().get_bwd_send_ops(bwd_chunk_id)
        self.notes.sent(found)
        return found

    def _watched(
        self, what: str, act: Callable[..., Any], arguments: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        begin = self.notes.begin()
        found = act(*arguments, **options)
        self.notes.end(what, begin)
        return found


class Pipeline:
    """The stages of a rank, and the order in which they work.

    Args:
        parts: This rank's parts of the model.
        cuts: Where they lie in it.
        session: This rank.
        loss: Of outputs and targets of a micro-batch.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        cuts: Sequence[StageLayers],
        session: RankSession,
        loss: Callable[[Tensor, Any], Tensor],
    ) -> None:
        self._cuts = tuple(cuts)
        self._stages = [
            WatchedStage(part, cut.chunk, cut.chunks, session.device, group=session.stage_group)
            for part, cut in zip(parts, cuts, strict=True)
        ]
        schedule = session.recipe.schedule
        # Losses are divided by the micro-batches, as gradients would be.
        self._runtime = _PipelineScheduleRuntime(
            self._stages, schedule.micro_batches, loss_fn=loss, scale_grads=False
        )
        self._runtime._prepare_schedule_with_comms(  # noqa: SLF001 - the one way to give an order
            dict(enumerate(actions_of(schedule, session.recipe.pp)))
        )

    def step(
        self, inputs: Sequence[Tensor], targets: Tensor | None, notes: StepNotes
    ) -> list[Tensor]:
        """Run the micro-batches of a step; return their losses, where this rank makes them.

        Args:
            inputs: Of all micro-batches, one after another.
            targets: Likewise.
            notes: Take when what was computed.
        """
        for stage in self._stages:
            stage.notes = notes
        self._runtime.backward_counter.clear()
        losses: list[Tensor] = []
        is_last = any(cut.is_last for cut in self._cuts)
        given = tuple(inputs) if any(cut.is_first for cut in self._cuts) else ()
        self._runtime.step(
            *given,
            target=targets if is_last else None,
            losses=losses if is_last else None,
            return_outputs=False,
        )
        notes.close()
        return losses


def actions_of(schedule: Schedule, stages: int) -> list[list[_Action]]:
    """Return what each stage does, as PyTorch's schedule runtime has it.

    Args:
        schedule: In whose order.
        stages: Of the pipeline.
    """
    placed = schedule.placed(stages)
    return [
        [
            _Action(placed.model_chunk(stage, slot.chunk), _ACTIONS[slot.work], slot.micro_batch)
            for slot in order
        ]
        for stage, order in enumerate(schedule.orders(stages))
    ]


def as_stage(part: nn.Module, context: Callable[[], Any]) -> None:
    """Let a part of a model compute forward in a context, and exchange dense tensors.

    Args:
        part: As `PipelineStage` calls it.
        context: Such as autocast.
    """
    whole = part.forward

    def forward(x: Tensor) -> Any:
        with context():
            out = whole(_DenseGradient.apply(x)).contiguous()
        # Split backward passes detach it in place, which views do not allow.
        return out.clone() if out._is_view() else out  # noqa: SLF001 - the one way to ask

    part.forward = forward


class _DenseGradient(torch.autograd.Function):
    """The same tensor, whose gradient is laid out row by row, as messages are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0].contiguous()


def joined(batches: Sequence[tuple[tuple[Tensor, ...], Tensor | None]]) -> Any:
    """Return the inputs and targets of micro-batches, one after another."""
    inputs = tuple(torch.cat(each) for each in zip(*(batch[0] for batch in batches), strict=True))
    targets = [batch[1] for batch in batches]
    return inputs, None if targets[0] is None else torch.cat(targets)
