"""Further results of a real run: losses, and what ranks sent. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattree.trace.run import StageUse


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUse:
    """A run of `train`.

    Attributes:
        steps: Done since the first one, those before it was resumed included.
        first_step: Step from which this process went on; 0 if it began anew.
        measured_steps: Of this process, without those of its warm-up, which are not measured.
        losses: Of every step, over the whole batch and all ranks.
        loss: Mean of the last ten.
        target_loss: What was to be reached; None if nothing was.
        target_step: Step after which it was; None if it was not.
        interrupted: Whether the run was asked to stop.
        stages: Stage → time and energy of a step, the mean over ranks. [s, J]
        sent_bytes: Payload that a rank sends in a step, the mean over ranks. [B]
        sent_by: Kind of collective → its part of that. [B]
        collectives: Calls of a rank in a step.
        parameters_per_rank: Elements that a rank holds, the mean over ranks.
        launcher: Who started the ranks.
        processes_per_device: Ranks that share a device.
        batch_rule: Whether they divide its batch (`fixed-global`) or have one each
            (`fixed-per-process`).
        samples: Of a step of all ranks; 0 where nothing was set.
        learning_rate_scale: What the job's learning rate was multiplied by.
    """

    steps: int
    first_step: int
    measured_steps: int
    losses: tuple[float, ...]
    loss: float
    target_loss: float | None = None
    target_step: int | None = None
    interrupted: bool = False
    stages: Mapping[str, StageUse] = field(default_factory=dict)
    sent_bytes: float = 0.0
    sent_by: Mapping[str, float] = field(default_factory=dict)
    collectives: float = 0.0
    parameters_per_rank: float = 0.0
    launcher: str = ""
    processes_per_device: int = 1
    batch_rule: str = "fixed-global"
    samples: int = 0
    learning_rate_scale: float = 1.0
