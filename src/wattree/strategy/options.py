"""Options of the presets: one value, composed of specs by subject."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from wattree.errors import StrategyError, did_you_mean
from wattree.strategy.colocation import Colocation
from wattree.strategy.expert_load import ExpertLoad
from wattree.strategy.knob import Knob, fields_by_key, knobs_of
from wattree.strategy.mesh import AXES
from wattree.strategy.phantom import ACTIVATIONS, SHARED
from wattree.strategy.specs import (
    MODULES,
    RECOMPUTATIONS,
    RECOMPUTED_MODULES,
    SAVED_OUTPUTS,
    SAVES,
    SPATIAL,
    MemoryOptions,
    ParallelismOptions,
    PhantomOptions,
    PipelineOptions,
    recomputed_modules,
    saved_outputs,
)
from wattree.strategy.traffic import Traffic


@dataclass(frozen=True, slots=True, init=False)
class StrategyOptions:
    """Degrees and options of the combined presets.

    Made of keys as job files have them, over the specs that are given: `StrategyOptions(tp=2)`.

    Attributes:
        parallelism: Degrees, and what is split over them.
        pipeline: Micro-batches, and their schedule.
        memory: What is stored of the model's state, and what is computed again.
        phantoms: Phantom layers.
        colocation: Processes on each device.
    """

    parallelism: ParallelismOptions
    pipeline: PipelineOptions
    memory: MemoryOptions
    phantoms: PhantomOptions
    traffic: Traffic
    colocation: Colocation

    def __init__(self, **keys: Any) -> None:
        changes: dict[str, dict[str, Any]] = {name: {} for name in _USUAL}
        specs = {name: keys.pop(name, usual) for name, usual in _USUAL.items()}
        if unknown := keys.keys() - _PLACES.keys():
            raise StrategyError({f"strategy.{key}": _unknown(key) for key in unknown})
        for key, value in keys.items():
            spec, name = _PLACES[key]
            changes[spec][name] = value
        for name, spec in specs.items():
            whole = replace(spec, **changes[name]) if changes[name] else spec
            object.__setattr__(self, name, whole)
        _check(self)

    def changed(self, **keys: Any) -> StrategyOptions:
        """Return a copy with other values of job-file keys, or other specs."""
        return StrategyOptions(**{name: getattr(self, name) for name in _USUAL} | keys)

    def value(self, key: str) -> Any:
        """Return the value of a key of job files."""
        spec, name = _PLACES[key]
        return getattr(getattr(self, spec), name)

    @property
    def degrees(self) -> dict[str, int]:
        """Axis → degree of every axis, outermost first."""
        return {axis: self.value(axis) for axis in AXES}

    def chosen(self) -> dict[str, Any]:
        """Return the job-file keys with values other than the default."""
        values = {key: self.value(key) for key in KNOBS}
        return {key: value for key, value in values.items() if value != KNOBS[key].default}

    def present(self) -> dict[str, bool]:
        """Return whether the requirement of knobs with this name in `Knob.needs` is met."""
        holders = self.replicas * self.cp  # of the same parameters
        return {
            **{axis: degree > 1 for axis, degree in self.degrees.items()},
            "replicas": self.replicas > 1,
            "holders": holders > 1,
            "reductions": holders * self.tp > 1,
            "shards": self.memory.sharding != "none" and holders > 1,
            "colocation": self.colocation.is_several,
        }

    @property
    def dp(self) -> int:
        """Degree of data parallelism."""
        return self.parallelism.dp

    @property
    def fsdp(self) -> int:
        """Degree of sharded data parallelism."""
        return self.parallelism.fsdp

    @property
    def tp(self) -> int:
        """Degree of tensor parallelism."""
        return self.parallelism.tp

    @property
    def cp(self) -> int:
        """Degree of context parallelism."""
        return self.parallelism.cp

    @property
    def pp(self) -> int:
        """Degree of pipeline parallelism."""
        return self.parallelism.pp

    @property
    def ep(self) -> int:
        """Degree of expert parallelism."""
        return self.parallelism.ep

    @property
    def expert_load(self) -> ExpertLoad | None:
        """Tokens of each rank's experts; None: all the same."""
        return self.parallelism.expert_load

    @property
    def single_process(self) -> bool:
        """Whether one process drives all devices."""
        return self.parallelism.single_process

    @property
    def ranks(self) -> int:
        """Ranks of the mesh."""
        return self.replicas * self.cp * self.tp * self.pp

    @property
    def replicas(self) -> int:
        """Model replicas that see different samples."""
        return self.dp * self.fsdp * self.ep


_USUAL: Final[Mapping[str, Any]] = {
    "parallelism": ParallelismOptions(),
    "pipeline": PipelineOptions(),
    "memory": MemoryOptions(),
    "phantoms": PhantomOptions(),
    "traffic": Traffic(),
    "colocation": Colocation(),
}
#: Every so manieth block: no models have more of them, and Python reads no longer numbers.
_BLOCK_SHARE: Final = re.compile(r"block_[1-9][0-9]{0,5}")
#: Every key of job files, and what it declares.
KNOBS: Final[Mapping[str, Knob]] = {
    key: knob for usual in _USUAL.values() for key, knob in knobs_of(usual.__class__).items()
}
#: Key, or name of a field that is no knob → its spec and its field.
_PLACES: Final[Mapping[str, tuple[str, str]]] = {
    key: (spec, name)
    for spec, usual in _USUAL.items()
    for key, name in fields_by_key(usual.__class__).items()
}
#: Spec → key, field and knob of each of its knobs that not every value suits.
_LIMITED: Final[Mapping[str, Sequence[tuple[str, str, Knob]]]] = {
    spec: [
        (key, _PLACES[key][1], knob)
        for key, knob in KNOBS.items()
        if _PLACES[key][0] == spec and (knob.kind is int or knob.choices)
    ]
    for spec in _USUAL
}


def _unknown(key: str) -> str:
    hint = did_you_mean(key, _PLACES)
    return f"unknown; {hint}known: {', '.join(sorted(_PLACES))}"


def _value_misfits(options: StrategyOptions) -> dict[str, str]:
    """Return the knobs with invalid values; values of default specs are valid."""
    misfits: dict[str, str] = {}
    for spec, knobs in _LIMITED.items():
        if (whole := getattr(options, spec)) is _USUAL[spec]:
            continue
        for key, name, knob in knobs:
            value = getattr(whole, name)
            if knob.kind is int and (
                not isinstance(value, int) or isinstance(value, bool) or value < 1
            ):
                misfits[f"strategy.{key}"] = f"found {value!r}, expected a whole number above 0"
            if knob.choices and value not in knob.choices:
                misfits[f"strategy.{key}"] = (
                    f"found '{value}', expected one of {', '.join(knob.choices)}"
                )
    return misfits


def _check(options: StrategyOptions) -> None:
    """Raise an error for invalid values and combinations.

    Raises:
        StrategyError: With every misfit.
    """
    misfits = _value_misfits(options)
    pieces, recompute = options.traffic.tensor_pieces, options.memory.recompute
    if pieces is not None and pieces < 1:
        misfits["strategy.tensor_pieces"] = f"found {pieces}, expected 1 or more"
    misfits |= _recompute_misfits(recompute)
    dropped = {*options.traffic.offload.tensors} - {"input", *saved_outputs(recompute)}
    if recompute.startswith(SAVES) and dropped and not misfits:
        misfits["strategy.offload.activations.tensors"] = (
            f"found '{min(dropped)}', which recompute: {recompute} does not keep; leave it out"
        )
    if options.phantoms.enabled:
        misfits |= _phantom_misfits(options.phantoms) | _phantom_conflicts(options)
    elif options.phantoms != _USUAL["phantoms"]:
        misfits |= {
            f"strategy.{key}": "is of phantom layers; expected it with preset: phantom"
            for key in knobs_of(PhantomOptions).keys() & options.chosen().keys()
        }
    if options.colocation.processes != 1 and not misfits:
        misfits |= _colocation_misfits(options)
    if misfits:
        raise StrategyError(misfits)


def _recompute_misfits(kind: str) -> dict[str, str]:
    names: Sequence[str] = ()
    if kind.startswith(MODULES):
        word, names, known = "modules", recomputed_modules(kind), (*RECOMPUTED_MODULES,)
    elif kind.startswith(SAVES):
        word, names, known = "outputs", saved_outputs(kind), (*SAVED_OUTPUTS,)
    elif kind not in RECOMPUTATIONS and not _is_block_share(kind):
        return {
            "strategy.recompute": f"found '{kind}', expected one of {', '.join(RECOMPUTATIONS)}, "
            "block_N, modules_A+B or saves_A+B"
        }
    for name in names:
        if name not in known:
            expected = f"expected of {', '.join(known)}, joined by +"
            return {"strategy.recompute": f"found '{name}' among {word}, {expected}"}
    return {}


def _is_block_share(name: str) -> bool:
    return _BLOCK_SHARE.fullmatch(name) is not None


def _phantom_misfits(phantoms: PhantomOptions) -> dict[str, str]:
    """Return the contradictions between settings of phantom layers."""
    found: dict[str, str] = {}
    if phantoms.ghosts is None:
        found["strategy.ghosts"] = (
            "is missing, expected a whole number: neurons that each rank of tp sends of each "
            "phantom layer"
        )
    elif phantoms.ghosts < 0:
        found["strategy.ghosts"] = f"found {phantoms.ghosts}, expected a whole number from 0"
    if phantoms.regather and phantoms.variant == SHARED:
        found["strategy.regather"] = (
            "found with variant shared, which keeps one sum of ghosts; use it with pair"
        )
    if phantoms.regather and phantoms.exchange == ACTIVATIONS:
        found["strategy.regather"] = (
            "found with exchange activations, which sends no ghosts; leave it out"
        )
    return found


def _phantom_conflicts(options: StrategyOptions) -> dict[str, str]:
    """Return the settings that cannot be combined with phantom layers."""
    others = ["sequence_parallel", "op_shard", "tensor_pairs", "single_process"]
    found = [key for key in others if options.value(key)]
    if options.parallelism.context == SPATIAL:
        found.append("context")
    return {
        f"strategy.{key}": "does not go with phantom layers, whose inputs and outputs are split by "
        "features over tp; leave one of them out"
        for key in found
    }


def _colocation_misfits(options: StrategyOptions) -> dict[str, str]:
    """Return the settings that cannot be combined with several processes (replicas) on a device."""
    several = f"together with processes_per_device {options.colocation.processes}"
    found = {
        f"strategy.{axis}": f"found {options.value(axis)} {several}, whose processes are whole "
        "replicas; expected 1: use dp"
        for axis in ("fsdp", "tp", "cp", "pp", "ep")
        if options.value(axis) > 1
    }
    if (sharding := options.memory.sharding) != "none":
        found["strategy.sharding"] = (
            f"found '{sharding}' {several}, whose processes keep whole replicas; expected "
            "none: shards on one device would save nothing"
        )
    if (tables := options.parallelism.tables) != "data-parallel":
        found["strategy.tables"] = (
            f"found '{tables}' {several}, whose processes are whole replicas; expected "
            "data-parallel"
        )
    found |= {
        f"strategy.{key}": f"found {several}, whose processes are whole replicas; leave one "
        "of them out"
        for key in ("op_shard", "single_process", "phantom", "sync_batch_norm")
        if options.value(key)
    }
    if options.traffic.offload.tiers:
        found["strategy.offload"] = (
            f"found {several}, which would all wait for the same host; leave one of them out"
        )
    return found
