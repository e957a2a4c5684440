"""Features of training software; the facts are in `offers.yaml`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from wattree.files import read_yaml
from wattree.job.job import Data
from wattree.strategy import AXES, StrategyOptions

#: Schedules that `1f1b` stands for until the number of virtual stages is known.
_NAMELESS: Final = ("1f1b", "interleaved")


#: Key of a strategy → values that it may have.
_Choices = Mapping[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Features of one software family.

    Attributes:
        software: Family.
        version: Of the software that this was read of.
        source: Where.
        axes: Mesh axes that may be wider than 1.
        choices: Key of a strategy → values that it may have.
        together: Axis that is wider than 1 → what `choices` are then; any of several alternatives.
        whole_rounds: Interleaved pipelines need a multiple of their stages as micro-batches.
        needs: Axis → the feature that modules of a model must have for it.
    """

    software: str
    version: str
    source: str
    axes: tuple[str, ...] = AXES
    choices: _Choices = field(default_factory=dict)
    together: Mapping[str, Sequence[_Choices]] = field(default_factory=dict)
    whole_rounds: bool = False
    needs: Mapping[str, str] = field(default_factory=dict)

    def without(self, features: Collection[str]) -> Offer:
        """Return what it is for models whose modules lack some features."""
        axes = (axis for axis in self.axes if self.needs.get(axis) not in features)
        return replace(self, axes=tuple(axes))

    def has(self, key: str, value: object) -> bool:
        """Return whether a key may have a value at any degrees."""
        family = "block" if isinstance(value, str) and value.startswith("block_") else value
        return key not in self.choices or family in self.choices[key]

    def has_options(self, options: StrategyOptions) -> bool:
        """Return whether options can be chosen at all; their degrees are not looked at."""
        return all(
            any(self.has(key, name) for name in _NAMELESS)
            if key == "schedule" and options.value(key) in _NAMELESS
            else self.has(key, options.value(key))
            for key in self.choices
        )

    def excludes(self, options: StrategyOptions, axis: str, *, holders: bool = True) -> bool:
        """Return whether an axis must not be wider than 1 with such options.

        Args:
            options: The options.
            axis: The axis.
            holders: Several ranks hold the same state, so that its sharding says anything.
        """
        if axis not in self.axes:
            return True
        return not any(
            all(
                options.value(key) in values
                for key, values in also.items()
                if holders or key != "sharding"
            )
            for also in self.together.get(axis, ({},))
        )

    def leaves_a_rest(self, options: StrategyOptions, global_batch: int) -> bool:
        """Return whether a pipeline has other micro-batches than interleaving takes."""
        samples = options.replicas * options.pipeline.micro_batch * options.pp
        return self.whole_rounds and global_batch % samples != 0

    def lacks(
        self, options: StrategyOptions, *, left: Collection[str] = (), global_batch: int = 0
    ) -> tuple[str, ...]:
        """Return the features that the software lacks for a strategy, in words, each once.

        Args:
            options: The strategy.
            left: Keys that it leaves to the software.
            global_batch: Samples of a step; 0 where they are not to be looked at.
        """
        present = options.present()
        wide = [axis for axis in AXES if present[axis]]
        found = [f"{axis} above 1" for axis in wide if axis not in self.axes]
        asked = {
            key: options.value(key)
            for key in self.choices
            if key not in left and _means(key, present)
        }
        found += [f"{key} {value}" for key, value in asked.items() if not self.has(key, value)]
        for axis in wide:
            unmet: list[tuple[str, ...]] = [
                tuple(
                    f"{key} {str(options.value(key)).lower()} with {axis} above 1"
                    for key, values in also.items()
                    if key not in left and _means(key, present) and options.value(key) not in values
                )
                for also in self.together.get(axis, ({},))
            ]
            fewest = min(unmet, key=len)
            found += fewest
        if options.pipeline.virtual_stages > 1 and self.leaves_a_rest(options, global_batch):
            found.append(
                "virtual_stages above 1 with a number of micro-batches that is no multiple of pp "
                f"{options.pp}"
            )
        return tuple(dict.fromkeys(found))


def _means(key: str, present: Mapping[str, bool]) -> bool:
    """Return whether a key says anything with such degrees."""
    needed = {"context": "cp", "schedule": "pp", "sharding": "holders", "sequence_parallel": "tp"}
    return key not in needed or present[needed[key]]


def lacking(
    strategy: object, software: object, left: tuple[str, ...], data: Data | None
) -> list[tuple[str, Offer]]:
    """Return what of a strategy the software that a job names cannot run, in words.

    Args:
        strategy: Of the job.
        software: As the job names it.
        left: Keys that it leaves to the software.
        data: What a step consumes; None if it is at fault.
    """
    offer = offer_of(software) if isinstance(software, str) else None
    if offer is None or not isinstance(strategy, StrategyOptions):
        return []
    left += ("recompute",) if "selective" in left else ()  # what it means is the software's
    batch = 0 if data is None else data.global_batch
    return [
        (f"{missing} is not offered by {offer.software} {offer.version}", offer)
        for missing in offer.lacks(strategy, left=left, global_batch=batch)
    ]


def offer_of(software: str) -> Offer | None:
    """Return the features of a software family; None where no limitation is known."""
    return _offers().get(software)


@cache
def _offers() -> Mapping[str, Offer]:
    entries: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name("offers.yaml"))
    found = {}
    for name, entry in entries.items():
        facts = {**entries.get(entry.get("like", ""), {}), **entry}
        known = {key: facts.pop(key) for key in ("version", "source")}
        axes, also = tuple(facts.pop("axes")), facts.pop("with", {})
        needs, rounds = facts.pop("needs", {}), facts.pop("whole_rounds", False)
        facts.pop("like", None)
        found[name] = Offer(
            software=name,
            **known,
            axes=axes,
            needs=needs,
            whole_rounds=rounds,
            choices={key: tuple(values) for key, values in facts.items()},
            together={
                axis: [
                    {key: tuple(values) for key, values in keys.items()}
                    for keys in (given if isinstance(given, list) else [given])
                ]
                for axis, given in also.items()
            },
        )
    return found
