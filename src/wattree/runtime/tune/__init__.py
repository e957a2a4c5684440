"""How many processes a device should have, found by short trials of the job itself.

`measured` runs trials, `watch` counts steps in their processes, `ramp` chooses. `watch` alone needs
torch.
"""

from wattree.runtime.tune.ramp import Choice, RampLimits, TrialRow, TrialSetting, ramp
from wattree.runtime.tune.trial import accounts

__all__ = [
    "Choice",
    "RampLimits",
    "TrialRow",
    "TrialSetting",
    "accounts",
    "ramp",
]
