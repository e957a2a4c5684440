"""The key `energy`, and the hourly series that it may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.job.mappings import mapping
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.job.hourly import read_hourly
from wattree.job.written import yaml_text

HEAD = "hour,gCO2e/kWh,USD/kWh\n"


def job(energy: Any, folder: Path | None = None) -> Job:
    """Return a job under such terms."""
    return job_from_mapping(
        {
            "model": "llama-3.1-8b",
            "data": {"sequence_length": 8192, "global_batch": 128},
            "cluster": {"node": "dgx-h100", "nodes": 2, "site": "france"},
            "energy": energy,
        },
        "job.yaml",
        folder=folder or Path(),
    )


def problems(energy: Any, folder: Path | None = None) -> tuple[str, ...]:
    """Return what is said about it."""
    with pytest.raises(JobError) as caught:
        job(energy, folder)
    return caught.value.problems


def faults(tmp_path: Path, text: str) -> str:
    """Return what is said about a series."""
    path = tmp_path / "hours.csv"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        read_hourly(path)
    return "\n".join(caught.value.problems)


def test_prices_and_intensity_replace_those_of_site_and_nodes() -> None:
    """In SI units."""
    cluster = job({"price": "0.36 USD/kWh", "carbon": "72 gCO2e/kWh"}).cluster

    assert cluster.site.energy_price_usd_per_j == pytest.approx(1e-7)
    assert cluster.site.carbon_gco2e_per_j == pytest.approx(2e-5)
    assert cluster.site.pue == 1.56
    assert cluster.node.price_usd_per_s is None
    assert job({"device_price": "3.6 USD/h"}).cluster.node.price_usd_per_s == pytest.approx(8e-3)


def test_a_job_without_terms_keeps_its_cluster() -> None:
    """Nothing said, nothing changed."""
    assert job({}).cluster.node.price_usd_per_s is not None
    assert not job({}).cluster.site.bills_energy


def test_a_series_counts_by_its_average(tmp_path: Path) -> None:
    """Until somebody asks for an hour."""
    (tmp_path / "hours.csv").write_text(HEAD + "0,36,0.1\n1,108,-0.02\n")
    made = job({"series": "hours.csv"}, tmp_path)

    assert made.cluster.site.carbon_gco2e_per_j == pytest.approx(2e-5)
    assert made.cluster.site.energy_price_usd_per_j == pytest.approx(0.04 / 3.6e6)
    assert made.terms.series is not None
    assert made.terms.series.hours == ("0", "1")


def test_hours_may_be_times(tmp_path: Path) -> None:
    """Over a change of the day; without prices."""
    path = tmp_path / "hours.csv"
    path.write_text("hour,gCO2e/kWh\n2026-01-31T23:00,50\n2026-02-01T00:00,60\n")
    found = read_hourly(path)

    assert found.hours[1] == "2026-02-01T00:00"
    assert found.price_usd_per_j is None


@pytest.mark.parametrize(
    ("energy", "line"),
    [
        ({"price": "-1 USD/kWh"}, "energy.price: found '-1 USD/kWh', expected a finite quantity"),
        ({"carbon": "36 g"}, "energy.carbon: unknown unit 'g' in '36 g'"),
        ({"price": 0.1}, "energy.price: found 0.1, expected a quantity with its unit"),
        ({"embodied": {"device": "1 kgCO2e"}}, "energy.embodied.lifetime: is missing"),
        ({"prise": "1 USD/kWh"}, "energy: unknown key 'prise'; did you mean 'price'?"),
        ("cheap", "energy: found 'cheap', expected a mapping"),
        ({"series": "none.csv"}, "energy.series: none.csv"),
    ],
)
def test_terms_that_cannot_be_meant_are_refused(energy: Any, line: str) -> None:
    """Where, what was found, what was expected."""
    assert any(found.startswith(line) for found in problems(energy)), problems(energy)


def test_what_a_series_says_is_not_said_twice(tmp_path: Path) -> None:
    """Which of the two would count?"""
    (tmp_path / "hours.csv").write_text(HEAD + "0,36,0.1\n")
    given = {"series": "hours.csv", "price": "1 USD/kWh", "carbon": "1 gCO2e/kWh"}

    assert problems(given, tmp_path) == (
        "energy.carbon: found together with series, which states it; give one",
        "energy.price: found together with a series with prices; give one",
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "line 1: found 'nothing', expected the head hour,gCO2e/kWh"),
        ("time,carbon\n", "line 1: found 'time,carbon', expected the head hour,gCO2e/kWh"),
        (HEAD, "found 0 hours, expected from 1"),
        (HEAD + "0,1,1\n2,1,1\n", "line 3: hour: 2 has 1 hour missing before it; fill the gap"),
        (HEAD + "0,1,1\n5,1,1\n", "line 3: hour: 5 has 4 hours missing before it; fill the gap"),
        (HEAD + "3,1,1\n3,1,1\n", "line 3: hour: 3 comes twice"),
        (HEAD + "3,1,1\n2,1,1\n", "line 3: hour: 2 lies before the row above; sort the rows"),
        (HEAD + "noon,1,1\n", "line 2: hour: found 'noon', expected a whole number or a time"),
        (HEAD + "0,nan,1\n", "line 2: gCO2e/kWh: found 'nan', expected a number from 0"),
        (HEAD + "0,-4,1\n", "line 2: gCO2e/kWh: found '-4', expected a number from 0"),
        (HEAD + "0,4,\n", "line 2: USD/kWh: found nothing, expected a number from -1000"),
        (HEAD + "0,4\n", "line 2: found 2 values, expected 3"),
        (HEAD + f"{'0' * 131_073},1,1\n", "line 2: no CSV table (field larger than field limit"),
        (
            HEAD + "0,1,1\n2026-01-01T00:00,1,1\n",
            "line 3: hour: found '2026-01-01T00:00', expected",
        ),
        (
            HEAD + "2026-01-01T00:00,1,1\n2026-01-01T00:40,1,1\n",
            "line 3: hour: 2026-01-01T00:40 is no hour after the row above",
        ),
        (
            HEAD + "2026-01-01T00:00,1,1\n2026-01-01T00:15,1,1\n2026-01-01T00:45,1,1\n",
            "line 4: hour: 2026-01-01T00:45 has 1 row missing before it; fill the gap",
        ),
        (
            HEAD + "2026-01-01T00:00,1,1\n2026-01-01T00:15,1,1\n",
            "line 3: the last hour has 2 of 4 rows; complete it",
        ),
        (
            HEAD + "2026-01-01T00:30,1,1\n2026-01-01T01:00,1,1\n",
            "line 2: hour: 2026-01-01T00:30 is no full hour; begin with one",
        ),
        ("hour,EUR/MWh\n0,1\n", "convert prices to USD, no exchange rate is known"),
        (
            "hour,USD/kWh,USD/MWh\n0,1,1\n",
            "line 1: found 'hour,USD/kWh,USD/MWh', expected the head",
        ),
    ],
)
def test_series_that_cannot_be_used_are_refused(tmp_path: Path, text: str, line: str) -> None:
    """Gaps, disorder and what is no number: the line, what was found, what was expected."""
    assert line in faults(tmp_path, text)


def test_every_fault_of_a_series_has_its_line(tmp_path: Path) -> None:
    """Not one at a time."""
    assert len(faults(tmp_path, HEAD + "0,x,1\n2,-1,1\n1,1,y\n").splitlines()) == 5


def test_a_job_says_which_site_and_whose_rent_it_took() -> None:
    """Energy, cost and carbon rest on them."""
    assert job_from_mapping(mapping()).assumed == (
        "site world-average: PUE 1.56, 475 g CO2e per kWh",
        "rent of dgx-h100: $23.6 per hour, Nebius on-demand list price of an equal 8-GPU node, "
        "SkyPilot catalogue v8, 2025-26",
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cluster": {"node": "dgx-h100", "site": "sweden"}}, ("rent of dgx-h100",)),
        ({"energy": {"device_price": "2 USD/h"}}, ("site world-average",)),
        (
            {"energy": {"price": "0.1 USD/kWh"}},
            ("site world-average", "cost is that of energy alone"),
        ),
        (
            {"energy": {"price": "0.1 USD/kWh", "device_price": "2 USD/h"}},
            ("site world-average",),
        ),
        (
            {"cluster": {"node": "workstation-rtx-4090", "site": "us-average"}},
            (
                "PUE 1, as workstation-rtx-4090 stands in no data center; the file of a site",
                "energy: $0.0806 per kWh, of us-average; nothing for the nodes",
            ),
        ),
    ],
)
def test_what_a_job_names_itself_is_not_assumed(
    changes: dict[str, Any], told: tuple[str, ...]
) -> None:
    """Only defaults are assumptions."""
    found = job_from_mapping(mapping(**changes)).assumed

    assert len(found) == len(told)
    assert all(line.startswith(words) for line, words in zip(found, told, strict=True))


def test_nodes_of_no_data_center_have_its_pue_only_by_a_file(tmp_path: Path) -> None:
    """The average of data centers is for their cooling; a site's own file is the user's word."""
    site = {
        "pue": {"value": 1.3, "source": "estimate: a bill"},
        "carbon": None,
        "energy_price": None,
    }
    (tmp_path / "site.yaml").write_text(yaml_text({"name": "room", **site}))
    found = {}
    for node in ("workstation-gtx-1080", "laptop-rtx-4090", "2x-rtx-4090", "dgx-h100"):
        for place in ("world-average", "germany", "site.yaml"):
            cluster = {"node": node, "site": place}
            read = job_from_mapping(mapping(cluster=cluster), "job.yaml", folder=tmp_path)
            found.setdefault(node, []).append(read.cluster.site.pue)
    pools = [{"node": node, "nodes": 1} for node in ("dgx-h100", "workstation-gtx-1080")]
    fabric = "ethernet-10g"
    mixed = job_from_mapping(mapping(cluster={"pools": pools, "fabric": fabric})).cluster.site.pue

    assert found.pop("dgx-h100") == [1.56, 1.56, 1.3]
    assert list(found.values()) == [[1.0, 1.0, 1.3]] * 3
    assert mixed == 1.56


def test_series_of_markets_are_read_as_they_are_exported(tmp_path: Path) -> None:
    """Quarters of an hour are averaged; prices per MWh; either column alone."""
    path = tmp_path / "prices.csv"
    rows = [f"2026-01-01T{hour:02}:{minute:02}" for hour in (0, 1) for minute in (0, 15, 30, 45)]
    prices = [10, 20, 30, 40, -5, -5, -5, -5]
    path.write_text(
        "hour,USD/MWh\n" + "".join(f"{row},{usd}\n" for row, usd in zip(rows, prices, strict=True))
    )
    found = read_hourly(path)

    assert found.hours == ("2026-01-01T00:00", "2026-01-01T01:00")
    assert found.price_usd_per_j == pytest.approx((25 / 3.6e9, -5 / 3.6e9))
    assert found.carbon_gco2e_per_j is None
    priced = job({"series": "prices.csv", "carbon": "72 gCO2e/kWh"}, tmp_path)
    assert priced.cluster.site.carbon_gco2e_per_j == pytest.approx(2e-5)
    assert priced.cluster.site.energy_price_usd_per_j == pytest.approx(10 / 3.6e9)
