"""Jobs that were estimated last, and what estimates of one job share."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from wattree.closed_form.strategies import Shared
from wattree.lowering.setting import Setting


@dataclass(frozen=True, slots=True)
class RecentJob:
    """A recent job, for any strategy, and the cache that its estimates share."""

    setting: Setting
    shared: Shared = field(default_factory=Shared)

    def is_for(self, setting: Setting) -> bool:
        """Whether another setting differs in nothing but the strategy and what that leaves open."""
        own, job = self.setting, self.setting.job
        if own.model is not setting.model or own.calibration is not setting.calibration:
            return False
        return job == replace(
            setting.job, strategy=job.strategy, left_open=job.left_open, assumed=job.assumed
        )


#: Jobs asked about last, those of the shortest past at the end.
_RECENT: deque[RecentJob] = deque(maxlen=4)


def recent(setting: Setting) -> RecentJob:
    """Return the cached values of a job."""
    for job in _RECENT:
        if job.is_for(setting):
            return job
    _RECENT.append(RecentJob(setting))
    return _RECENT[-1]
