"""The account of energy as people see it: tables, one line of power, a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.report.test_text import shown
from tests.samples import sample_result
from wattree.cli.main import run
from wattree.report import show_result
from wattree.report.energy_models_text import small
from wattree.trace import (
    EnergyEntry,
    EnergyUse,
    PowerOverTime,
    Result,
    RunBill,
    ScheduleShift,
    ShiftedStart,
    WaitingUse,
)

LEDGER = (
    ("computing", "matrix_products", "device_static", 20_000.0),
    ("computing", "matrix_products", "device_dynamic", 40_000.0),
    ("computing", "attention", "device_dynamic", 5_000.0),
    ("computing", "waiting", "host_idle", 5_000.0),
    ("communicating", "tensor_parallel", "device_dynamic", 4_000.0),
    ("communicating", "tensor_parallel", "switch", 1_000.0),
    ("materials", "preparing", "host_loading", 10.0),
    ("computing", "matrix_products", "facility", 15_000.0),
)


def accounted() -> Result:
    """Return a result with an account whose parts add up, and with all that may be asked for."""
    classes: dict[str, float] = {}
    components: dict[str, float] = {}
    stages = dict.fromkeys(("materials", "computing", "communicating"), 0.0)
    for stage, name, component, energy_j in LEDGER:
        stages[stage] += energy_j
        classes[name] = classes.get(name, 0.0) + energy_j
        components[component] = components.get(component, 0.0) + energy_j
    energy = EnergyUse(
        total=sum(stages.values()),
        by_stage=stages,
        static=41_000.0,
        dynamic=49_010.0,
        by_class=classes,
        by_component=components,
        ledger=tuple(
            EnergyEntry(stage=s, operator_class=o, component=c, energy_j=j) for s, o, c, j in LEDGER
        ),
        waiting={
            "bubble": WaitingUse(time_s=1.0, energy_j=5_000.0, cost_usd=0.01, carbon_gco2e=0.7),
            "straggler": WaitingUse(time_s=0.0, energy_j=0.0),
        },
    )
    rises = tuple(float(w) for w in range(256))
    start = ShiftedStart(start_hour=0, hour="0", carbon_gco2e=3e6, energy_cost_usd=None)
    return sample_result(
        energy_j=energy,
        embodied_gco2e=2.5,
        power=PowerOverTime(
            width_s=1 / 16, by_component={"device_static": (100.0,) * 256, "device_dynamic": rises}
        ),
        run=RunBill(
            tokens=1e12,
            samples=1.22e8,
            steps=953_675,
            time_s=1.5e7,
            energy_j=8.6e10,
            cost_usd=238_418.0,
            carbon_gco2e=1.1e7,
            embodied_gco2e=2.4e6,
            energy_delay_product_js=1.3e18,
        ),
        shift=ScheduleShift(
            series="grid.csv",
            hours=48,
            run_s=86_400.0,
            energy_j=4.9e8,
            now=start,
            least_carbon=ShiftedStart(
                start_hour=9, hour="9", carbon_gco2e=1e6, energy_cost_usd=None
            ),
            most_carbon=start,
        ),
    )


@pytest.mark.parametrize("columns", [80])
def test_the_account_reads_as_reviewed(golden: Golden, columns: int) -> None:
    """Energy by class and component, waiting, power in a line, a run, and when to start it."""
    golden.check(f"energy_{columns}.txt", shown(show_result, accounted(), columns))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "many"], "--tokens: found 'many', expected a whole count such as 1T, 300B"),
        (["--samples", "0"], "--samples: found '0', expected a whole count"),
        (["--tokens", "1.5"], "--tokens: found '1.5', expected a whole count"),
        (["--samples", "1.0001k"], "--samples: found '1.0001k', expected a whole count"),
        (["--plot", "power=a.xyz"], "--plot: found 'a.xyz', expected a name that ends in"),
        (["--plot", "power.gif"], "--plot: found 'power.gif', expected a name that ends in"),
        (["--plot", "x.gif"], "--plot: found 'x.gif', expected a name that ends in .svg or .png"),
        (["--plot", "heat=a.svg"], "--plot: found 'heat=a.svg', expected [NAME=]FILE with one of"),
        (["--plot", "power"], "--plot: found 'power', expected [NAME=]FILE with one of"),
        (["--tokens", "1T", "--samples", "1M"], "--tokens: found together with --samples"),
        (["--shift", "run"], "--shift: found 'run', expected --tokens or --samples as well"),
        (["--shift", "24"], "--shift: found '24', expected a number and a unit"),
        (["--shift", "24h"], "energy.series: is missing, expected a CSV file of hours"),
        (["--tokens", "1T"], "--tokens: the job has no data.sequence_length, so no tokens"),
    ],
)
def test_questions_that_cannot_be_answered_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    """In one line, naming the option."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: resnet-50\ndata: {global_batch: 64}\ncluster: {node: dgx-h100}\nstrategy: ddp\n"
    )

    assert run(["simulate", str(job), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_unit_is_never_left_with_a_thousand_of_it() -> None:
    """What rounds to the next unit is written in it."""
    assert [small(value, "J/B") for value in (9.999e-10, 9.99e-10, 9.999e-13, 0.0)] == [
        "1 nJ/B",
        "999 pJ/B",
        "1 pJ/B",
        "0 J/B",
    ]
