"""Keys of a job file that say what runs it: number formats, optimizer, software and its traits."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Final

from wattree.cost import AUTO_SOFTWARE, PRECISIONS, SOFTWARE, Software, software_family
from wattree.cost.families import BEFORE, FIRST, VERSIONS
from wattree.cost.other_software import counts_as, family_named, traits_named
from wattree.cost.requests import AUTO_COLLECTIVES
from wattree.cost.software import expected_instead
from wattree.errors import UnknownNameError
from wattree.hardware import Cluster, Node, Precision
from wattree.job.collectives import collective_requests
from wattree.job.idle import warn_of_idle_capacity
from wattree.job.optimizers import OPTIMIZERS, OTHER_NAMES
from wattree.job.problems import Problems, seen
from wattree.strategy import Strategy, StrategyOptions

#: Names of number formats in PyTorch → here.
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def family_of(value: object, *, problems: Problems) -> str:
    """Return the software family that a job names; `auto` where it names none that is known."""
    if isinstance(value, str):
        with problems.at("software"):
            return family_named(value, known=(AUTO_SOFTWARE, *SOFTWARE))
    elif value is not None:
        problems.add("software", f"{seen(value)}, expected the name of training software")
    return AUTO_SOFTWARE


def software_of(
    mapping: Mapping[Any, Any],
    software: str,
    strategy: Strategy | StrategyOptions | str | None,
    cluster: Cluster | None,
    *,
    problems: Problems,
) -> dict[str, Any]:
    """Return the number formats, optimizer and software of a job.

    Args:
        software: Its family (`family_of`).
    """
    stated = mapping.get("optimizer", "adamw")
    optimizer = OTHER_NAMES.get(stated, stated) if isinstance(stated, str) else stated
    usual, reason = usual_precision([] if cluster is None else [p.node for p in cluster.pools])
    given = mapping.get("precision", usual)
    given = _DTYPES.get(given, given) if isinstance(given, str) else given
    found: dict[str, Any] = {
        key: _choice(value, key, known, problems=problems)
        for key, value, known in (
            ("precision", given, PRECISIONS),
            ("optimizer", optimizer, OPTIMIZERS),
        )
    }
    found["software"] = software
    name = str(mapping.get("software", software))
    found["software_name"] = name if counts_as(name, software) else ""
    own = traits_named(name, found["precision"])
    known = ", ".join(f"{key}: {str(each).lower()}" for key, each in own.items())
    stand_in = counts_as(name, software) + (f" with traits of its own: {known}" if own else "")
    same = "" if optimizer == stated else f"{stated} counts as the optimizer '{optimizer}'"
    reasons = ("" if "precision" in mapping else reason, same, stand_in)
    found["assumed"] = tuple(filter(None, reasons))
    found["collectives"] = collective_requests(
        mapping.get("collectives", AUTO_COLLECTIVES), cluster=cluster, problems=problems
    )
    traits = found["traits"] = _traits(mapping.get("traits", {}), problems=problems)
    _compile(mapping.get("compile"), traits, problems=problems)
    found["traits"] = traits = {**own, **traits}
    found["released"] = _released(mapping.get("released"), software, problems=problems)
    if isinstance(strategy, Strategy | StrategyOptions):
        family = software_family(software)
        warn_of_idle_capacity(
            strategy.expert_load,
            software=software,
            dropless=traits.get("moe_dropless", family.moe_dropless),
            problems=problems,
        )
    return found


def usual_precision(nodes: Collection[Node]) -> tuple[str, str]:
    """Return the precision of a job that states none, and why it is not bf16, if so.

    All devices have it: bf16, on older ones fp16, on those without 16-bit matrix rates fp32.
    """
    devices = {node.device.name: node.device for node in nodes}.values()
    lacking = [each.name for each in devices if Precision.BF16 not in each.peak_flop_per_s]
    for precision in (Precision.FP16, Precision.FP32):
        formats = {each.matrix_format(precision) for each in devices}
        has = None not in formats and (precision in formats or Precision.FP32 not in formats)
        if lacking and has:
            return precision.value, f"precision {precision}, as {lacking[0]} has no bf16"
    return Precision.BF16.value, ""


def _choice(value: object, place: str, known: tuple[str, ...], *, problems: Problems) -> str:
    if not isinstance(value, str):
        problems.add(place, f"{seen(value)}, expected one of {', '.join(known)}")
    elif value not in known:
        with problems.at(place):
            raise UnknownNameError(kind=place, name=value, known=known)
    return str(value)


def _compile(value: object, traits: dict[str, Any], *, problems: Problems) -> None:
    """Enter the key `compile` among the traits, where it is called `compiled`."""
    if value is None:
        return
    if not isinstance(value, bool):
        problems.add("compile", f"{seen(value)}, expected true or false")
    elif traits.setdefault("compiled", value) is not value:
        problems.add("compile", f"{seen(value)}, but traits.compiled differs; give one")


def _released(value: object, software: str, *, problems: Problems) -> str | None:
    """Return the month of a release, which may be given by a version that is known."""
    if value is None:
        return None
    versions = VERSIONS.get(software, {})
    for version, stands_for in versions.items():
        if f"{str(value).removeprefix('v')}.".startswith(f"{version}."):
            return stands_for
    month = re.fullmatch(r"[0-9]{4}(-(0[1-9]|1[0-2])(-[0-3][0-9])?)?", str(value))
    if month is None or isinstance(value, bool):
        named = " or ".join(f"{version} ({month})" for version, month in versions.items())
        other = f", or the version: {named}" if named else ""
        problems.add("released", f"{seen(value)}, expected a month such as 2024-12{other}")
        return None
    if software not in BEFORE:
        problems.warn(
            "released",
            "has no effect without one of the software families of which earlier releases are "
            f"known to differ: {', '.join(BEFORE)}",
        )
    first = FIRST.get(software, "")
    if month[0] >= first[: len(month[0])]:
        return month[0]
    problems.warn("released", f"{software} was first released in {first}, which is predicted")
    return first


def _traits(value: object, *, problems: Problems) -> dict[str, Any]:
    """Return the traits, each of the type that the software family's own has."""
    if not isinstance(value, Mapping):
        problems.add("traits", f"{seen(value)}, expected a mapping of trait to value")
        return {}
    defaults = {f.name: f.default for f in fields(Software) if f.name not in {"name", "title"}}
    traits = {}
    problems.unknown_keys(value, defaults, "traits")
    for name, default in defaults.items():
        if name in value and (expected := expected_instead(name, value[name])):
            problems.add(f"traits.{name}", f"{seen(value[name])}, expected {expected}")
        elif name in value:
            traits[name] = float(value[name]) if isinstance(default, float) else value[name]
    return traits
