"""Numbers of a loader that remember that they were changed.

Libraries make a loader anew from one that a script made, with another sampler (Lightning does for
each rank): its batch and its workers are changed already, and must not be changed again.
"""


class ChangedNumber(int):
    """A number that was changed; arithmetic with it gives plain numbers."""
