"""Meters and windows: measure the energy of programs on this machine, as a `Run`.

`measure_command` measures a program from outside, `Stages` the three stages of a training loop
from within. Nothing here loads torch or a driver's library before it is needed.
"""

from wattree.measure.discovery import find_meters
from wattree.measure.measured import Measured, RunLabels, measure_command, measure_idle
from wattree.measure.meter import METERS, Meter, MeterOptions
from wattree.measure.stages import Stages
from wattree.measure.window import Window

__all__ = [
    "METERS",
    "Measured",
    "Meter",
    "MeterOptions",
    "RunLabels",
    "Stages",
    "Window",
    "find_meters",
    "measure_command",
    "measure_idle",
]
