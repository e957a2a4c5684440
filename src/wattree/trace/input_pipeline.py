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
    """What one part would need for the step not to wait for it.

    Attributes:
        part: Of the input pipeline.
        change: In words.
        needed: How much of it: workers per device, cores per node, bytes or samples per second.
        found: What there is.
    """

    part: str
    change: str
    needed: float
    found: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterialsUse:
    """The input pipeline of a job in steady state.

    Attributes:
        samples_per_s: Part → what the whole job could be given by it alone: `storage`, `workers`,
            `cores`, `copies` and `decoder`, as far as the job uses them; and `step`, what the
            step would take if it waited for none.
        bound: The slowest part.
        is_input_bound: Whether the step waits for it.
        exposed_s: What of a step the job waits for its data. [s]
        first_batch_s: What the first micro-batch of the job takes, before any is made ahead. [s]
        host_memory_bytes: Of batches made ahead on the fullest node. [B]
        fixes: What each part that is too slow would need.
    """

    samples_per_s: Mapping[str, float]
    bound: str
    is_input_bound: bool
    exposed_s: float
    first_batch_s: float
    host_memory_bytes: float
    fixes: tuple[MaterialsFix, ...] = ()
