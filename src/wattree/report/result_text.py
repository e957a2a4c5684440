"""A result as text: tables for terminals of 80 columns and wider ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wattree.report.energy_text import (
    class_table,
    component_table,
    efficiency,
    run_facts,
    shift_table,
    sparkline,
    unsplit_hosts,
    waiting_table,
)
from wattree.report.generation_text import generation_rows, inference_rows, phase_table
from wattree.report.neighbours_text import show_neighbours
from wattree.report.parts import (
    INDENT,
    bullets,
    facts_table,
    headed_table,
    section,
    share,
    shares_table,
)
from wattree.report.pools_text import pool_table, tier_shortages
from wattree.report.use_text import (
    colocation_table,
    colocation_title,
    loading_table,
    loading_title,
    show_live,
)
from wattree.report.words import (
    SHOWN_SHARE,
    average_power,
    carbon,
    changed_function,
    count,
    grams,
    how_sure,
    job_in_words,
    joules,
    likely,
    money,
    part_in_words,
    parts_in_words,
    percent,
    quantity,
    strategy_in_words,
    time_parts,
    watts,
    with_pue,
)
from wattree.trace import Evidence, MemoryFix, PoolUse, Result, TierUse
from wattree.units import counted, format_bytes, format_time


def show_result(
    result: Result,
    console: Console,
    *,
    full: bool = True,
    memory: bool = False,
    strategy: str | None = None,
) -> None:
    """Print a result: time, throughput, memory, energy, money, carbon and their evidence.

    Args:
        full: Also memory by category, energy by class and component, and the evidence; otherwise
            what fits on one screen, and what the job asks for by its keys.
        memory: Also list the live tensors at the peak.
        strategy: In words; those that the result's tree has if None.
    """
    _headline(result, strategy or strategy_in_words(result.strategy), console)
    if result.generation is not None:
        section("Prompts, and the tokens after", phase_table(result.generation), console)
    section("Where the step goes (slowest rank)", _time_table(result, console), console)
    if not full:
        _rest_of_short(result, console, memory=memory)
        return
    if result.materials is not None:
        table = loading_table(result.materials, result.step_time_s)
        section(loading_title(result.materials), table, console)
    if result.colocation is not None:
        table = colocation_table(result.colocation, result.step_time_s)
        section(colocation_title(result.colocation), table, console)
    _memory(result, console, fullest=_fullest(result.pools))
    if memory:
        show_live(result.memory, console)
    if result.tiers:
        section("Memory behind the devices", _tier_table(result.tiers), console)
    if result.pools:
        section("Pools", pool_table(result.pools), console)
    _energy_sections(result, console)
    section("Power", _bill(result, console), console)
    _run_sections(result, console)
    if result.neighbours is not None:
        show_neighbours(result.neighbours, console)
    section("What the numbers rest on", evidence_table(result.provenance), console)
    if result.assumed:
        section("Assumed, because the job does not say", bullets(result.assumed), console)
    size = result.simulation
    console.print(
        Text(
            f"\nSimulated {counted(size.tasks, 'task')}, {counted(size.events, 'event')}, "
            f"{counted(size.rank_classes, 'rank class')} for {counted(result.ranks, 'rank')}; "
            f"compiled in {format_time(size.compile_s)}, "
            f"executed in {format_time(size.run_s)}.",
            style="dim",
        )
    )


def _rest_of_short(result: Result, console: Console, *, memory: bool) -> None:
    """Print what the job or the command requests in addition to the figures of the step."""
    for title in (
        result.materials and loading_title(result.materials),
        result.colocation and colocation_title(result.colocation),
    ):
        if title:
            console.print(f"\n{title}", highlight=False)
    if not result.memory.fits:
        _remedies(result, console)
    if memory:
        show_live(result.memory, console)
    if result.pools:
        section("Pools", pool_table(result.pools), console)
    _run_sections(result, console)
    if result.neighbours is not None:
        show_neighbours(result.neighbours, console)
    if result.assumed:
        section("Assumed, because the job does not say", bullets(result.assumed), console)
    words = "--full adds memory by category, energy by class and component, power, and evidence."
    console.print(Text(f"\n{words}", style="dim"))


def summary_rows(result: Result) -> list[tuple[str, Text | str]]:
    """Return the main figures of a step, each with its name."""
    span = likely(result.interval.get("step_time_s"), format_time)
    own = result.generation
    name = "Step time" if own is None else "Time"
    return [
        *(() if own is None else generation_rows(own)),
        (name, Text.assemble((format_time(result.step_time_s), "bold"), span)),
        ("Throughput", _throughput(result)),
        (
            "Utilization",
            f"MFU {percent(result.mfu)}, HFU {percent(result.hfu)} of the dense "
            f"{result.mfu_precision} peak",
        ),
        ("Memory", _memory_in_words(result)),
        (
            "Energy",
            f"{quantity(result.energy_j.total, 'J')}"
            f"{likely(result.interval.get('energy_j'), joules)} per {result.timed}, "
            f"{with_pue(result.pue)}",
        ),
        ("Power", average_power(result.average_power_w, result.pue)),
        *(inference_rows(result) if result.workload == "forward" else ()),
        *_bill_rows(result),
    ]


def _memory_in_words(result: Result) -> Text:
    memory = result.memory
    span = likely(result.interval.get("memory.peak_bytes"), format_bytes)
    verdict = Text("fits", style="green") if memory.fits else Text("does not fit", style="bold red")
    verdict.append(how_sure(result.fit_probability))
    held = f"{format_bytes(memory.peak_bytes)}{span} of {format_bytes(memory.capacity_bytes)}"
    behind = tier_shortages(result.tiers)
    return Text.assemble(held, "; " * bool(behind), behind, ", ", verdict)


def _run_sections(result: Result, console: Console) -> None:
    """Print what a run to its target takes, and what its start's hour changes."""
    if result.run is not None:
        facts = facts_table(run_facts(result.run, {}))
        section("A run to its target, at this pace", facts, console)
    if result.shift is not None:
        made = result.shift.embodied_gco2e
        title = (
            f"A run of {format_time(result.shift.run_s)} "
            f"({quantity(result.shift.energy_j / 3600, 'Wh')} with PUE"
            f"{'' if made is None else f', {grams(made)} embodied'}) by the hour that it starts"
        )
        section(title, shift_table(result.shift), console)


def _headline(result: Result, strategy: str, console: Console) -> None:
    console.print(Text(job_in_words(result), style="bold"))
    console.print(Text(strategy))
    console.print()
    work = (
        f"{count(result.parameters)} parameters, "
        f"{quantity(result.model_flop_per_step, 'FLOP')} per {result.timed}"
    )
    facts = [*summary_rows(result), ("Work", work)]
    if result.dense_parameters is not None:
        facts.append(("Function", changed_function(result.parameter_ratio)))
    console.print(facts_table(facts))


def _throughput(result: Result) -> str:
    samples = f"{count(result.samples_per_s)} samples/s"
    if result.tokens_per_s is None:
        return f"{samples}, {count(result.samples_per_s / result.ranks)} per device"
    return (
        f"{count(result.tokens_per_s)} tokens/s, "
        f"{count(result.tokens_per_s_per_device)} per device, {samples}"
    )


def _time_table(result: Result, console: Console) -> Table:
    parts = {
        name: part
        for name, part in time_parts(result).items()
        if part >= SHOWN_SHARE * result.step_time_s
    }
    return shares_table(
        [(part_in_words(name), part, format_time(part)) for name, part in parts.items()],
        total=result.step_time_s,
        console=console,
    )


def _fullest(pools: Sequence[PoolUse]) -> str:
    """Return which rank class is the fullest, in brackets; nothing where all nodes are alike."""
    used = [pool for pool in pools if pool.fullest]
    if not used:
        return ""
    share = max(used, key=lambda pool: pool.peak_memory_bytes / pool.memory_capacity_bytes)
    return f" ({share.fullest})"


def _memory(result: Result, console: Console, *, fullest: str) -> None:
    memory = result.memory
    title = Text.assemble(
        (f"Memory of the fullest device{fullest}: ", "bold"), _memory_in_words(result)
    )
    parts = sorted(memory.by_category.items(), key=lambda part: -part[1])
    rows = [(name.replace("_", " "), size, format_bytes(size)) for name, size in parts if size]
    section(title, shares_table(rows, total=memory.peak_bytes, console=console), console)
    _remedies(result, console)


def _remedies(result: Result, console: Console) -> None:
    """Print changes that lower the peak of memory, where these were searched."""
    memory = result.memory
    if memory.fixes:
        title = Text("Changes that lower the peak" if memory.fits else "Changes that make it fit")
        section(title, fixes_table(memory.fixes), console)
    elif not memory.fits and result.workload == "train":
        console.print(Padding("No single change makes it fit; try more devices.", INDENT))


def fixes_table(fixes: Sequence[MemoryFix]) -> Table:
    """Return changes that lower the peak of memory, with what they make of peak and time."""
    return headed_table(
        *("change", "peak", "step time"),
        rows=[(f.change, format_bytes(f.peak_bytes), format_time(f.step_time_s)) for f in fixes],
    )


def _tier_table(tiers: Sequence[TierUse]) -> Table:
    rows = [
        (
            tier.name,
            format_bytes(tier.used_bytes),
            f"{format_bytes(tier.capacity_bytes)} "
            + ("pooled" if tier.capacity_of == "pool" else f"a {tier.capacity_of}"),
            "fits" if tier.fits else "does not fit",
            format_bytes(tier.traffic_bytes),
        )
        for tier in tiers
    ]
    return headed_table("memory", "used", "of", "", "moved in a step", rows=rows)


def _energy(result: Result, console: Console) -> Table:
    energy = result.energy_j
    rows = [(stage, part, quantity(part, "J")) for stage, part in energy.by_stage.items()]
    table = shares_table(rows, total=energy.total, console=console)
    span = likely(result.interval.get("energy_j"), joules)
    table.add_row("total", quantity(energy.total, "J"), "", span.strip())
    table.add_row("static part", quantity(energy.static, "J"), share(energy.static, energy.total))
    table.add_row(
        "dynamic part", quantity(energy.dynamic, "J"), share(energy.dynamic, energy.total)
    )
    return table


def _energy_sections(result: Result, console: Console) -> None:
    title = f"Energy of one {result.timed}, node overheads included, {with_pue(result.pue)}"
    section(title, _energy(result, console), console)
    energy = result.energy_j
    if energy.ledger:
        section("Energy by class of work", class_table(energy), console)
        section("Energy by component", component_table(energy), console)
        if note := unsplit_hosts(energy):
            console.print(note, style="dim")
    waiting = waiting_table(energy)
    if waiting is not None:
        section("Cost of waiting (part of the above; average over ranks)", waiting, console)


def _bill(result: Result, console: Console) -> Table:
    words = (
        f"{quantity(result.average_power_w, 'W')}"
        f"{likely(result.interval.get('average_power_w'), watts)} on average, "
        f"{quantity(result.peak_power_w, 'W')} at the peak, before PUE"
    )
    curve = [] if result.power is None else [("", sparkline(result.power.total_w, console))]
    return facts_table([("Power", words), *curve, ("Efficiency", efficiency(result))])


def _bill_rows(result: Result) -> list[tuple[str, Text | str]]:
    span = likely(result.interval.get("cost_usd"), money)
    cost = f"{money(result.cost_usd)}{span} per {result.timed}{_per_unit(result)}"
    emitted = f"{carbon(result.carbon_gco2e, result.embodied_gco2e)} per {result.timed}"
    is_priced, is_located = result.cost_usd is not None, result.carbon_gco2e is not None
    return [
        ("Cost", cost if is_priced else "no price is known for these nodes"),
        ("Carbon", emitted if is_located else "no grid intensity is known for this site"),
    ]


def _per_unit(result: Result) -> str:
    """Return the cost of a billion tokens, or of a million samples where they have none."""
    if result.cost_usd is None:
        return ""
    if result.tokens_per_s is None:
        samples = result.samples_per_s * result.step_time_s
        return f", {money(result.cost_usd / samples * 1e6)} per million samples"
    tokens = result.tokens_per_s * result.step_time_s
    return f", {money(result.cost_usd / tokens * 1e9)} per billion tokens"


def evidence_table(provenance: Mapping[str, Evidence]) -> Table:
    """Return the name, the evidence and the composition of each quantity."""
    table = headed_table()
    table.add_column("quantity", no_wrap=True)
    table.add_column("evidence", no_wrap=True)
    table.add_column("shares and notes", ratio=1)
    for name, evidence in provenance.items():
        words = parts_in_words(evidence.share)
        note = "; ".join(part for part in (words, evidence.note) if part)
        table.add_row(_without_unit(name), str(evidence.evidence), note)
    return table


def _without_unit(field: str) -> str:
    """Return a field's name as words: `step_time_s` is the step time."""
    parts = field.split(".")
    for ending in ("_s", "_bytes", "_w", "_j", "_usd", "_gco2e"):
        parts = [part.removesuffix(ending) for part in parts]
    return " ".join(parts).replace("_", " ")
