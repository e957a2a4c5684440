"""Several training processes on one device: their number, samples and way of sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wattree.errors import StrategyError
from wattree.strategy.knob import knob

#: The processes of a device share the samples that one would have: the same optimization path.
FIXED_GLOBAL: Final = "fixed-global"
#: Each has as many samples as one alone, so the batch grows with their number.
FIXED_PER_PROCESS: Final = "fixed-per-process"
BATCH_RULES = (FIXED_GLOBAL, FIXED_PER_PROCESS)
#: Kernels of several processes run at once, as under NVIDIA's Multi-Process Service.
MPS: Final = "mps"
#: Processes take turns; their kernels never overlap.
TIME_SLICED: Final = "time-sliced"
DEVICE_SHARINGS = (MPS, TIME_SLICED)
_ALONE = "has no effect with processes_per_device 1: one process has the device; set it above 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Colocation:
    """Data-parallel processes on each device, whose gradients are first averaged on the device."""

    processes: int = knob(
        1,
        "a whole number, training processes on each device",
        key="processes_per_device",
    )
    batch_rule: str = knob(
        FIXED_GLOBAL,
        "'fixed-global' or 'fixed-per-process', whether the processes of a device "
        "share the batch of one or have as much each",
        choices=BATCH_RULES,
        in_schema=True,
        needs="colocation",
        idle=_ALONE,
    )
    sharing: str = knob(
        MPS,
        "'mps' or 'time-sliced', whether kernels of several processes run at once",
        key="device_sharing",
        choices=DEVICE_SHARINGS,
        in_schema=True,
        needs="colocation",
        idle=_ALONE,
    )

    @property
    def is_several(self) -> bool:
        """Whether there is more than one process on a device."""
        return self.processes > 1

    @property
    def shares_of_batch(self) -> int:
        """Number of parts into which the processes of a device divide its batch."""
        return self.processes if self.batch_rule == FIXED_GLOBAL else 1

    def process_batch(self, global_batch: int) -> int:
        """Return the samples of a step of one process on each device.

        Args:
            global_batch: As the job has it: of a step with one process on each device.

        Raises:
            StrategyError: The processes cannot share it evenly.
        """
        share, rest = divmod(global_batch, self.shares_of_batch)
        if rest or not share:
            raise StrategyError(
                {
                    "strategy.processes_per_device": f"found {self.processes} under the batch rule "
                    f"{self.batch_rule}, which share data.global_batch, {global_batch} samples; "
                    f"expected a number that divides it, or batch_rule: {FIXED_PER_PROCESS}"
                }
            )
        return share

    def samples(self, global_batch: int) -> int:
        """Return the samples of a step of all processes."""
        return self.process_batch(global_batch) * self.processes
