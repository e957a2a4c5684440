"""Input pipeline of a step: rate of each part, the bottleneck, and remedies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Parts of an input pipeline as people call them.
PART_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "storage": "reads from storage",
        "workers": "worker processes",
        "cores": "host cores",
        "copies": "copies to the devices",
        "decoder": "the devices' decoders",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialsFix:
    """The need of one part if the step is not to wait for it.

    Attributes:
        part: Part of the input pipeline.
        change: Description of the change.
        needed: Required amount: workers per device, cores per node, bytes or samples per second.
        found: Available amount.
    """

    part: str
    change: str
    needed: float
    found: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialsUse:
    """The input pipeline of a job in steady state.

    Attributes:
        samples_per_s: Part → its rate for the whole job: `storage`, `workers`,
            `cores`, `copies` and `decoder`, if the job uses them; and `step`, the rate of
            a step that does not wait.
        bound: The slowest part.
        is_input_bound: Whether the step waits for it.
        exposed_s: Time of a step that the job waits for its data. [s]
        first_batch_s: Time of the job's first micro-batch, before any is prefetched. [s]
        host_memory_bytes: Memory of prefetched batches on the fullest node. [B]
        fixes: The needs of all parts that are too slow.
    """

    samples_per_s: Mapping[str, float]
    bound: str
    is_input_bound: bool
    exposed_s: float
    first_batch_s: float
    host_memory_bytes: float
    fixes: tuple[MaterialsFix, ...] = ()
