"""Training data: bundled, synthetic and user sets, and the order of their samples."""

from wattree.runtime.data.given import given_set
from wattree.runtime.data.loader import Batch, MicroBatches
from wattree.runtime.data.sets import SampleSet, Wanted, WantedKind, sample_set

__all__ = [
    "Batch",
    "MicroBatches",
    "SampleSet",
    "Wanted",
    "WantedKind",
    "given_set",
    "sample_set",
]
