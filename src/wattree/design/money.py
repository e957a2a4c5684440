"""Notes on a study's costs where its prices could be misread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from wattree.design.assign import drafted, job_mapping
from wattree.design.draft import Draft
from wattree.design.points import Value
from wattree.design.study import Study, Workload
from wattree.errors import JobError
from wattree.hardware import Description, Node, Site, load_node, load_site
from wattree.job import own_pue_in_words, rent_in_words, site_in_words
from wattree.job.energy import EnergyTerms, energy_terms
from wattree.job.problems import Problems

_LIFETIME: Final = "capital.lifetime"
_ENERGY: Final = "site.energy_price"
_RENT: Final = "job.energy.device_price"
#: What prices energy in a job; a series without prices is no such path.
_BY_JOB: Final = frozenset({"job.energy.price", "the series of job.energy"})
_PAID_BY_JOB: Final = frozenset({_RENT, *_BY_JOB})
_COST: Final = "cost is "
#: Why a point has no cost where others pay off what they bought.
NO_CAPITAL: Final = (
    "none under 'capital' with a capital.lifetime, which others have; set capital.node or "
    "capital.device (rents are no part of such a study)"
)
_GIVEN: Final = "node.price under 'changes' or in a choice of an axis gives one, such as 10 USD/h"


def money_notes(study: Study, hardware: MutableMapping[str, Description]) -> tuple[str, ...]:
    """Return what readers of its costs must know; `cost_note` finds what they are made of.

    Args:
        hardware: What the files hold that it names.
    """
    draft = _first(study, hardware)
    given = [_terms(workload, draft) for workload in study.workloads]
    paths = _paid_paths(study, draft)
    is_bought = _is_bought(paths)
    notes = []
    if not is_bought and _LIFETIME in paths:
        paths.remove(_LIFETIME)
        notes.append(f"{_LIFETIME} has no effect: nothing under 'capital' has a price")
    cost = _cost_in_words(paths, hardware)
    notes += [*([f"{_COST}{cost}"] if cost else []), *_catalog_notes(study, hardware, paths)]
    if any("job.energy.embodied" in each for each in given):
        notes.append("carbon includes what job.energy.embodied says")
    if paths & _PAID_BY_JOB:
        unpaid = {path for path in paths if path == "node.price"}
        if paths & _BY_JOB:
            unpaid |= {p for p in paths if p == _ENERGY or p.startswith("capital.")}
        if unpaid:
            has = "has" if len(unpaid) == 1 else "have"
            notes.append(f"{' and '.join(sorted(unpaid))} {has} no effect on cost")
        return tuple(notes)
    is_rented = _pays_for_nodes(paths, hardware)
    if is_rented and _LIFETIME not in paths and _ENERGY in paths:
        notes.append(
            f"{_ENERGY} has no effect on cost: rents have electricity in them; with "
            f"{_LIFETIME} and prices under 'capital' energy is charged in addition"
        )
    if is_bought and _LIFETIME in paths:
        notes += _bought_notes(study, hardware, paths, draft)
    return tuple(notes)


def cost_note(study: Study) -> str | None:
    """Return what the costs of a study consist of, in words; None where nothing has a price."""
    found = (note for note in reversed(study.notes) if note.startswith(_COST))
    return next((note.removeprefix(_COST) for note in found), None)


def pays_for_nodes(study: Study) -> bool:
    """Return whether any point's cost has rent, or a purchase, in it.

    Energy alone is then no cost of the others: it would rank nodes by what is not known of them.
    """
    return _pays_for_nodes(_paths(study), study.hardware)


def pays_capital(study: Study) -> bool:
    """Return whether what is bought, over its lifetime, is the cost of any point.

    Rent is then no cost of the others: it holds what owners pay besides.
    """
    paths = _paid_paths(study, None)
    return _LIFETIME in paths and _is_bought(paths) and not paths & _PAID_BY_JOB


def _bought_notes(
    study: Study,
    hardware: MutableMapping[str, Description],
    paths: AbstractSet[str],
    draft: Draft | None,
) -> list[str]:
    """Return what is left out where prices under 'capital' are the cost."""
    notes = []
    if unpriced := ", ".join(_unpriced(study, hardware)):
        notes.append(f"{unpriced}: such points have no cost: no price, {NO_CAPITAL}")
    if "node.price" in paths:
        notes.append("node.price has no effect on cost")
    if _ENERGY not in paths and not _is_priced(draft):
        notes.append(f"cost has no electricity in it: the site has no energy price; set {_ENERGY}")
    return notes


def _unpriced(study: Study, hardware: MutableMapping[str, Description]) -> Iterator[str]:
    """Yield the choices that lack a price under 'capital', or the lifetime, where others have it.

    Each is tried with the first values of the other axes.
    """
    first: dict[str, Value] = {axis.name: axis.values[0] for axis in study.axes}
    for axis in study.axes:
        found = {}
        for value in axis.choices if any(map(_buys, axis.choices.values())) else ():
            try:
                capital = drafted(study, {**first, axis.name: value}, hardware).bought()
            except JobError:  # its own reason
                continue
            found[value] = capital.is_cost
        if any(found.values()):
            yield from (f"{axis.name} {value}" for value, is_cost in found.items() if not is_cost)


def _buys(given: Mapping[str, object]) -> bool:
    return any(path.startswith("capital.") for path in given)


def _pays_for_nodes(paths: AbstractSet[str], hardware: Mapping[str, Description]) -> bool:
    is_given = "node.price" in paths or (_LIFETIME in paths and _is_bought(paths))
    return is_given or any(node.price_usd_per_s is not None for node in _nodes(hardware))


def _paths(study: Study) -> set[str]:
    """Return the fields that a study sets."""
    paths = {change.path for change in study.changes} | {link.path for link in study.links}
    for axis in study.axes:
        paths |= {axis.path, *(path for given in axis.choices.values() for path in given)}
    return paths


def _paid_paths(study: Study, draft: Draft | None) -> set[str]:
    """Return the fields that a study sets, with the prices that all of its jobs have."""
    given = [_terms(workload, draft) for workload in study.workloads]
    return _paths(study) | (set.intersection(*given) if given else set())


def _is_bought(paths: AbstractSet[str]) -> bool:
    return any(path.startswith("capital.") and path != _LIFETIME for path in paths)


def _cost_in_words(paths: AbstractSet[str], hardware: Mapping[str, Description]) -> str:
    """Return what costs consist of; empty where nothing has a price."""
    if paths & _PAID_BY_JOB:
        nothing = "" if _RENT in paths else "; nothing for the nodes"
        return f"what {' and '.join(sorted(paths & _PAID_BY_JOB))} says{nothing}"
    if _LIFETIME in paths:
        return f"prices under 'capital' over {_LIFETIME}, and energy at the price of the site"
    if _pays_for_nodes(paths, hardware):
        price = "node.price" if "node.price" in paths else "list price"
        alone = f": prices under 'capital' count in capital alone; {_LIFETIME} makes them the cost"
        return f"the rent of the nodes at {price}, electricity in it{alone * _is_bought(paths)}"
    sites = [load_site(file) for key, file in hardware.items() if key.startswith("site:")]
    if _ENERGY in paths or any(site.energy_price_usd_per_j is not None for site in sites):
        return "energy at the price of the site; nothing for the nodes, of which no rent is known"
    return ""


def _nodes(hardware: Mapping[str, Description]) -> list[Node]:
    return [load_node(file) for key, file in hardware.items() if key.startswith("node:")]


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


def _unchanged(paths: AbstractSet[str]) -> list[str]:
    """Return what rents do where the study changes the devices that they are for."""
    notes = []
    if "node.devices" in paths:
        notes.append(
            "rents are per device where node.devices changes; hosts and adapters stay as they were"
        )
    if changed := sorted(path for path in paths if path.startswith("device.")):
        notes.append(f"rents do not change with {', '.join(changed)}; node.price sets them")
    return notes


def _catalog_notes(
    study: Study, hardware: MutableMapping[str, Description], paths: AbstractSet[str]
) -> list[str]:
    """Return the site and the rents that the study takes from the catalog."""
    sites = [file for key, file in hardware.items() if key.startswith("site:")]
    notes, named = [], _nodes(hardware)
    if "site" not in study.cluster and not {"cluster.site", "site.pue"} & paths:
        given = {"job.energy.carbon", "job.energy.series"} & paths
        terms = EnergyTerms(carbon_gco2e_per_j=0.0 if given else None)
        notes = [f"site {site_in_words(load_site(file, nodes=named), terms)}" for file in sites]
    if "site.pue" not in paths:
        there = ((load_site(file, nodes=[node]), node) for file in sites for node in named)
        notes += dict.fromkeys(
            words for site, node in there for words in own_pue_in_words(site, [node])
        )
    if not {"site.carbon", "job.energy.carbon", "job.energy.series"} & paths:
        notes += _carbon_sources([load_site(file) for file in sites])
    if not {_LIFETIME, "node.price", *_PAID_BY_JOB} & paths:
        found = [node for node in named if node.price_usd_per_s is not None]
        unpriced = ", ".join(node.name for node in named if node.price_usd_per_s is None)
        if unpriced and (found or not _cost_in_words(paths, hardware)):
            notes.append(f"no rent is known of {unpriced}: such points have no cost; {_GIVEN}")
        notes += map(rent_in_words, found)
        notes += _unchanged(paths) if found else []
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


def _carbon_sources(sites: Sequence[Site]) -> list[str]:
    """Return that figures of carbon are not of one source, where they are not."""
    given = [site.sources.get("carbon_gco2e_per_j", "") for site in sites]
    # Sources of the catalog begin with the publisher, before a version or a detail.
    whose = sorted({re.split(r" *[(,:]", source)[0] for source in given if source})
    if len(whose) < 2:
        return []
    return [
        f"carbon intensities are of several sources ({', '.join(whose)}), which differ for one "
        "grid, too: differences between sites may be theirs; site.carbon gives one's own"
    ]


def _is_priced(draft: Draft | None) -> bool:
    """Return whether the first point's site has a price of energy."""
    try:
        return draft is None or draft.cluster().site.energy_price_usd_per_j is not None
    except JobError:  # not at this point: nothing is known
        return True
