"""The account of energy as text: stages, classes, components, waiting, power, runs, limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from wattree.predict.sweep import LimitedStep, PowerSweep
from wattree.report.parts import headed_table
from wattree.report.words import (
    NOT_APPLICABLE,
    carbon,
    count,
    grams,
    likely,
    money,
    part_in_words,
    percent,
    quantity,
    significant,
)
from wattree.trace import COMPONENTS, EnergyUse, Result, RunBill, ScheduleShift
from wattree.trace.bill import RUN_FIGURES, SUREST
from wattree.units import counted, format_bytes, format_quantity, format_time, plural

_BLOCKS, _PLAIN = "▁▂▃▄▅▆▇█", "_.-=+*%#"
#: Components that follow work, and those that follow all others of a node or site alike, whose
#: shares they leave as they are; what is in neither flows whatever runs.
_BY_WORK = {"device_dynamic", "host_loading", "storage"}
_FOLLOWING = {"fans", "conversion", "facility"}
_WAIT_WORDS = {
    "bubble": "other pipeline stages",
    "straggler": "the slowest of a group",
    "communication": "exposed communication",
    "input_starvation": "input",
}
#: Objective that is limited → what the limit is called.
_LIMIT_NAMES = {
    "time": "Deadline",
    "cost": "Budget",
    "energy": "Energy limit",
    "carbon": "Carbon limit",
}
#: Columns of the picture of power, which fits with its label in 80.
_COLUMNS = 48
#: Classes and waits below this share of the energy are left out of text; JSON has them all.
_NOTHING = 5e-4


def class_table(energy: EnergyUse) -> Table:
    """Return energy by stage and class of work, largest first within a stage."""
    rows: list[tuple[str, ...]] = []
    for stage in energy.by_stage:
        classes = _by_class(energy, stage).items()
        rows += [
            (
                "" if number else stage,
                name.replace("_", " "),
                quantity(whole, "J"),
                percent(whole / energy.total),
                percent(work / (rest + work)) if rest + work else NOT_APPLICABLE,
            )
            for number, (name, (whole, rest, work)) in enumerate(
                sorted(classes, key=lambda item: -item[1][0])
            )
            if whole >= _NOTHING * energy.total
        ]
    heads = ("stage", "class of work", "energy", "share", "dynamic")
    return headed_table(*heads, words=heads[:2], rows=rows)


def _by_class(energy: EnergyUse, stage: str) -> dict[str, tuple[float, float, float]]:
    """Return the energy of a stage's classes: in total, idle, and dynamic. [J]"""
    found: dict[str, list[float]] = {}
    for entry in energy.ledger:
        if entry.stage == stage:
            parts = found.setdefault(entry.operator_class, [0.0, 0.0, 0.0])
            parts[0] += entry.energy_j
            if entry.component not in _FOLLOWING:
                parts[2 if entry.component in _BY_WORK else 1] += entry.energy_j
    return {name: (whole, rest, work) for name, (whole, rest, work) in found.items()}


def component_table(energy: EnergyUse) -> Table:
    """Return energy by component, in the order of `COMPONENTS`."""
    rows = [
        (part_in_words(name), quantity(part, "J"), percent(part / energy.total))
        for name in COMPONENTS
        if (part := energy.by_component.get(name, 0.0))
    ]
    return headed_table("component", "energy", "share", rows=rows)


def unsplit_hosts(energy: EnergyUse) -> str:
    """Return a sentence on hosts whose power is not split by component; empty without any."""
    if not energy.unsplit_hosts:
        return ""
    names = ", ".join(energy.unsplit_hosts)
    return f"Hosts of {names} are not distinguished: their files name no parts (host.parts)."


def waiting_table(energy: EnergyUse) -> Table | None:
    """Return the energy spent waiting; None where it is negligible."""
    rows = [
        (
            _WAIT_WORDS[name],
            format_time(found.time_s),
            quantity(found.energy_j, "J"),
            money(found.cost_usd),
            grams(found.carbon_gco2e),
        )
        for name, found in energy.waiting.items()
        if found.energy_j >= _NOTHING * energy.total
    ]
    heads = ("waiting for", "time", "energy", "cost", "carbon")
    return headed_table(*heads, rows=rows) if rows else None


def sparkline(watts: Sequence[float], console: Console) -> str:
    """Return power over time in one line, from no power to the highest; nothing without any."""
    if not len(watts) or max(watts) <= 0:
        return ""
    marks = _BLOCKS if console.encoding.lower().startswith("utf") else _PLAIN
    edges = np.linspace(0, len(watts), _COLUMNS + 1)
    # Each column is the average of its part of the step, not a sample of it.
    reached = np.interp(edges, np.arange(len(watts) + 1), np.concatenate(([0], np.cumsum(watts))))
    heights = np.diff(reached) / np.diff(edges) / max(watts)
    return "".join(marks[round(float(h) * (len(marks) - 1))] for h in heights)


def probability(share: float) -> str:
    """Return a probability in whole percent; one that is as low or high as is said, as a bound."""
    if share <= 1 - SUREST:
        return f"< {100 * (1 - SUREST):.0f} %"
    return f"> {100 * SUREST:.0f} %" if share >= SUREST else f"{100 * share:.0f} %"


def run_facts(run: RunBill, most: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the totals of a run, and how probably it is within limits, as pairs of name and text.

    Args:
        most: Objective → the most of it that the run may have.
    """
    met = [
        (_LIMIT_NAMES[name], f"met with {probability(found)} probability")
        for name, limit in most.items()
        if (found := run.probability_within(RUN_FIGURES[name], limit)) is not None
    ]
    target = f"{count(run.samples)} {plural('sample', run.samples)}"
    if run.tokens is not None:
        target = f"{count(run.tokens)} {plural('token', run.tokens)}, {target}"

    def span(figure: str, shown: Callable[[float], str]) -> str:
        return likely(run.interval.get(figure), shown)

    goal = ("Target", f"{target}, {counted(run.steps, 'step')}")
    if run.never_ends:
        return [goal, ("Time", f"it never ends: {_failing(run)}"), *met]
    joules = quantity(run.energy_j, "J")
    emitted = carbon(run.carbon_gco2e, run.embodied_gco2e)
    return [
        goal,
        (
            "Time",
            f"{format_time(run.time_s)}{span('time_s', format_time)}"
            f"{' without interruptions' * (run.goodput == 1.0)}",
        ),
        *_interruptions(run),
        *_not_counted(run),
        (
            "Energy",
            f"{joules} = {_watt_hours(run.energy_j)}{span('energy_j', _watt_hours)}, with PUE",
        ),
        ("Cost", f"{money(run.cost_usd)}{span('cost_usd', money)}"),
        ("Carbon", f"{emitted}{span('carbon_gco2e', grams)}"),
        *met,
    ]


def _interruptions(run: RunBill) -> list[tuple[str, str]]:
    """Return what interrupts a run, as pairs of name and text; nothing if nothing does."""
    step = run.step
    if step is None or run.goodput == 1.0:
        return []
    failed = f"{significant(run.failures)} {plural('failure', run.failures)}"
    found = [("Goodput", f"{percent(run.goodput)}, with {failed} expected")]
    if step.checkpoint_every_s is not None:
        saved, every = format_bytes(step.checkpoint_bytes), format_time(step.checkpoint_every_s)
        found.append(
            ("Checkpoints", f"{saved} every {every}, {format_time(step.checkpoint_s)} each")
        )
    if step.assumed:
        found.append(("Assumed", ", ".join(step.assumed)))
    return found


def _not_counted(run: RunBill) -> list[tuple[str, str]]:
    """Return what a training's end of the interval has beyond its steps, as name and text."""
    if run.step is None or "time_s" not in run.interval:
        return []
    more = run.interval["time_s"][1] / run.time_s
    words = (
        "evaluation, stalls, restarts by hand: one published training in ten took more than "
        f"{significant(more)} times as long"
    )
    return [("Not counted", words)]


def _failing(run: RunBill) -> str:
    """Return how often a run fails, in words."""
    every = format_time(run.time_s / run.failures) if run.failures else ""
    return f"it fails every {every}, sooner than it restarts and saves a checkpoint"


def _watt_hours(energy_j: float) -> str:
    return quantity(energy_j / 3600, "Wh")


def shift_table(shift: ScheduleShift) -> Table:
    """Return what a run would cost if it started at other hours."""
    starts = {
        "first hour": shift.now,
        "least carbon": shift.least_carbon,
        "most carbon": shift.most_carbon,
        "least cost": shift.least_cost,
        "most cost": shift.most_cost,
    }
    rows = [
        (name, start.hour, grams(start.carbon_gco2e), money(start.energy_cost_usd))
        for name, start in starts.items()
        if start is not None
    ]
    return headed_table("start", "hour", "carbon", "price of energy", words={"hour"}, rows=rows)


def efficiency(result: Result) -> str:
    """Return tokens or samples for a joule, and the energy-delay product, in words."""
    samples = f"{significant(result.samples_per_j)} samples"
    per = samples
    if result.tokens_per_j is not None:
        per = f"{significant(result.tokens_per_j)} tokens"
    product = quantity(result.energy_delay_product_js, "J s")
    return f"{per} per joule, energy-delay product {product}"


def show_power_sweep(sweep: PowerSweep, console: Console) -> None:
    """Print one row per limit, and which of them is best for what."""
    table = headed_table()
    for head in ("limit", "step", "longer", "energy", "saved", "power", "EDP"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    for step in sweep.steps:
        table.add_row(
            f"{step.power_limit_w:g} W",
            format_time(step.step_time_s),
            percent(step.slowdown - 1.0),
            format_quantity(step.energy_j, "J"),
            percent(step.energy_saved),
            format_quantity(step.average_power_w, "W"),
            format_quantity(step.energy_delay_js, "J s"),
            _marks(step, sweep),
        )
    console.print(table)
    console.print()
    console.print(
        f"{_least_energy(sweep)} Least energy-delay product (EDP) at "
        f"{sweep.least_energy_delay_w:g} W. Energy with PUE, power before it."
    )


def _least_energy(sweep: PowerSweep) -> str:
    """Return where a step takes least energy, against the highest limit."""
    best = next(s for s in sweep.steps if s.power_limit_w == sweep.least_energy_w)
    where = f"Least energy at {best.power_limit_w:g} W per device"
    if best is sweep.steps[0]:
        return f"{where}, the highest of these limits: no lower one saves any."
    return (
        f"{where}: a step takes {percent(best.energy_saved)} less energy and "
        f"{percent(best.slowdown - 1.0)} more time than at {sweep.steps[0].power_limit_w:g} W."
    )


def _marks(step: LimitedStep, sweep: PowerSweep) -> str:
    marks = []
    if step.power_limit_w == sweep.least_energy_w:
        marks.append("least energy")
    if step.power_limit_w == sweep.least_energy_delay_w:
        marks.append("least EDP")
    return ", ".join(marks)
