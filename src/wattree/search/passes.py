"""Into how many micro-batches and chunks per stage searches cut a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattree.lowering.stages import stage_misfits
from wattree.predict import Setting
from wattree.search.limits import Limits
from wattree.strategy import Schedule
from wattree.strategy.presets import schedule_of_chunks

#: Micro-batches are divisors of a replica's share up to this many samples, ...
_EVERY_DIVISOR_UP_TO = 16
#: ... and powers of two up to this many, which only small models have memory for; samples that
#: are no sequences are small, so of them every power of two and the whole share.
_POWERS_OF_TWO_UP_TO = 256


def micro_batch_sizes(share: int, limits: Limits, setting: Setting) -> list[int]:
    """Return the sizes to try where each replica has `share` samples."""
    if limits.micro_batches is not None:
        return [size for size in limits.micro_batches if share % size == 0]
    if setting.decode is not None:  # a token of each sequence takes little memory
        return divisors(share)
    has_tokens = setting.has_tokens
    every = [d for d in range(1, min(share, _EVERY_DIVISOR_UP_TO) + 1) if share % d == 0]
    size = 2 * _EVERY_DIVISOR_UP_TO
    while size <= (_POWERS_OF_TWO_UP_TO if has_tokens else share) and share % size == 0:
        every.append(size)
        size *= 2
    return every if has_tokens or share == every[-1] else [*every, share]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def virtual_stages(stages: int, schedule: str, *, setting: Setting, limits: Limits) -> list[int]:
    """Return the numbers of chunks per stage that leave no chunk without work."""
    found = []
    wanted: Sequence[int] = range(1, (setting.model.layers + 2) // stages + 1)
    if stages == 1 or schedule not in {"1f1b", "breadth-first"}:
        wanted = (1,)
    elif limits.virtual_stages is not None:
        wanted = (1, *(v for v in limits.virtual_stages if v > 1))
    for virtual in wanted:
        name = schedule_of_chunks(schedule, virtual)
        # Without a pipeline the schedule does not matter, so such meshes are always listed.
        if stages > 1 and name not in limits.schedules:
            continue
        if stages > 1 and limits.offer is not None:
            is_uneven = setting.model.layers % (stages * virtual) != 0
            if not limits.offer.has("schedule", name) or (
                is_uneven and limits.offer.stages == "equal"
            ):
                continue
        if not stage_misfits(setting.model, stages, Schedule(name=name, virtual_stages=virtual)):
            found.append(virtual)
    return found
