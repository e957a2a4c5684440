"""Short text of a strategy for rankings and sentences."""

from __future__ import annotations

import itertools
from typing import Final

from wattree.strategy.colocation import FIXED_GLOBAL, MPS, Colocation
from wattree.strategy.options import KNOBS, StrategyOptions
from wattree.strategy.phantom import ACTIVATIONS, PAIR
from wattree.strategy.traffic import Offload

#: What stands before the pipeline; other knobs stand behind it, in the order of their declaration.
_FIRST: Final = ("sharding", "context", "context_order", "sequence_parallel", "expert_over_tensor")


def schedule_in_words(name: str) -> str:
    """Return a pipeline schedule as papers spell it; jobs name it in small letters."""
    return {"1f1b": "1F1B", "gpipe": "GPipe"}.get(name, name)


def _placed(offload: Offload) -> list[str]:
    """Return the tensors stored in each memory tier behind the devices."""
    items = ("optimizer", "parameters", "activations", "tables", "overflow")
    by_tier = {
        tier: " + ".join(item for item in items if getattr(offload, item) == tier)
        for tier in offload.tiers
    }
    return [f"{placed} in {tier}" for tier, placed in by_tier.items()]


def options_in_words(options: StrategyOptions) -> str:
    """Return a short text of the options, omitting those that are off or 1."""
    has = options.present()
    phrase = {key: knob.in_words(options.value(key), has) for key, knob in KNOBS.items()}
    degrees = [f"{axis} {degree}" for axis, degree in options.degrees.items() if degree > 1]
    words = [" × ".join(degrees) or "1 device"]
    for key in _FIRST:
        words += phrase.pop(key)
    last = phrase.pop("recompute")
    words += _pipeline(options)
    words += _phantoms(options)
    words += itertools.chain.from_iterable(phrase.values())
    if options.colocation.is_several:
        words.append(_processes(options.colocation))
    words += _placed(options.traffic.offload)
    words.append(f"micro-batch {options.pipeline.micro_batch}")
    return ", ".join((*words, *last))


def _pipeline(options: StrategyOptions) -> list[str]:
    """Return the schedule, and the cut of the layers into stages."""
    pipeline, words = options.pipeline, []
    if options.pp > 1:
        chunks = f" × {pipeline.virtual_stages}" if pipeline.virtual_stages > 1 else ""
        words.append(schedule_in_words(pipeline.schedule) + chunks)
    if pipeline.stage_layers is not None:
        words.append(f"{'+'.join(map(str, pipeline.stage_layers))} layers")
    return words


def _phantoms(options: StrategyOptions) -> list[str]:
    """Return the phantom layers, if there are any."""
    phantoms = options.phantoms
    if not phantoms.enabled:
        return []
    found = [phantoms.variant] if phantoms.variant != PAIR else []
    found += ["exchanging activations"] if phantoms.exchange == ACTIVATIONS else []
    more = f" ({', '.join(found)})" if found else ""
    return [f"phantom layers of {phantoms.ghosts} ghosts{more}"]


def _processes(colocation: Colocation) -> str:
    """Return the number of processes per device, and their mode unless MPS with a shared batch."""
    found = f"{colocation.processes} processes a device"
    if colocation.sharing != MPS:
        found += " in turn"
    return found if colocation.batch_rule == FIXED_GLOBAL else f"{found}, each with a whole batch"
