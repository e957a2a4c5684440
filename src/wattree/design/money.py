"""Notes on a study's costs where its prices could be misread."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Final

from wattree.design.assign import drafted
from wattree.design.draft import Draft
from wattree.design.study import Study, Workload
from wattree.design.workload_job import job_mapping
from wattree.errors import JobError
from wattree.hardware import Description, load_node, load_site
from wattree.job import rent_in_words, site_in_words
from wattree.job.energy import EnergyTerms, energy_terms
from wattree.job.problems import Problems

_LIFETIME: Final = "capital.lifetime"
_ENERGY: Final = "site.energy_price"
_RENT: Final = "job.energy.device_price"
#: What prices energy in a job; a series without prices is no such path.
_BY_JOB: Final = frozenset({"job.energy.price", "the series of job.energy"})
_PAID_BY_JOB: Final = frozenset({_RENT, *_BY_JOB})
_GIVEN: Final = "node.price under 'changes' or in a choice of an axis gives one, such as 10 USD/h"


def money_notes(study: Study, hardware: MutableMapping[str, Description]) -> tuple[str, ...]:
    """Return what readers of its costs must know.

    Args:
        hardware: What the files hold that it names.
    """
    paths = {change.path for change in study.changes} | {link.path for link in study.links}
    for axis in study.axes:
        paths |= {axis.path, *(path for given in axis.choices.values() for path in given)}
    draft = _first(study, hardware)
    given = [_terms(workload, draft) for workload in study.workloads]
    paths |= set.intersection(*given) if given else set()
    is_bought = any(path.startswith("capital.") and path != _LIFETIME for path in paths)
    if not is_bought and _LIFETIME in paths:
        paths.remove(_LIFETIME)
        unused = [f"{_LIFETIME} has no effect: nothing under 'capital' has a price"]
    else:
        unused = []
    notes = [*unused, *_catalog_notes(study, hardware, paths)]
    if any("job.energy.embodied" in each for each in given):
        notes.append("carbon includes what job.energy.embodied says")
    if paths & _PAID_BY_JOB:
        by_job = " and ".join(sorted(paths & _PAID_BY_JOB))
        nothing = "" if _RENT in paths else "; nothing for the nodes"
        notes.append(f"cost is what {by_job} says{nothing}")
        unpaid = {path for path in paths if path == "node.price"}
        if paths & _BY_JOB:
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
    if is_bought and _LIFETIME in paths and _ENERGY not in paths and not _is_priced(draft):
        notes.append(f"cost has no electricity in it: the site has no energy price; set {_ENERGY}")
    return tuple(notes)


def _first(study: Study, hardware: MutableMapping[str, Description]) -> Draft | None:
    """Return the first point; None if it cannot be."""
    try:
        return drafted(study, {a.name: a.values[0] for a in study.axes}, hardware)
    except JobError:
        return None


def _terms(workload: Workload, draft: Draft | None) -> set[str]:
    """Return the paths of a workload's own prices and emissions."""
    job = workload.job if draft is None else job_mapping(workload, draft)
    section = job.get("energy")
    if not isinstance(section, Mapping):
        return set()
    # What cannot be read is the reason of every point.
    terms = energy_terms(section, folder=workload.folder, problems=Problems(""))
    by_hour = terms.series is not None and terms.gives_price
    return {f"job.energy.{key}" for key in section} | (
        {"the series of job.energy"} if by_hour else set()
    )


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


def _is_priced(draft: Draft | None) -> bool:
    """Return whether the first point's site has a price of energy."""
    try:
        return draft is None or draft.cluster().site.energy_price_usd_per_j is not None
    except JobError:  # not at this point: nothing is known
        return True
