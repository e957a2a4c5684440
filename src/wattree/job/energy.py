"""The `energy` section: prices and emissions of energy and devices."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from wattree.energy.hourly import HourlySeries
from wattree.errors import JobError
from wattree.files import read_text, refusal
from wattree.hardware import Cluster, Node, Site
from wattree.job.problems import Problems, shown
from wattree.job.schema import EnergySpec
from wattree.units import JOULES_PER_KWH, SECONDS_PER_HOUR, whole_number


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
        """Whether the job states the intensity of its grid."""
        return self.series is not None or self.carbon_gco2e_per_j is not None


def energy_terms(value: object, *, folder: Path, problems: Problems) -> EnergyTerms:
    """Return the section `energy` of a job, or no terms after recording its problems."""
    spec = problems.read(EnergySpec, value, "energy")
    if spec is None:
        return EnergyTerms()
    series = None
    if spec.series is not None:
        if spec.carbon is not None:
            problems.add("energy.carbon", "found together with series, which states it; give one")
        with problems.at("energy.series"):
            series = read_hourly(folder / spec.series)
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
    words = (f"site {site_in_words(cluster.site, terms)}",) if is_open else ()
    is_given = terms.device_usd_per_s is not None or terms.gives_price
    return words if is_given else (*words, *prices_in_words(cluster, terms))


def under_terms(cluster: Cluster, terms: EnergyTerms) -> Cluster:
    """Return the cluster with the prices and the intensity that a job gives.

    Who pays for energy owns the nodes, so that the catalog's rent, in which energy is, counts no
    more; who gives a price for devices too pays both.
    """
    price, carbon = terms.price_usd_per_j, terms.carbon_gco2e_per_j
    if terms.series is not None:
        price = terms.series.mean_price_usd_per_j if price is None else price
        carbon = terms.series.mean_carbon_gco2e_per_j
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


_CARBON, _PRICE = "gCO2e/kWh", "USD/kWh"
_HEAD = f"hour,{_CARBON} or hour,{_CARBON},{_PRICE}"
#: Ten years of hours, and no more bytes than they take.
_MOST_HOURS = 10 * 366 * 24
_LIMIT_BYTES = 16 << 20
_MOST_LISTED = 20
#: No grid and no market has come within a factor of ten.
_MOST_CARBON, _MOST_PRICE = 10_000.0, 1_000.0


def read_hourly(path: str | Path) -> HourlySeries:
    """Return the series of a CSV file: a row for each hour, no hour left out.

    The head is `hour,gCO2e/kWh` or `hour,gCO2e/kWh,USD/kWh`. Hours are whole numbers that rise by
    one, or times such as `2026-01-31T13:00` that rise by an hour. Prices may be below zero, as
    markets have them; intensities may not.

    Raises:
        JobError: The file cannot be read or is no such series; every problem has its line.
    """
    reader = csv.reader(read_text(path, limit_bytes=_LIMIT_BYTES).splitlines())
    try:
        rows = [[cell.strip() for cell in row] for row in reader]
    except csv.Error as error:
        raise JobError(str(path), [f"line {reader.line_num}: no CSV table ({error})"]) from None
    head = rows[0] if rows else []
    if head not in (["hour", _CARBON], ["hour", _CARBON, _PRICE]):
        found = ",".join(head) or "nothing"
        raise JobError(str(path), [f"line 1: found {shown(found)}, expected the head {_HEAD}"])
    body = [(line, row) for line, row in enumerate(rows[1:], start=2) if any(row)]
    faults: list[str] = []
    if not 1 <= len(body) <= _MOST_HOURS:
        raise JobError(
            str(path), [f"found {len(body):,} hours, expected from 1 to {_MOST_HOURS:,} of them"]
        )
    hours, columns = [], [[] for _ in head[1:]]  # type: tuple[list[str], list[list[float]]]
    before: int | datetime | None = None
    for line, row in body:
        if len(row) != len(head):
            faults.append(f"line {line}: found {len(row)} values, expected {len(head)}")
            before = None
            continue
        before = _followed(row[0], before, line, faults)
        hours.append(row[0])
        for number, (name, text) in enumerate(zip(head[1:], row[1:], strict=True)):
            columns[number].append(_value(name, text, line, faults))
    if faults:
        raise refusal(str(path), faults, most=_MOST_LISTED)
    return HourlySeries(
        name=Path(path).name,
        hours=tuple(hours),
        carbon_gco2e_per_j=tuple(value / JOULES_PER_KWH for value in columns[0]),
        price_usd_per_j=tuple(value / JOULES_PER_KWH for value in columns[1])
        if len(columns) > 1
        else None,
    )


def _followed(
    text: str, before: int | datetime | None, line: int, faults: list[str]
) -> int | datetime | None:
    """Return the hour of a row after noting what is wrong with it; None if it is none."""
    hour = _hour(text)
    if hour is None:
        faults.append(
            f"line {line}: hour: found {shown(text)}, expected a whole number or a time such as "
            "2026-01-31T13:00"
        )
        return None
    if before is None:
        return hour
    if isinstance(hour, int) and isinstance(before, int):
        gap: float = hour - before
    elif isinstance(hour, datetime) and isinstance(before, datetime):
        if (hour.tzinfo is None) != (before.tzinfo is None):
            faults.append(f"line {line}: hour: found {shown(text)}, expected a time zone in all")
            return hour
        gap = (hour - before) / timedelta(hours=1)
    else:
        faults.append(f"line {line}: hour: found {shown(text)}, expected the same kind in all rows")
        return hour
    if gap == 1:
        return hour
    if gap <= 0:
        what = "comes twice" if gap == 0 else "lies before the row above; sort the rows by hour"
        faults.append(f"line {line}: hour: {text} {what}")
    elif gap < 1:
        faults.append(f"line {line}: hour: {text} is no hour after the row above")
    else:
        missing = f"{gap - 1:g} hour{'s' if gap > 2 else ''} missing before it"
        faults.append(f"line {line}: hour: {text} has {missing}; fill the gap")
    return hour


def _hour(text: str) -> int | datetime | None:
    if (number := whole_number(text)) is not None:
        return number
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _value(name: str, text: str, line: int, faults: list[str]) -> float:
    least, most = (0.0, _MOST_CARBON) if name == _CARBON else (-_MOST_PRICE, _MOST_PRICE)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not least <= value <= most:
        found = shown(text) if text else "nothing"
        faults.append(
            f"line {line}: {name}: found {found}, expected a number from {least:g} to {most:g}"
        )
    return value
