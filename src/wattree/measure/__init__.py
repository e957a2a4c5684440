"""Meters and windows: measure the energy of programs on this machine, as a `Run`.

`measure_command` measures a program from outside, `Stages` the three stages of a training loop
from within. Nothing here loads torch or a driver's library before it is needed.
"""

from wattree.measure.command import CommandEnd, run_command
from wattree.measure.discovery import find_meters
from wattree.measure.measured import Measured, RunLabels, measure_command, measure_idle
from wattree.measure.meter import METERS, Domain, Meter, MeterOptions, Meters, Quantity, Reading
from wattree.measure.stages import Stages
from wattree.measure.track import Track, unwrapped_step_j
from wattree.measure.window import Window, WindowReading

__all__ = [
    "METERS",
    "CommandEnd",
    "Domain",
    "Measured",
    "Meter",
    "MeterOptions",
    "Meters",
    "Quantity",
    "Reading",
    "RunLabels",
    "Stages",
    "Track",
    "Window",
    "WindowReading",
    "find_meters",
    "measure_command",
    "measure_idle",
    "run_command",
    "unwrapped_step_j",
]
