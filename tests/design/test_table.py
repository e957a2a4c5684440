"""The points of a study in a terminal: the best first, texts of files as they are."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from tests.design.studies import small_study
from wattree.design import Outcome, Results, WorkloadOutcome, study_from_mapping
from wattree.design.samplers import points_of
from wattree.report.design_table import show_points


def test_points_are_shown_best_first_in_the_units_of_the_study() -> None:
    """Infeasible points are counted with a reason; markup in a file's texts does nothing."""
    study = study_from_mapping(small_study(title="[red]which[/red]?", notes="[b]invented"))
    study = replace(study, notes=study.notes[:1])
    points = points_of(study)
    fits = [
        WorkloadOutcome(workload="llama", feasible=True, strategy=words)
        for words in ("tp 8", "dp 8")
    ]
    outcomes = (
        Outcome(point=points[0], feasible=False, reason="out of memory: by 3 GB"),
        Outcome(point=points[4], feasible=True, workloads=(fits[0],), totals={"time_s": 20.0}),
        Outcome(point=points[7], feasible=True, workloads=(fits[1],), totals={"time_s": 10.0}),
    )
    text = StringIO()
    show_points(Results(study=study, outcomes=outcomes, points=8), Console(file=text, width=78))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert lines == [
        "[red]which[/red]?",
        "note: [b]invented",
        "point memory bandwidth time",
        "#3 80 GB 400 GB/s 10 s",
        "#2 80 GB 100 GB/s 20 s",
        "#3: dp 8",
        "#2: tp 8",
        "3 of 8 points finished, 2 feasible",
        "1 x out of memory; for one: out of memory: by 3 GB",
    ]


def test_the_best_by_every_objective_is_in_the_table_in_one_unit() -> None:
    """However far behind it is by the first; units are those of answers and page."""
    study = replace(study_from_mapping(small_study()), notes=())
    fits = (WorkloadOutcome(workload="llama", feasible=True, strategy="dp 8"),)
    outcomes = tuple(
        Outcome(
            point=point,
            feasible=True,
            workloads=fits,
            totals={"time_s": time_s, "energy_j": 3.6e6 / time_s, "carbon_gco2e": 2e6},
        )
        for point, time_s in zip(points_of(study)[4:], (1.0, 2.0, 3.0, 4.0), strict=True)
    )
    text = StringIO()
    show_points(Results(study=study, outcomes=outcomes), Console(file=text, width=78), rows=1)
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert lines == [
        "small",
        "point memory bandwidth time energy carbon",
        "#1 80 GB 100 GB/s 1 s 1 kWh 2 tCO2e",
        "#4 80 GB 400 GB/s 4 s 250 Wh 2 tCO2e",
        "Energy with PUE.",
        "#1, #4: dp 8",
        "least time to target at #1, energy to target at #4",
        "4 of 4 points finished, 4 feasible, 2 shown",
    ]
    close = [1.0, 1.01, 1.02, 4.0]  # and the one of these that has the least capital is named
    alike = tuple(
        replace(one, totals={"time_s": time_s, "energy_j": time_s, "capital_usd": 1e6 - time_s})
        for one, time_s in zip(outcomes, close, strict=True)
    )
    text = StringIO()
    show_points(Results(study=study, outcomes=alike), Console(file=text, width=78), rows=1)
    assert "4 feasible, 3 shown" in text.getvalue()


def test_a_narrow_terminal_gets_whole_figures_of_fewer_totals() -> None:
    """What a study asks for stays longest, its first objective always; the rest is named."""
    axes = {
        f"axis{number}": {"path": path, "values": values, "label": label}
        for number, (path, values, label) in enumerate(
            (
                ("device.memory", ["40 GB", "80 GB"], "memory per device"),
                ("node.nic_bandwidth", ["200 Gbit/s", "400 Gbit/s"], "network adapter"),
                ("cluster.nodes", [8, 16], "nodes"),
            )
        )
    }
    study = replace(study_from_mapping(small_study(axes=axes)), notes=())
    totals = {"time_s": 8e5, "energy_j": 1.5e11, "cost_usd": 28412.0, "carbon_gco2e": 2e7}
    totals |= {"power_w": 2e5, "capital_usd": 3.78e6}
    fits = (WorkloadOutcome(workload="llama", feasible=True, strategy="dp 8"),)
    outcomes = tuple(
        Outcome(point=point, feasible=True, workloads=fits, totals=totals)
        for point in points_of(study)
    )
    text, narrow = StringIO(), StringIO()
    show_points(Results(study=study, outcomes=outcomes), Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    wanted = replace(study, objectives=("cost", "time", "energy", "carbon", "capital"))
    show_points(Results(study=wanted, outcomes=outcomes), Console(file=narrow, width=80))
    assert "$3.78 million" in narrow.getvalue()
    assert max(map(len, narrow.getvalue().splitlines())) <= 80
    assert "Energy with PUE. Not shown: power, carbon." in narrow.getvalue().splitlines()
    narrow = StringIO()
    show_points(Results(study=wanted, outcomes=outcomes), Console(file=narrow, width=30))
    assert "Not shown: power, carbon," in narrow.getvalue()
    assert narrow.getvalue().count("$28,412\n") == 8

    assert max(map(len, lines)) <= 80
    assert "…" not in text.getvalue()
    assert sum("9.26 d" in line and "$3.78 million" in line for line in lines) == 8
    assert sum("400 Gbit/s" in line for line in lines) == 4
    assert "Energy with PUE. Not shown: carbon, power." in lines


def test_reasons_come_with_a_remedy_where_nothing_fits() -> None:
    """Which constraint or axis to change; where something fits, the axes show it."""
    study = replace(study_from_mapping(small_study()), notes=())
    reasons = ("over the power cap", "over the budget: all targets cost 9 USD", "no such node")
    bad = [
        Outcome(point=point, feasible=False, reason=reason)
        for point, reason in zip(points_of(study), reasons, strict=False)
    ]
    fits = Outcome(point=points_of(study)[3], feasible=True, totals={"time_s": 1.0})

    def lines(*outcomes: Outcome) -> list[str]:
        text = StringIO()
        show_points(Results(study=study, outcomes=outcomes), Console(file=text, width=300))
        return [each.strip() for each in text.getvalue().splitlines()]

    assert lines(*bad)[-5:] == [
        "1 x over the power cap",
        "what would help: a higher constraints.power, an axis cluster.power_limit (of each "
        "device), or fewer devices (cluster.nodes; search.fewer_devices: true)",
        "1 x over the budget; for one: over the budget: all targets cost 9 USD",
        "what would help: a larger constraints.budget, or an axis cluster.nodes or cluster.node",
        "1 x no such node",
    ]
    assert not any("would help" in line for line in lines(*bad, fits))
    late = [
        Outcome(
            point=point,
            feasible=False,
            reason=f"past the deadline: the run takes at least {days} d, more than 1 d",
            totals={"time_s": days * 86400.0},
        )
        for point, days in zip(points_of(study), (9, 4, 6), strict=False)
    ]
    axes = {"nodes": {"path": "cluster.nodes", "values": [8, 16]}}
    study = replace(study, axes=(*study.axes, *study_from_mapping(small_study(axes=axes)).axes))
    late = [
        replace(one, point=replace(one.point, values={**one.point.values, "nodes": 8}))
        for one in late
    ]
    assert lines(*late)[2:4] == [
        "3 x past the deadline; nearest, #2 (bandwidth 158.7 GB/s): the run takes at least 4 d, "
        "more than 1 d",
        "what would help: a later constraints.deadline (4.00 d at least), or larger values of axis "
        "nodes or an axis cluster.node",
    ]
