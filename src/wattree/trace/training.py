"""Further results of a real run: losses, and what ranks sent. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattree.trace.run import StageUse


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUse:
    """A run of `train`.

    Attributes:
        steps: Steps since the first one, including those before the run was resumed.
        first_step: Step from which this process continued; 0 for a new run.
        measured_steps: Measured steps of this process, without its warm-up.
        losses: Loss of every step, over the whole batch and all ranks.
        loss: Mean of the last ten losses.
        target_loss: The loss to reach; None without one.
        target_step: Step at which it was reached; None if it was not.
        interrupted: Whether the run was asked to stop.
        stages: Stage → time and energy of a step, the mean over ranks. [s, J]
        sent_bytes: Payload that a rank sends in a step, the mean over ranks. [B]
        sent_by: Kind of collective → its part of `sent_bytes`. [B]
        collectives: Calls of a rank in a step.
        parameters_per_rank: Elements on a rank, the mean over ranks.
        launcher: The launcher of the ranks.
        processes_per_device: Ranks that share a device.
        batch_rule: Whether they divide its batch (`fixed-global`) or have one each
            (`fixed-per-process`).
        samples: Samples per step of all ranks; 0 if not set.
        learning_rate_scale: Factor on the job's learning rate.
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
