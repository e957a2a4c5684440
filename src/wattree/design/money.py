"""Notes on a study's costs where its prices could be misread."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from wattree.design.assign import drafted
from wattree.design.study import Study
from wattree.errors import JobError
from wattree.hardware import Description, load_node, load_site
from wattree.job import rent_in_words, site_in_words
from wattree.job.energy import EnergyTerms

_LIFETIME: Final = "capital.lifetime"
_ENERGY: Final = "site.energy_price"
_RENT: Final = "job.energy.device_price"
_PAID_BY_JOB: Final = frozenset({_RENT, "job.energy.price"})
_GIVEN: Final = "node.price under 'changes' or in a choice of an axis gives one, such as 10 USD/h"


def money_notes(study: Study, hardware: MutableMapping[str, Description]) -> tuple[str, ...]:
    """Return what readers of its costs must know.

    Args:
        hardware: What the files hold that it names.
    """
    paths = {change.path for change in study.changes} | {link.path for link in study.links}
    for axis in study.axes:
        paths |= {axis.path, *(path for given in axis.choices.values() for path in given)}
    given = [_terms(workload.job) for workload in study.workloads]
    paths |= set.intersection(*given) if given else set()
    is_bought = any(path.startswith("capital.") and path != _LIFETIME for path in paths)
    if not is_bought and _LIFETIME in paths:
        paths.remove(_LIFETIME)
        unused = [f"{_LIFETIME} has no effect: nothing under 'capital' has a price"]
    else:
        unused = []
    notes = [*unused, *_catalog_notes(study, hardware, paths)]
    if paths & _PAID_BY_JOB:
        by_job = " and ".join(sorted(paths & _PAID_BY_JOB))
        nothing = "" if _RENT in paths else "; nothing for the nodes"
        notes.append(f"cost is what {by_job} says{nothing}")
        unpaid = {path for path in paths if path == "node.price"}
        if "job.energy.price" in paths:
            unpaid |= {p for p in paths if p == _ENERGY or p.startswith("capital.")}
        if unpaid:
            has = "has" if len(unpaid) == 1 else "have"
            notes.append(f"{' and '.join(sorted(unpaid))} {has} no effect on cost")
        return tuple(notes)
    if is_bought and _LIFETIME not in paths:
        notes.append(
            "cost is the rent of the nodes at list price, electricity in it: prices under "
            f"'capital' count in capital alone; {_LIFETIME} makes them the cost"
        )
    if _LIFETIME not in paths and _ENERGY in paths:
        notes.append(
            f"{_ENERGY} has no effect on cost: rents have electricity in them; with "
            f"{_LIFETIME} and prices under 'capital' energy is charged in addition"
        )
    if (
        is_bought
        and _LIFETIME in paths
        and _ENERGY not in paths
        and not _is_priced(study, hardware)
    ):
        notes.append(f"cost has no electricity in it: the site has no energy price; set {_ENERGY}")
    return tuple(notes)


def _terms(job: Mapping[str, Any]) -> set[str]:
    """Return the paths of a workload's own prices and emissions."""
    section = job.get("energy")
    return {f"job.energy.{key}" for key in section} if isinstance(section, Mapping) else set()


def _catalog_notes(
    study: Study, hardware: MutableMapping[str, Description], paths: AbstractSet[str]
) -> list[str]:
    """Return the site and the rents that the study takes from the catalog."""
    sites, nodes = (
        [file for key, file in hardware.items() if key.startswith(f"{kind}:")]
        for kind in ("site", "node")
    )
    notes = []
    if "site" not in study.cluster and not {"cluster.site", "site.pue"} & paths:
        given = {"job.energy.carbon", "job.energy.series"} & paths
        terms = EnergyTerms(carbon_gco2e_per_j=0.0 if given else None)
        notes = [f"site {site_in_words(load_site(file), terms)}" for file in sites]
    if not {_LIFETIME, "node.price", *_PAID_BY_JOB} & paths:
        named = [load_node(file) for file in nodes]
        found = [node for node in named if node.price_usd_per_s is not None]
        if unpriced := ", ".join(n.name for n in named if n.price_usd_per_s is None):
            notes.append(f"no rent is known of {unpriced}: such points have no cost; {_GIVEN}")
        notes += map(rent_in_words, found)
        # Sources of the catalog begin with the provider.
        whose = sorted(
            {node.sources.get("price_usd_per_s", "").partition(" ")[0] for node in found}
        )
        if len(whose) > 1 and all(whose):
            notes.append(
                f"rents are of several providers ({', '.join(whose)}), so costs compare those "
                "too; node.price gives one's own"
            )
    return notes


def _is_priced(study: Study, hardware: MutableMapping[str, Description]) -> bool:
    """Return whether the first point's site has a price of energy."""
    try:
        site = drafted(study, {a.name: a.values[0] for a in study.axes}, hardware).cluster().site
    except JobError:  # not at this point: nothing is known
        return True
    return site.energy_price_usd_per_j is not None
