"""How many processes a device should have, found by short trials of the job itself.

`measured` runs trials, `watch` counts steps in their processes, `ramp` chooses. `watch` alone needs
torch.
"""

from wattree.runtime.tune.ramp import Choice, Limits, Row, Setting, ramp
from wattree.runtime.tune.trial import TRIAL, Account, Trial, accounts, trial_from

__all__ = [
    "TRIAL",
    "Account",
    "Choice",
    "Limits",
    "Row",
    "Setting",
    "Trial",
    "accounts",
    "ramp",
    "trial_from",
]
