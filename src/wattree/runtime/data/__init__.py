"""Training data: bundled, synthetic and user sets, and the order of their samples."""

from wattree.runtime.data.loader import Batch
from wattree.runtime.data.sets import SampleSet, Wanted, WantedKind, sample_set

__all__ = [
    "Batch",
    "SampleSet",
    "Wanted",
    "WantedKind",
    "sample_set",
]
