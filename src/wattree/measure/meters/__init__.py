"""The meters, one kind per file. Importing this module fills the registry `METERS`."""

from wattree.measure.meters.amd import AmdMeter
from wattree.measure.meters.apple import AppleMeter
from wattree.measure.meters.csv_file import CsvMeter
from wattree.measure.meters.estimate import EstimateMeter
from wattree.measure.meters.nvml import NvmlMeter
from wattree.measure.meters.powercap import PowercapMeter
from wattree.measure.meters.processor_time import ProcessorTimeMeter
from wattree.measure.meters.replay import ReplayMeter

__all__ = [
    "AmdMeter",
    "AppleMeter",
    "CsvMeter",
    "EstimateMeter",
    "NvmlMeter",
    "PowercapMeter",
    "ProcessorTimeMeter",
    "ReplayMeter",
]
