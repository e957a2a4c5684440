"""The `energy` section: prices and emissions of energy and devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from wattree.energy.hourly import HourlySeries
from wattree.hardware import Cluster, Node, Site
from wattree.job.hourly import read_hourly
from wattree.job.problems import Problems
from wattree.job.schema import EnergySpec
from wattree.units import JOULES_PER_KWH, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Embodied:
    """Embodied carbon of the hardware, spread over its lifetime.

    Attributes:
        node_gco2e: Of a node without its devices.
        lifetime_s: Until they are replaced. [s]
    """

    device_gco2e: float
    node_gco2e: float
    lifetime_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyTerms:
    """Prices and emissions of a job.

    Attributes:
        device_usd_per_s: Rent of one device; None for the catalog's. [USD/s]
        price_usd_per_j: Of energy; None for the site's. [USD/J]
        carbon_gco2e_per_j: Grid intensity; None for the site's. [gCO2e/J]
        series: Both by the hour, whose averages count where `price` and `carbon` are not given.
        embodied: None where the job does not say.
    """

    device_usd_per_s: float | None = None
    price_usd_per_j: float | None = None
    carbon_gco2e_per_j: float | None = None
    series: HourlySeries | None = None
    embodied: Embodied | None = None

    @property
    def gives_price(self) -> bool:
        """Whether the job prices energy, by itself or by its series."""
        by_hour = self.series is not None and self.series.price_usd_per_j is not None
        return by_hour or self.price_usd_per_j is not None

    @property
    def gives_carbon(self) -> bool:
        """Whether the job states the intensity of its grid, by itself or by its series."""
        by_hour = self.series is not None and self.series.carbon_gco2e_per_j is not None
        return by_hour or self.carbon_gco2e_per_j is not None


def energy_terms(value: object, *, folder: Path, problems: Problems) -> EnergyTerms:
    """Return the section `energy` of a job, or no terms after recording its problems."""
    spec = problems.read(EnergySpec, value, "energy")
    if spec is None:
        return EnergyTerms()
    series = None
    if spec.series is not None:
        with problems.at("energy.series"):
            series = read_hourly(folder / spec.series)
    if series is not None and series.carbon_gco2e_per_j is not None and spec.carbon is not None:
        problems.add("energy.carbon", "found together with series, which states it; give one")
    if series is not None and series.price_usd_per_j is not None and spec.price is not None:
        problems.add("energy.price", "found together with a series with prices; give one")
    made = spec.embodied
    return EnergyTerms(
        device_usd_per_s=spec.device_price,
        price_usd_per_j=spec.price,
        carbon_gco2e_per_j=spec.carbon,
        series=series,
        embodied=None
        if made is None
        else Embodied(device_gco2e=made.device, node_gco2e=made.node, lifetime_s=made.lifetime),
    )


def site_in_words(site: Site, terms: EnergyTerms) -> str:
    """Return a site with its PUE, and the intensity of its grid unless the job gives another."""
    words = f"{site.name}: PUE {site.pue:.3g}"
    if site.carbon_gco2e_per_j is None or terms.gives_carbon:
        return words
    return f"{words}, {site.carbon_gco2e_per_j * JOULES_PER_KWH:.3g} g CO2e per kWh"


def own_pue_in_words(site: Site, nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return that nodes do not have the PUE of the data centers of their site, if it is so."""
    names = {
        node.name: None
        for node in nodes
        if node.pue is not None and node.sources.get("pue") == site.sources.get("pue")
    }
    if not names:
        return ()
    whose = f"{', '.join(names)} {'stands' if len(names) == 1 else 'stand'} in no data center"
    return (f"PUE {site.pue:.3g}, as {whose}; the file of a site can state another",)


def rent_in_words(node: Node) -> str:
    """Return the rent of a node and whose price that is; empty if unknown."""
    if node.price_usd_per_s is None:
        return ""
    whose = node.sources.get("price_usd_per_s", "as its file says")
    return f"rent of {node.name}: ${node.price_usd_per_s * SECONDS_PER_HOUR:.4g} per hour, {whose}"


def prices_in_words(cluster: Cluster, terms: EnergyTerms) -> tuple[str, ...]:
    """Return what the cost of a job is made of, and whose prices these are, one sentence each."""
    site, own = cluster.site, terms.device_usd_per_s
    if own is not None:
        found = [f"rent of a device: ${own * SECONDS_PER_HOUR:.4g} per hour, as the job says"]
    else:
        rents = {pool.node.name: rent_in_words(pool.node) for pool in cluster.pools}.values()
        found = [words for words in rents if words]
    price = site.energy_price_usd_per_j
    if price is not None and (site.bills_energy or not found):
        whose = "as the job says" if terms.gives_price else f"of {site.name}"
        alone = "" if found else "; nothing for the nodes"
        found.append(f"energy: ${price * JOULES_PER_KWH:.3g} per kWh, {whose}{alone}")
    return tuple(found)


def assumed_terms(section: object, cluster: Cluster, terms: EnergyTerms) -> tuple[str, ...]:
    """Return what a job leaves to the catalog of its site and prices, one sentence each.

    Args:
        section: Its `cluster`.
    """
    is_open = isinstance(section, Mapping) and "site" not in section
    own_pue = own_pue_in_words(cluster.site, (pool.node for pool in cluster.pools))
    site = (f"site {site_in_words(cluster.site, terms)}",) if is_open else ()
    words = (*site, *own_pue)
    if terms.device_usd_per_s is not None:
        return words
    if terms.gives_price:
        alone = (
            "cost is that of energy alone, for owners of the nodes; no rent is counted (with "
            "energy.device_price it is, besides energy)"
        )
        return (*words, alone)
    return (*words, *prices_in_words(cluster, terms))


def under_terms(cluster: Cluster, terms: EnergyTerms) -> Cluster:
    """Return the cluster with the prices and the intensity that a job gives.

    Who pays for energy owns the nodes, so that the catalog's rent, in which energy is, counts no
    more; who gives a price for devices too pays both.
    """
    price, carbon = terms.price_usd_per_j, terms.carbon_gco2e_per_j
    if terms.series is not None:
        price = terms.series.mean_price_usd_per_j if price is None else price
        carbon = terms.series.mean_carbon_gco2e_per_j if carbon is None else carbon
    site = cluster.site
    if price is not None:
        site = replace(site, energy_price_usd_per_j=price, bills_energy=True)
    if carbon is not None:
        site = replace(site, carbon_gco2e_per_j=carbon)
    rent = terms.device_usd_per_s
    if price is None and rent is None:
        return replace(cluster, site=site)
    pools = tuple(
        replace(
            pool,
            node=replace(
                pool.node, price_usd_per_s=None if rent is None else rent * pool.node.devices
            ),
        )
        for pool in cluster.pools
    )
    return replace(cluster, pools=pools, site=site)
