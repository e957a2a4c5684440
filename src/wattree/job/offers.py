"""Features of training software; the facts are in `offers.yaml`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any, Final

from wattree.cost import software_family
from wattree.files import read_yaml
from wattree.hardware import Cluster
from wattree.job.job import Data
from wattree.job.pipelines import UNCOMPILED, broken_needs, runs_pipeline
from wattree.strategy import AXES, MODULES, SAVES, StrategyOptions
from wattree.strategy.presets import schedule_of_chunks

#: Schedules that `1f1b` stands for until the number of virtual stages is known.
_NAMELESS: Final = ("1f1b", "interleaved")
#: Axes that split the model, and whose combinations some software lacks.
_SPLITTING: Final = ("tp", "cp", "pp", "ep")
#: What is said of features that a search leaves out.
NOT_TRIED: Final = "not tried, because the software cannot run it"
#: What offers distinguish besides the degrees of a strategy.
EXPERTS: Final = "experts"
BIASED_EXPERTS: Final = "biased_experts"
BASE_INT8: Final = "base_int8"
COMPILED: Final = "compiled"
HYBRIDS: Final = "hybrids"
_CONDITIONS: Final[tuple[str, ...]] = (EXPERTS, BIASED_EXPERTS, BASE_INT8, "tpu", "bf16")

#: Key of a strategy → values that it may have.
_Choices = Mapping[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Features of one software family.

    Attributes:
        version: Of the software that this was read of.
        axes: Mesh axes that may be wider than 1.
        choices: Key of a strategy → values that it may have.
        together: Axis that is wider than 1 → what `choices` are then; any of several alternatives.
        under: Condition, such as experts → what else holds of `together` then.
        alone: Axes that do not combine with others that split the model.
        pipelines: Schedule → what it needs (`pipelines.py`).
        stages: Layers of stages: `any`, as `even` as can be, or `equal`.
        needs: Axis → the feature that modules of a model must have for it.
        missing: Axis → families of models that are written without it.
        hybrids: `stages` and `choices` that are others for models with state-space layers.
        devices: Kinds of devices that it runs on; empty: not known.
        optimizers: That it has settings for; empty: any.
        host: What waits in host memory where optimizer state does.
    """

    software: str
    version: str
    source: str
    axes: tuple[str, ...] = AXES
    choices: _Choices = field(default_factory=dict)
    together: Mapping[str, Sequence[_Choices]] = field(default_factory=dict)
    under: Mapping[str, Mapping[str, Sequence[_Choices]]] = field(default_factory=dict)
    alone: tuple[str, ...] = ()
    pipelines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stages: str = "any"
    needs: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)
    hybrids: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    host: tuple[str, ...] = ("optimizer",)

    def narrowed(
        self, *, architecture: str, absent: Collection[str], conditions: AbstractSet[str]
    ) -> Offer:
        """Return what it is for one model on one kind of device.

        Args:
            absent: Features that its modules lack.
            conditions: Which keys of `under` hold, and whether modules are `COMPILED`.
        """
        together = dict(self.together)
        given = (self.under[each].items() for each in conditions & self.under.keys())
        for axis, ways in chain.from_iterable(given):
            both = [_both(*each) for each in product(together.get(axis, ({},)), ways)]
            together[axis] = [each for each in both if all(each.values())] or both
        axes = tuple(
            axis
            for axis in self.axes
            if self.needs.get(axis) not in absent and architecture not in self.missing.get(axis, ())
        )
        choices = dict(self.choices)
        if COMPILED in conditions and "schedule" in choices:
            choices["schedule"] = tuple(
                each
                for each in choices["schedule"]
                if UNCOMPILED not in self.pipelines.get(str(each), ())
            )
        stages = self.stages
        if HYBRIDS in conditions and self.hybrids:
            own = dict(self.hybrids)
            stages = str(own.pop("stages", stages))
            choices |= {key: tuple(values) for key, values in own.items()}
        return replace(self, axes=axes, together=together, choices=choices, stages=stages)

    def has(self, key: str, value: object) -> bool:
        """Return whether a key may have a value at any degrees."""
        family = value
        if isinstance(value, str) and value.startswith(("block_", MODULES, SAVES)):
            family = value.partition("_")[0]
        return key not in self.choices or family in self.choices[key]

    def has_options(self, options: StrategyOptions) -> bool:
        """Return whether options can be chosen at some degrees.

        Without a pipeline they have the schedule `1f1b`, which then says nothing.
        """
        return all(
            (key == "schedule" and options.value(key) in _NAMELESS)
            or self.has(key, options.value(key))
            for key in self.choices
        )

    def excludes(self, options: StrategyOptions, axis: str, *, holders: bool = True) -> bool:
        """Return whether an axis must not be wider than 1 with such options.

        Args:
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

    def runs_pipelines(
        self, schedule: str, stages: Any, virtual_stages: int, micro_batches: Any
    ) -> Any:
        """Return whether a schedule has what it needs (`runs_pipeline`)."""
        needs = self.pipelines.get(schedule, ())
        return runs_pipeline(needs, schedule, stages, virtual_stages, micro_batches)

    def lacks(
        self,
        options: StrategyOptions,
        *,
        left: Collection[str] = (),
        global_batch: int = 0,
        layers: int = 0,
    ) -> tuple[str, ...]:
        """Return the features that the software lacks for a strategy, in words, each once.

        Args:
            left: Keys that it leaves to the software.
            global_batch: Samples of a step; 0 where they are not to be looked at.
            layers: Of the model; likewise.
        """
        present = options.present()
        wide = [axis for axis in AXES if present[axis]]
        found = [f"{axis} above 1" for axis in wide if axis not in self.axes]
        asked = {
            key: options.value(key)
            for key in self.choices
            if key not in left and _means(key, present)
        }
        absent = {key: value for key, value in asked.items() if not self.has(key, value)}
        found += [self.in_words(key, value) for key, value in absent.items()]
        left = {*left, *absent}  # said once, not again of an axis
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
        split = [axis for axis in wide if axis in _SPLITTING]
        found += [
            f"{axis} above 1 with {' and '.join(other for other in split if other != axis)} above 1"
            for axis in split
            if axis in self.alone and len(split) > 1
        ]
        found += self._lacks_of_pipelines(options, global_batch, layers)
        return tuple(dict.fromkeys(found))

    def _lacks_of_pipelines(
        self, options: StrategyOptions, global_batch: int, layers: int
    ) -> Iterator[str]:
        pipeline = options.pipeline
        if options.pp == 1:
            return
        if pipeline.stage_layers is not None and self.stages != "any":
            yield f"stage_layers other than {self.stages}"
        elif self.stages == "equal" and layers % (chunks := options.pp * pipeline.virtual_stages):
            yield f"pp {options.pp} with {layers} layers in {chunks} unequal chunks"
        schedule = schedule_of_chunks(pipeline.schedule, pipeline.virtual_stages)
        micro_batches = global_batch // (options.replicas * pipeline.micro_batch)
        if micro_batches:
            needs, sizes = self.pipelines.get(schedule, ()), (options.pp, pipeline.virtual_stages)
            for each in broken_needs(needs, schedule, *sizes, micro_batches):
                yield f"schedule {schedule} with {each}"

    def in_words(self, key: str, *values: object) -> str:
        """Return values that a key cannot have, and under which condition."""
        known = [UNCOMPILED in self.pipelines.get(str(value), ()) for value in values]
        under = " with compile: true" if key == "schedule" and all(known) else ""
        return f"{key} {' or '.join(map(str, values))}{under}"


def _both(one: _Choices, other: _Choices) -> _Choices:
    """Return the values that two alternatives leave of each key."""
    common = {
        key: tuple(value for value in values if value in one.get(key, values))
        for key, values in other.items()
    }
    return {**one, **common}


def _means(key: str, present: Mapping[str, bool]) -> bool:
    """Return whether a key says anything with such degrees."""
    needed = {"context": "cp", "schedule": "pp", "sharding": "holders", "sequence_parallel": "tp"}
    return key not in needed or present[needed[key]]


def lacking(
    strategy: object,
    software: object,
    left: tuple[str, ...],
    data: Data | None,
    *,
    traits: Mapping[str, Any],
) -> list[tuple[str, Offer]]:
    """Return what of a strategy the software that a job names cannot run, in words.

    Args:
        left: Keys that it leaves to the software.
        data: What a step consumes; None if it is at fault.
        traits: That it states.
    """
    offer = offer_of(software) if isinstance(software, str) else None
    if offer is None or not isinstance(strategy, StrategyOptions):
        return []
    if traits.get("compiled", software_family(offer.software).compiled):
        offer = offer.narrowed(architecture="", absent=(), conditions={COMPILED})
    left = left_to_software(left)
    batch = 0 if data is None else data.global_batch
    return [
        (f"{missing} is not offered by {offer.software} {offer.version}", offer)
        for missing in offer.lacks(strategy, left=left, global_batch=batch)
    ]


def left_to_software(left: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys of a strategy whose values the software says, of those that it leaves."""
    return (*left, "recompute") if "selective" in left else left


def foreign_device(software: object, cluster: Cluster | None) -> str:
    """Return that a cluster's devices are none that a software family runs on; empty if they are.

    Args:
        cluster: Of the job; None if it is at fault.
    """
    offer = offer_of(software) if isinstance(software, str) else None
    if offer is None or cluster is None or not offer.devices:
        return ""
    devices = {pool.node.device.name: pool.node.device.kind for pool in cluster.pools}
    foreign = [f"{name} ({kind})" for name, kind in devices.items() if kind not in offer.devices]
    if not foreign:
        return ""
    known = " and ".join(offer.devices)
    return f"{offer.software} {offer.version} runs on {known}, not on {', '.join(foreign)}"


def offer_of(software: str) -> Offer | None:
    """Return the features of a software family; None where no limitation is known."""
    return _offers().get(software)


@cache
def _offers() -> Mapping[str, Offer]:
    entries: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name("offers.yaml"))
    found = {}
    for name, entry in entries.items():
        facts = {**entries.get(entry.get("like", ""), {}), **entry}
        facts.pop("like", None)
        known: dict[str, Any] = {key: facts.pop(key) for key in _PLAIN if key in facts}
        known |= {key: tuple(facts.pop(key)) for key in _LISTS if key in facts}
        found[name] = Offer(
            software=name,
            missing=facts.pop("lacks", {}),
            together=_ways(facts.pop("with", {})),
            under={each: _ways(facts.pop(each)) for each in _CONDITIONS if each in facts},
            **known,
            choices={key: tuple(values) for key, values in facts.items()},
        )
    return found


#: Keys of an entry that are attributes as they stand, and those that are lists of words.
_PLAIN: Final = ("version", "source", "stages", "needs", "pipelines", "hybrids")
_LISTS: Final = ("axes", "alone", "devices", "optimizers", "host")


def _ways(given: Mapping[str, Any]) -> dict[str, list[_Choices]]:
    """Return axis → alternatives, of which the file has one or a list."""
    return {
        axis: [
            {key: tuple(values) for key, values in keys.items()}
            for keys in (ways if isinstance(ways, list) else [ways])
        ]
        for axis, ways in given.items()
    }
