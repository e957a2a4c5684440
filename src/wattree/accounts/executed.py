"""The input of every account: a step that was compiled and executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattree.accounts.bill import occupied_nodes
from wattree.hardware import Cluster
from wattree.job import Job
from wattree.lowering.setting import Setting
from wattree.strategy import Strategy
from wattree.trace import Trace

if TYPE_CHECKING:
    from wattree.compiler import Compilation


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedStep:
    """A step of a job.

    Attributes:
        setting: What all strategies of the job share.
        spilled: Share of what is on the devices that overflowed to expanded memory.
        detail: Whether the trace has a task per operator.
        compile_s, run_s: Time of the compiler and of the executor. [s]
    """

    setting: Setting
    strategy: Strategy
    compilation: Compilation
    trace: Trace
    spilled: float = 0.0
    detail: bool = True
    compile_s: float = 0.0
    run_s: float = 0.0

    @property
    def job(self) -> Job:
        """The job."""
        return self.setting.job

    @property
    def cluster(self) -> Cluster:
        """The cluster that it runs on."""
        return self.setting.job.cluster

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.strategy.ranks

    @property
    def step_s(self) -> float:
        """Time of the step. [s]"""
        return self.trace.makespan_s

    @property
    def nodes(self) -> tuple[float, ...]:
        """Nodes of each pool that the job pays for."""
        return occupied_nodes(self.job, self.ranks)

    @property
    def batch(self) -> int:
        """Samples of the step, of all processes of a device."""
        return self.strategy.colocation.samples(self.job.data.global_batch)

    @property
    def loaded(self) -> float:
        """Micro-batches that a rank loads."""
        schedule = self.strategy.schedule
        return schedule.micro_batches / schedule.placed(self.strategy.stages).copies
