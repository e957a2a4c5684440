"""The loop of one rank: steps, exchanges of losses, checkpoints, and the end."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wattree.errors import RunError
from wattree.runtime.data import Batch
from wattree.runtime.train.health import broken_loss, is_out_of_memory, out_of_memory
from wattree.runtime.train.learner import Learner
from wattree.runtime.train.losses import LossAgreement, LossLog
from wattree.runtime.train.progress import Progress
from wattree.runtime.train.record import SpanRecorder
from wattree.runtime.train.saving import Saving
from wattree.runtime.train.session import RankSession
from wattree.runtime.train.stop import StopAsked

#: Steps over whose mean loss the target is to be reached.
TARGET_OVER = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnd:
    """How a loop ended.

    Attributes:
        step: Steps that are done, those before it was resumed included.
        losses: Of every step from the first on, over the whole batch.
        interrupted: Whether it was asked to stop.
        reached: Steps after which the target was reached; None if it was not, or there is none.
    """

    step: int
    losses: tuple[float, ...]
    interrupted: bool = False
    reached: int | None = None


class Loop:
    """Trains one rank from a step to the last.

    Args:
        log: Losses of steps.
        progress: The line of rank 0.
        power: Power of this rank's meters [W], and whether some of it is estimated.
        measured: Called once the first `warm_up` steps of this run are done.
        warm_up: Steps that are not measured.
    """

    def __init__(
        self,
        learner: Learner,
        session: RankSession,
        *,
        saving: Saving,
        log: LossLog,
        recorder: SpanRecorder,
        progress: Progress,
        power: Callable[[], tuple[float | None, bool]],
        measured: Callable[[], None],
        warm_up: int,
    ) -> None:
        self._learner, self._session, self._saving = learner, session, saving
        self._log, self._recorder, self._progress = log, recorder, progress
        self._power, self._measured, self._warm_up = power, measured, warm_up
        self._parts: list[Tensor] = []

    def run(
        self,
        batches: Iterator[Batch],
        *,
        first: int,
        last: int,
        target: float | None,
        stop: StopAsked,
    ) -> LoopEnd:
        """Train from step `first` to `last`, or until the target or a wish to stop.

        Raises:
            RunError: The loss is no number, or memory ran out.
            OutputError: A checkpoint cannot be written.
        """
        step, interrupted, reached = first, False, None
        while step < last and not interrupted and reached is None:
            inputs = self._step(batches, step)
            step += 1
            if step - first == self._warm_up:
                self._measured()
            is_saved = self._saving.is_due(step)
            if not (self._log.is_due or is_saved or step == last):
                continue
            agreed = self._talk(step, inputs, stop)
            reached = self._reached(target, len(agreed.losses))
            interrupted = agreed.stop and step < last
            if is_saved or interrupted or step == last or reached is not None:
                self._save(step)
        return LoopEnd(
            step=step, losses=tuple(self._log.losses), interrupted=interrupted, reached=reached
        )

    def _step(self, batches: Iterator[Batch], step: int) -> tuple[Tensor, ...]:
        try:
            part, inputs = self._learner.step(batches, self._recorder.phase, self._recorder.mark)
        except Exception as error:
            if is_out_of_memory(error):
                raise out_of_memory(
                    error, self._learner.module, self._session.rank, step
                ) from error
            raise
        self._recorder.next_step()
        self._log.add(part)
        self._parts.append(part)
        return inputs

    def _talk(self, step: int, inputs: tuple[Tensor, ...], stop: StopAsked) -> LossAgreement:
        watts, is_estimate = self._power()
        agreed = self._log.talk(
            stop=stop.asked, power_w=watts or 0.0, is_estimate=is_estimate and watts is not None
        )
        parts, self._parts = [float(part) for part in self._parts], []
        if not all(map(math.isfinite, agreed.losses)):
            raise self._broken(agreed, parts, step, inputs)
        if self._session.rank == 0:
            self._progress.report(step, agreed)
        return agreed

    def _broken(
        self, agreed: LossAgreement, parts: list[float], step: int, inputs: tuple[Tensor, ...]
    ) -> RunError:
        return broken_loss(
            list(agreed.losses),
            parts,
            first=step - len(parts),
            module=self._learner.module,
            inputs=inputs,
            control=self._session.control,
            is_staged=self._session.recipe.options.pp > 1,
        )

    def _reached(self, target: float | None, fresh: int) -> int | None:
        """Return the step after which the mean of the last losses was at the target."""
        losses = self._log.losses
        if target is None:
            return None
        for end in range(max(len(losses) - fresh + 1, TARGET_OVER), len(losses) + 1):
            if statistics.fmean(losses[end - TARGET_OVER : end]) <= target:
                return end
        return None

    def _save(self, step: int) -> Any:
        place = self._saving.save(step, self._log.losses)
        if place is not None and self._session.rank == 0:
            self._progress.say(f"step {step}: saved to {place}")
        return place
