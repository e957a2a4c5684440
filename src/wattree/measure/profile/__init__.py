"""Micro-benchmarks of this machine, and the constants derived from them.

Points (`points.py`) are run by PyTorch (`operations.py`) in one process per rank (`worker.py`,
`crew.py`), round by round (`session.py`), each written down at once (`journal.py`). Families of
points (`families.py`) are fitted by the cost models' own formulas (`fit.py`), and written as a
calibration, a device and a node (`write.py`). Nothing here loads torch before a machine is
measured.
"""

from wattree.measure.profile.profile import MachineProfile, profile_machine

__all__ = ["MachineProfile", "profile_machine"]
