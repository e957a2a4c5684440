"""What two jobs state differently, besides their strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wattree.job import Job, prices_in_words, site_in_words
from wattree.units import format_quantity

#: Fields of a job that decide its step → their keys in its file. Strategies are compared by
#: themselves; parts of the fields below have keys of their own.
_KEYS: Final[Mapping[str, str]] = {
    "model": "model",
    "precision": "precision",
    "optimizer": "optimizer",
    "software": "software",
    "released": "released",
    "collectives": "collectives",
    "devices": "place",
    "neighbours": "neighbours",
    "workload": "workload",
}
_DATA_KEYS: Final = (
    *("sequence_length", "global_batch", "document_length", "loader", "generate_length"),
)
_CLUSTER_KEYS: Final[Mapping[str, str]] = {
    "pools": "node",
    "fabric": "fabric",
    "slowdown": "slowdown",
    "slow_links": "slow_links",
    "power_limit_w": "power_limit",
}
#: Traits that are keys of their own.
_TRAIT_KEYS: Final = {"compiled": "compile"}
#: Keys that a sentence names.
_NAMED: Final = 3


def stated_of(job: Job) -> dict[str, str]:
    """Return where a job runs, what it sets of its software and devices, and whose prices it pays.

    Each is a name and words; what a job does not state is absent.
    """
    found = {"site": site_in_words(job.cluster.site, job.terms)}
    if job.cluster.power_limit_w is not None:
        found["power limit"] = format_quantity(job.cluster.power_limit_w, "W")
    if job.released is not None:
        found["released"] = job.released
    for name, value in job.traits.items():
        found[_TRAIT_KEYS.get(name, name)] = str(value).lower()
    if prices := "; ".join(prices_in_words(job.cluster, job.terms)):
        found["price"] = prices
    return found


def other_keys(first: Job, other: Job) -> list[str]:
    """Return the keys that decide a step and differ between two jobs, if not only strategies do."""
    pairs: dict[str, tuple[Any, Any]] = {
        key: (getattr(first, name), getattr(other, name)) for name, key in _KEYS.items()
    }
    for name in _DATA_KEYS:
        pairs[name] = getattr(first.data, name), getattr(other.data, name)
    for name, key in _CLUSTER_KEYS.items():
        pairs[key] = getattr(first.cluster, name), getattr(other.cluster, name)
    for name in dict.fromkeys((*first.traits, *other.traits)):
        pairs[_TRAIT_KEYS.get(name, name)] = first.traits.get(name), other.traits.get(name)
    found = [key for key, (mine, theirs) in pairs.items() if mine != theirs]
    return [*found, "strategy"] if found and first.strategy != other.strategy else found


def in_words(keys: list[str]) -> str:
    """Return a clause that names the first of the keys in which a job differs."""
    if not keys:
        return ""
    first, last = keys[:_NAMED], "more"
    if len(keys) <= _NAMED:
        *first, last = keys
    return ", which differs in " + " and ".join(filter(None, (", ".join(first), last)))
