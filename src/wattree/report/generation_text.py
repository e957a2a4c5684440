"""Generation of tokens as text: times to tokens, the KV cache, and both phases."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from wattree.report.parts import headed_table
from wattree.report.words import column, count, percent, quantity
from wattree.trace import GenerationUse, Result
from wattree.units import counted, format_bytes, format_time


def generation_rows(use: GenerationUse) -> list[tuple[str, str]]:
    """Return the figures that people ask for first, each with its name."""
    rows = [
        (
            "Generation",
            f"{counted(use.sequences, 'sequence')}, {counted(use.prompt_length, 'token')} "
            f"of prompt, {use.generate_length:,} generated",
        ),
        ("First token", f"{format_time(use.time_to_first_token_s)} (all prompts)"),
    ]
    if use.time_per_output_token_s is not None:
        each_s = use.time_per_output_token_s
        rows.append(
            ("Output token", f"{format_time(each_s)}, {count(1 / each_s)} tokens/s of a sequence")
        )
    if use.kv_cache_bytes is not None:
        rows.append(("KV cache", f"{format_bytes(use.kv_cache_bytes)} on the fullest device"))
    return rows


def phase_table(use: GenerationUse) -> Table:
    """Return the prompts and the tokens after them side by side."""
    rows = [
        (
            name,
            format_time(phase.time_s),
            f"{phase.tokens:,}",
            count(phase.tokens_per_s),
            quantity(phase.energy_j, "J"),
            quantity(phase.energy_per_token_j, "J"),
            percent(phase.mfu),
        )
        for name, phase in (("prefill", use.prefill), ("decode", use.decode))
        if phase is not None
    ]
    heads = ("phase", "time", "tokens", "tokens/s", "energy", "per token", "MFU")
    return headed_table(*heads, rows=rows)


def token_columns(results: Sequence[Result]) -> list[tuple[str, str, list[str]]]:
    """Return columns on the times to tokens: name, unit, cells; none where some make no tokens."""
    uses = [each.generation for each in results if each.generation is not None]
    if not uses or len(uses) < len(results):
        return []
    return [
        ("first", *column([use.time_to_first_token_s for use in uses], "s")),
        ("token", *column([use.time_per_output_token_s for use in uses], "s")),
    ]


def energy_column(results: Sequence[Result]) -> tuple[str, list[str]]:
    """Return the unit and cells of energy: per training step, generated token or forward sample."""
    workloads = {each.workload for each in results}
    total = [each.energy_j.total for each in results]
    if workloads == {"generate"}:
        made = [(each.tokens_per_s or 0.0) * each.step_time_s for each in results]
        return column([j / count for j, count in zip(total, made, strict=True)], "J/tok")
    if workloads == {"forward"}:
        made = [each.samples_per_s * each.step_time_s for each in results]
        return column([j / count for j, count in zip(total, made, strict=True)], "J/smp")
    return column(total, "J")


def inference_rows(result: Result) -> list[tuple[str, str]]:
    """Return time and energy of a sample and of a token, of jobs that do not train."""
    total_j, samples = result.energy_j.total, result.samples_per_s * result.step_time_s
    words = f"{format_time(1 / result.samples_per_s)}, {quantity(total_j / samples, 'J')}"
    rows = [("Per sample", words)]
    if result.tokens_per_s is not None:
        tokens = result.tokens_per_s * result.step_time_s
        words = f"{format_time(1 / result.tokens_per_s)}, {quantity(total_j / tokens, 'J')}"
        rows.append(("Per token", words))
    return rows
