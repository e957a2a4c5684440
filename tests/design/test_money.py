"""What a study says of its costs: whose prices count, and what they leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.design.studies import small_study
from wattree.design import Results, cost_note, run_study, study_from_mapping
from wattree.design.answers import summarize, sweep_of
from wattree.errors import JobError
from wattree.report.design.words import worth_sentence


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "cost is the rent of the nodes at list price, electricity in it"),
        ({"node.price": "9 USD/h"}, "cost is the rent of the nodes at node.price, electricity"),
        ({"capital.node": "300 kUSD"}, "prices under 'capital' count in capital alone"),
        ({"capital.node": "300 kUSD", "capital.lifetime": "1460 d"}, "no electricity in it"),
        (
            {
                "capital.node": "300 kUSD",
                "capital.lifetime": "1460 d",
                "site.energy_price": "0.2 USD/kWh",
            },
            "cost is prices under 'capital' over capital.lifetime, and energy at the price of",
        ),
        ({"site.energy_price": "0.2 USD/kWh"}, "has no effect on cost"),
        ({"capital.lifetime": "1460 d"}, "capital.lifetime has no effect: nothing under 'capital'"),
        (
            {"job.energy.price": "0.2 USD/kWh"},
            "cost is what job.energy.price says; nothing for the nodes",
        ),
        ({"job.energy.device_price": "2 USD/h"}, "cost is what job.energy.device_price says"),
    ],
)
def test_what_costs_consist_of_and_leave_out_is_said(changes: dict[str, str], told: str) -> None:
    """Prices that are not in the cost, and electricity that no one pays, are notes of the study."""
    found = {name: {"value": value, "source": "test"} for name, value in changes.items()}
    study = {
        "workloads": [{"name": "one", "job": {"model": "gpt2", "data": {"global_batch": 8}}}],
        "cluster": {"node": "dgx-h100", "nodes": 1, "site": "france"},
        "changes": found,
        "axes": {"nodes": {"path": "cluster.nodes", "values": [1, 2]}},
    }
    found_study = study_from_mapping(study)

    assert any(told in note for note in found_study.notes)
    assert cost_note(found_study)


def test_prices_that_the_job_s_own_replace_are_named() -> None:
    """The job pays energy and devices; what the study gives besides is in no cost."""
    capital = {"capital.node": "300 kUSD", "capital.lifetime": "1460 d", "node.price": "9 USD/h"}
    for own, told in (
        (
            {"job.energy.price": "0.2 USD/kWh", **capital},
            "capital.lifetime and capital.node and node.price have no effect on cost",
        ),
        (
            {"job.energy.device_price": "2 USD/h", "node.price": "9 USD/h"},
            "node.price has no effect on cost",
        ),
    ):
        changes = {name: {"value": value, "source": "test"} for name, value in own.items()}
        assert told in study_from_mapping(small_study(changes=changes)).notes


@pytest.mark.parametrize("as_change", [False, True])
def test_a_series_with_prices_and_embodied_emissions_are_named(
    tmp_path: Path, *, as_change: bool
) -> None:
    """Each is in a total: the price of energy in place of the rent, the emissions in carbon."""
    (tmp_path / "hours.csv").write_text("hour,gCO2e/kWh,USD/kWh\n0,50,0.2\n")
    own = {"embodied": {"device": "150 kgCO2e", "lifetime": "1460 d"}}
    own |= {} if as_change else {"series": "hours.csv"}
    changes = {"job.energy.series": {"value": "hours.csv", "source": "test"}}
    job = {"model": "gpt2", "data": {"global_batch": 8}, "energy": own}
    study = small_study(
        workloads=[{"name": "one", "job": job}], changes=changes if as_change else {}
    )
    notes = study_from_mapping(study, folder=tmp_path).notes

    assert "cost is what the series of job.energy says; nothing for the nodes" in notes
    assert "carbon includes what job.energy.embodied says" in notes
    assert not any(note.startswith("rent of") for note in notes)


def test_notes_name_no_rent_that_no_one_pays() -> None:
    """The job prices energy, as the study says or its own file; as `simulate`, no rent is named."""
    changes = {"job.energy.price": {"value": "0.2 USD/kWh", "source": "test"}}
    own = {"model": "gpt2", "data": {"global_batch": 8}, "energy": {"device_price": "2 USD/h"}}
    studies = [
        small_study(changes=changes),
        small_study(workloads=[{"name": "one", "job": own}]),
    ]
    kept = small_study(changes={"capital.lifetime": {"value": "1460 d", "source": "test"}})

    rents = [
        [note for note in study_from_mapping(each).notes if note.startswith("rent of")]
        for each in (*studies, kept)
    ]
    assert [len(each) for each in rents] == [0, 0, 1]


def test_hardware_is_used_for_some_time() -> None:
    """Over no time, nothing could be paid off."""
    changes = {
        "capital.node": {"value": "300 kUSD", "source": "test"},
        "capital.lifetime": {"value": "0 d", "source": "test"},
    }

    with pytest.raises(JobError, match=r"capital\.lifetime: .*above zero"):
        study_from_mapping(small_study(changes=changes))


def test_nodes_whose_rent_is_not_known_are_named_with_what_gives_one() -> None:
    """A dash where a cost should stand says neither."""
    nodes = {"path": "cluster.node", "values": ["dgx-h100", "workstation-rtx-5090"]}
    mapping = small_study(cluster={"node": "dgx-h100"}, axes={"node": nodes})
    notes = study_from_mapping(mapping).notes
    priced = study_from_mapping({**mapping, "changes": {"node.price": "10 USD/h"}}).notes

    assert (
        "no rent is known of workstation-rtx-5090: such points have no cost; node.price under "
        "'changes' or in a choice of an axis gives one, such as 10 USD/h"
    ) in notes
    assert not [note for note in priced if note.startswith("no rent")]
    assert "site world-average: PUE 1.56, 475 g CO2e per kWh" in notes
    assert any(note.startswith("PUE 1, as workstation-rtx-5090 stands in no") for note in notes)


def test_whose_rents_are_compared_is_said() -> None:
    """List prices of two providers differ for the same machine; so does the site, by default."""
    nodes = {"path": "cluster.node", "values": ["dgx-h100", "p5.48xlarge"]}
    notes = study_from_mapping(
        small_study(cluster={"node": "dgx-h100"}, axes={"node": nodes})
    ).notes

    assert [note.split(",")[0] for note in notes] == [
        "cost is the rent of the nodes at list price",
        "site world-average: PUE 1.56",
        "rent of dgx-h100: $23.6 per hour",
        "rent of p5.48xlarge: $55.04 per hour",
        "rents are of several providers (AWS",
    ]


@pytest.mark.parametrize(("others", "count"), [(["aws-eu-north-1"], 1), (["france"], 0)])
def test_sites_whose_carbon_is_of_several_sources_are_said(others: list[str], count: int) -> None:
    """One grid has 41 g/kWh by one source and 8 by another."""
    sites = {"path": "cluster.site", "values": ["sweden", *others]}
    notes = study_from_mapping(small_study(axes={"site": sites})).notes

    words = "carbon intensities are of several sources (Cloud Carbon Footprint coefficients, Code"
    assert sum(note.startswith(words) for note in notes) == count


def _points(tmp_path: Path, nodes: list[str], **changes: Any) -> Results:
    """Return one step on each of the nodes, at a site that has a price of energy."""
    one = small_study()["workloads"][0] | {"search": {"pp": 1, "cp": 1, "simulate": 0}}
    mapping = small_study(
        workloads=[one],
        cluster={"node": nodes[0], "site": "us-average"},
        axes={"node": {"path": "cluster.node", "values": nodes}},
        objectives=["time", "cost"],
    )
    study = study_from_mapping(mapping | changes)
    return run_study(study, store=tmp_path / f"{study.digest}.sqlite", on="here")


def test_energy_alone_is_no_cost_next_to_rents(tmp_path: Path) -> None:
    """A node without a known rent would win for the rent that no one knows, and meet any budget."""
    mixed = _points(tmp_path, ["dgx-h200", "8x-mi300x"])
    limited = _points(tmp_path, ["dgx-h200", "8x-mi300x"], constraints={"budget": "1 MUSD"})

    assert np.isnan(mixed.objective("cost")).tolist() == [False, True]
    assert limited.feasible.tolist() == [True, False]
    assert str(limited.outcomes[1].reason).startswith("no price: the budget cannot be checked")
    ranked = _points(tmp_path, ["dgx-h200", "8x-mi300x"], objectives=["cost", "time"])
    assert str(ranked.outcomes[1].reason).startswith("no price: node 8x-mi300x has none")
    for found in (limited, ranked):
        answer, _ = summarize(found).worths["node"]
        words = worth_sentence(sweep_of(found), answer)
        assert words == "No price is known at other values, none is better than dgx-h200."
    assert any(note.startswith("no rent is known of 8x-mi300x") for note in mixed.study.notes)


def test_rent_is_no_cost_next_to_what_others_buy(tmp_path: Path) -> None:
    """Rent has in it what owners pay besides; a price of nothing is a price."""
    choices = {
        "rented": {"capital.lifetime": "1460 d"},
        "bought": {"capital.node": "480 kUSD"},
        "paid off": {"capital.node": "0 USD"},
    }
    changes = {"capital.lifetime": "1460 d", "node.price": "9 USD/h"}
    mixed = {"axes": {"offer": {"choices": choices}}, "changes": changes}
    listed = _points(tmp_path, ["dgx-h100"], **mixed)
    ranked = _points(tmp_path, ["dgx-h100"], **mixed, objectives=["cost", "time"])

    assert np.isnan(listed.objective("cost")).tolist() == [True, False, False]
    assert ranked.feasible.tolist() == [False, True, True]
    assert str(ranked.outcomes[0].reason).startswith("no price: none under 'capital'")
    notes = [note for note in ranked.study.notes if "cost" in note]
    assert notes[1].startswith("offer rented: such points have no cost")
    assert notes[2] == "node.price has no effect on cost"


def test_energy_alone_is_the_cost_where_no_rent_is_known(tmp_path: Path) -> None:
    """Such points compare with each other, and the study says what they pay."""
    found = _points(tmp_path, ["8x-mi300x", "8x-mi355x"])

    assert np.isfinite(found.objective("cost")).all()
    assert "nothing for the nodes" in str(cost_note(found.study))
    assert not any("such points have no cost" in note for note in found.study.notes)


@pytest.mark.parametrize("limit", [{"carbon": "0.001 gCO2e"}, {"energy": "0.001 Wh"}])
def test_carbon_and_energy_are_limited_as_money_is(tmp_path: Path, limit: dict[str, str]) -> None:
    """By strategy and by point; the reason names the limit."""
    found = _points(tmp_path, ["dgx-h200"], constraints=limit)

    assert not found.feasible.any()
    assert f"over the {next(iter(limit))} limit: the run" in str(found.outcomes[0].reason)
    (total,) = found.outcomes[0].totals  # the least of it, for the point that is nearest
    assert total.startswith(next(iter(limit)))
