"""Pipelines by `torch.distributed.pipelining`, in the order that the job's schedule gives.

The schedule that is predicted is the one that runs: its slots become the actions of PyTorch's
schedule runtime, which adds sends, receives, and the reduction of gradients at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

# The runtime of PyTorch's own zero-bubble schedules; the public classes take no order.
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_reduce_grad,
    _add_unshard_reshard,
    _ComputationType,
    _PipelineScheduleRuntime,
)

from wattree.runtime.parallel.cut import StageLayers
from wattree.runtime.parallel.watch import LibraryWatch
from wattree.runtime.regions import crossed
from wattree.runtime.train.session import RankSession
from wattree.strategy import Schedule, SlotWork
from wattree.strategy.schedules.slot import Slot

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
        """Count the bytes sent to another stage."""
        if self._watch is not None and operations:
            self._watch.sent("stages", sum(each.tensor.nbytes for each in operations))

    def _waited(self, until: Any) -> None:
        if self._watch is not None:
            self._watch.stages_waited(self._idle, until)


class WatchedStage(PipelineStage):
    """A stage that records its actions, and knows the ends of its path through the model.

    Attributes:
        notes: Of the step that runs.
    """

    notes: StepNotes

    def __init__(self, part: nn.Module, cut: StageLayers, session: RankSession) -> None:
        routes = session.recipe.schedule.placed(session.recipe.options.pp).copies
        index = cut.route * cut.chunks + cut.chunk
        super().__init__(
            part, index, routes * cut.chunks, session.device, group=session.stage_group
        )
        self._cut, self._index = cut, index

    @property
    def is_first(self) -> bool:
        """Return whether this stage reads samples."""
        return self._cut.is_first

    @property
    def is_last(self) -> bool:
        """Whether losses are made here."""
        return self._cut.is_last

    def set_local_fwd_input(self, prev_stage_outputs: Any, mb_index: int) -> None:
        """Receive the previous stage's output, unless that ends another path through the model."""
        if not self.is_first:
            super().set_local_fwd_input(prev_stage_outputs, mb_index)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """Return the gradients for the previous stage; empty on the first stage."""
        return None if self.is_first else super().get_local_bwd_output(mb_index)

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Receive gradients of the next stage, unless that begins another path."""
        if not self.is_last:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Compute forward, as the stage does."""
        return self._watched("forward", super().forward_one_chunk, arguments, options)

    def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Compute backward, as the stage does."""
        return self._watched("backward", super().backward_one_chunk, arguments, options)

    def backward_weight_one_chunk(self, *arguments: Any, **options: Any) -> Any:
        """Compute gradients of weights, as the stage does."""
        index: int = self._index
        if self.is_first:
            self.stage_index = 0  # which PyTorch takes for the one whose input has no gradient
        try:
            return self._watched("backward", super().backward_weight_one_chunk, arguments, options)
        finally:
            self.stage_index = index

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Return the sends of an output, like the stage's."""
        found: list[Any] = super().get_fwd_send_ops(fwd_chunk_id)
        self.notes.sent(found)
        return found

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        """Return the sends of a gradient, like the stage's."""
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
        cuts: Where this rank's parts lie in the model.
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
            WatchedStage(part, cut, session) for part, cut in zip(parts, cuts, strict=True)
        ]
        schedule, stages = session.recipe.schedule, session.recipe.options.pp
        self._routes = schedule.placed(stages).copies
        share = schedule.micro_batches // self._routes
        # Losses are divided by the micro-batches, as gradients would be.
        self._runtime = _PipelineScheduleRuntime(
            self._stages, share, loss_fn=loss, scale_grads=False
        )
        orders = {
            stage: _add_reduce_grad(_add_unshard_reshard(order), share)
            for stage, order in enumerate(actions_of(schedule, stages))
        }
        self._runtime._prepare_schedule_with_comms(  # noqa: SLF001 - the one way to give an order
            with_messages(orders, schedule.placed(stages).model_chunks), format="compute_comms"
        )

    def step(
        self, inputs: Sequence[Tensor], targets: Tensor | None, notes: StepNotes
    ) -> list[Tensor]:
        """Run the micro-batches of a step; return their losses, where this rank makes them.

        Args:
            inputs: Of all micro-batches, one after another.
            targets: Likewise.
        """
        for stage in self._stages:
            stage.notes = notes
        self._runtime.backward_counter.clear()
        losses: list[Tensor] = []
        first = [cut.route for cut in self._cuts if cut.is_first]
        last = [cut.route for cut in self._cuts if cut.is_last]
        given = tuple(each.chunk(self._routes)[first[0]] for each in inputs) if first else ()
        is_last = bool(last)
        if targets is not None and is_last:
            targets = targets.chunk(self._routes)[last[0]]
        self._runtime.step(
            *given,
            target=targets if is_last else None,
            losses=losses if is_last else None,
            return_outputs=False,
        )
        notes.close()
        return losses


def actions_of(schedule: Schedule, stages: int) -> list[list[_Action]]:
    """Return the actions of each stage in the form of PyTorch's schedule runtime.

    Args:
        schedule: In whose order.
    """
    placed = schedule.placed(stages)

    def action(stage: int, slot: Slot) -> _Action:
        route = placed.route(stage, slot.chunk)
        part = route * placed.model_chunks + placed.model_chunk(stage, slot.chunk)
        first = route * (schedule.micro_batches // placed.copies)
        return _Action(part, _ACTIONS[slot.work], slot.micro_batch - first)

    return [
        [action(stage, slot) for slot in order]
        for stage, order in enumerate(schedule.orders(stages))
    ]


def with_messages(orders: Mapping[int, Sequence[Any]], chunks: int) -> dict[int, list[Any]]:
    """Return the actions of ranks, with their sends and receives.

    PyTorch's own pass knows one way through the model. Messages are posted in the order in which
    they are sent, on both sides, as there.

    Args:
        orders: Rank → actions without messages.
        chunks: Parts of a model; numbers of parts go on with those of a second copy of it.
    """
    ranks = {each.stage_index: rank for rank, order in orders.items() for each in order}
    left = {rank: list(reversed(order)) for rank, order in orders.items()}
    found: dict[int, list[Any]] = {rank: [] for rank in orders}
    done: set[tuple[bool, int, int | None]] = set()
    while any(left.values()):
        ready = [rank for rank, rest in left.items() if rest and _is_ready(rest[-1], chunks, done)]
        assert ready, "the order of a schedule waits for itself"
        for rank in ready:
            action = left[rank].pop()
            found[rank].append(action)
            way = _WAYS.get(action.computation_type)
            if way is None:
                continue
            part, micro_batch = action.stage_index, action.microbatch_index
            done.add((way.step > 0, part, micro_batch))
            target = part + way.step
            if part % chunks != way.end % chunks and ranks[target] != rank:
                found[rank].append(_Action(part, way.send, micro_batch))
                found[ranks[target]].append(_Action(target, way.receive, micro_batch))
    return found


class _Way(NamedTuple):
    """Return the part that reads an action's result: the next or the previous; none at the end."""

    step: int
    end: int
    send: Any
    receive: Any


_FORWARD = _Way(1, -1, _ComputationType.SEND_F, _ComputationType.RECV_F)
_BACKWARD = _Way(-1, 0, _ComputationType.SEND_B, _ComputationType.RECV_B)
_WAYS = {
    _ComputationType.FORWARD: _FORWARD,
    _ComputationType.FULL_BACKWARD: _BACKWARD,
    _ComputationType.BACKWARD_INPUT: _BACKWARD,
}


def _is_ready(action: Any, chunks: int, done: set[tuple[bool, int, int | None]]) -> bool:
    """Return whether the input of an action was computed, on any rank."""
    way = _WAYS.get(action.computation_type)
    begin = None if way is None else (0 if way.step > 0 else chunks - 1)
    if way is None or action.stage_index % chunks == begin:
        return True
    source = action.stage_index - way.step
    return (way.step > 0, source, action.microbatch_index) in done


def as_stage(part: nn.Module, context: Callable[[], Any]) -> None:
    """Let a part of a model compute forward in a context, and exchange dense tensors.

    Args:
        part: As `PipelineStage` calls it.
    """
    whole = part.forward

    def forward(x: Tensor) -> Any:
        with context():
            # Messages need gradients in row-major layout.
            dense = crossed(x, lambda given: given.view_as(given), Tensor.contiguous)
            out = whole(dense).contiguous()
        # Split backward passes detach it in place, which views do not allow.
        return out.clone() if out._is_view() else out  # noqa: SLF001 - the one way to ask

    part.forward = forward


def joined(batches: Sequence[tuple[tuple[Tensor, ...], Tensor | None]]) -> Any:
    """Return the inputs and targets of micro-batches, one after another."""
    inputs = tuple(torch.cat(each) for each in zip(*(batch[0] for batch in batches), strict=True))
    targets = [batch[1] for batch in batches]
    return inputs, None if targets[0] is None else torch.cat(targets)
