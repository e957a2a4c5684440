"""How many processes a device should have, found by short trials of the job itself.

`measured` runs trials, `watch` counts steps in their processes, `ramp` chooses. `watch` alone needs
torch.
"""

from wattree.runtime.tune.ramp import Choice, RampLimits, TrialRow, TrialSetting, ramp
from wattree.runtime.tune.trial import Trial, accounts, trial_from

__all__ = [
    "Choice",
    "RampLimits",
    "Trial",
    "TrialRow",
    "TrialSetting",
    "accounts",
    "ramp",
    "trial_from",
]
