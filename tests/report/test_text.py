"""Results and plans as people see them."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from tests.samples import GIB, sample_plan, sample_result, too_large
from wattree.report import show_plan, show_result
from wattree.report.compare_text import show_comparison
from wattree.report.html.views import plan_view
from wattree.report.plots.of_runs import run_plots
from wattree.report.words import column, count, money, quantity, significant, strategy_in_words
from wattree.search.compared import compare
from wattree.strategy import StrategyOptions, options_in_words


def shown(show: Any, value: Any, columns: int) -> str:
    """Return what a console of that width prints."""
    console = Console(file=io.StringIO(), width=columns, highlight=False, legacy_windows=False)
    show(value, console)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("columns", [80, 120])
def test_a_result_reads_as_reviewed(golden: Any, columns: int) -> None:
    """The report is the product; a change to it is looked at by a person."""
    golden.check(f"result_{columns}.txt", shown(show_result, sample_result(), columns))


def test_updates_on_the_host_are_no_overhead_of_launches() -> None:
    """A reader otherwise looks for launches where the host updates parameters."""
    plain = sample_result()
    offloaded = sample_result(strategy={**plain.strategy, "offload": {"optimizer": "host"}})

    assert "host overhead" in shown(show_result, plain, 80)
    assert "host optimizer and overhead" in shown(show_result, offloaded, 80)

    runs = compare([offloaded, plain])
    figures = {run.name: run.figures for run in runs.runs}
    texts = shown(show_comparison, runs, 120), *runs.reasons, run_plots(figures)[0].summary
    assert not [each for each in texts if "host overhead" in each]
    assert "host optimizer and overhead" in texts[0]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_plan_reads_as_reviewed(golden: Any, columns: int) -> None:
    """As for a result."""
    golden.check(f"plan_{columns}.txt", shown(show_plan, sample_plan(), columns))


@pytest.mark.parametrize(
    ("show", "value"), [(show_result, sample_result), (show_plan, sample_plan)]
)
def test_the_short_answer_fits_on_one_screen(golden: Any, show: Any, value: Any) -> None:
    """What most people ask is answered before anybody scrolls."""
    text = shown(partial(show, full=False), value(), 80)
    golden.check(f"{show.__name__}_short.txt", text)

    assert len(text.splitlines()) <= 40
    assert " 0.0 %" not in text


def test_the_short_answer_says_each_thing_once_and_what_was_left_out() -> None:
    """What the runner-up is stands below "Next"; exceptions are for those who ask for all."""
    best, second, *_ = sample_plan().ranked
    said = (
        f"{best.label}: 16 s per step (compute 80 %); the fullest device holds 60 GiB.",
        f"5 % faster than the runner-up ({second.label}): less compute.",
        "Level with others.",
    )
    lacks = ("sharding zero1", "cp above 1, except with sharding zero3", "pp above 1", "ep above 1")
    plan = sample_plan(explanation=said, not_offered=lacks)
    text = shown(partial(show_plan, full=False), plan, 200)

    assert "5 % faster than the runner-up: less compute." in text
    assert text.count(best.label) == text.count(second.label) == 1
    assert "Of the step: compute" in text
    assert "Level" not in text
    words = "sharding zero1; some with cp above 1; pp above 1; 1 more (--any-software)."
    assert f"cannot run it: {words}" in text


def test_a_result_that_does_not_fit_shows_the_fixes(golden: Any) -> None:
    """Whoever runs out of memory wants to know what to change, and what that costs."""
    result = sample_result(memory=too_large(), cost_usd=None, carbon_gco2e=None, tokens_per_s=None)

    golden.check("result_too_large.txt", shown(show_result, result, 80))


def test_a_verdict_on_memory_says_how_sure_it_is_unless_it_is_sure() -> None:
    """A prediction of most of the memory, with a wide interval, is no promise."""
    memory = sample_result().memory
    cases, on_pages, behind = {}, {}, {}
    for peak, high in ((60, 90), (60, 70), (96, 144), (120, 130)):
        held = replace(memory, peak_bytes=peak * GIB, fits=peak <= 80)
        span = {"memory.peak_bytes": (peak * peak / high * GIB, high * GIB)}
        result = sample_result(memory=held, interval=span)
        line = next(line for line in shown(show_result, result, 120).splitlines() if "GiB)" in line)
        cases[peak, high] = line.rpartition(" GiB, ")[2], result.fit_probability
        entry = replace(sample_plan().ranked[2], result=result)
        view = plan_view(sample_plan(ranked=(entry,), best=entry))
        following = sample_plan(ranked=(sample_plan().ranked[0], entry))
        short = shown(partial(show_plan, full=False), following, 80).splitlines()
        behind[peak, high] = next(line for line in short if line.startswith("  2 "))
        on_pages[peak, high] = view.tables[0].body[0][-1], view.cards[2].note.partition(" (80 %")[0]

    said = {case: words for case, (words, _) in cases.items()}
    assert said == {
        (60, 90): "fits, 82 % sure",
        (60, 70): "fits",
        (96, 144): "does not fit, 72 % sure",
        (120, 130): "does not fit",
    }
    assert [round(p or 0.0, 2) for _, p in cases.values()] == [0.82, 0.99, 0.28, 0.01]
    assert on_pages[60, 90] == ("fits, 82 % sure", "25.0 % free, 82 % sure")
    assert on_pages[96, 144] == ("does not fit, 72 % sure", "does not fit, 72 % sure")
    assert on_pages[60, 70][1] == "25.0 % free"
    assert behind[60, 90].endswith(" % 60.00 GiB 82 % sure")
    assert behind[60, 70].endswith(" % 60.00 GiB")
    assert max(map(len, behind.values())) <= 80


def test_a_plan_without_a_feasible_strategy_says_so(golden: Any) -> None:
    """An empty ranking must not look like a fault of the tool."""
    plan = sample_plan(
        best=None, ranked=(), feasible=0, simulated=0, explanation=("Use more nodes.",)
    )

    golden.check("plan_nothing.txt", shown(show_plan, plan, 80))


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """A wrapped table row cannot be read."""
    text = shown(show_plan, sample_plan(), columns) + shown(show_result, sample_result(), columns)

    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 120])
def test_no_number_is_cut(columns: int) -> None:
    """An ellipsis in place of digits loses the answer."""
    text = shown(show_plan, sample_plan(), columns) + shown(show_result, sample_result(), columns)

    assert "…" not in text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.123456, "0.123"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (1234.5, "1,234"),
        (None, "–"),
    ],
)
def test_numbers_have_three_digits(value: float | None, words: str) -> None:
    """More digits than the prediction is good for are noise."""
    assert significant(value) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(7, "7"), (65_536, "65,536"), (8_030_261_248, "8.03 billion"), (None, "–")],
)
def test_counts_are_exact_while_they_are_short(number: float | None, words: str) -> None:
    """Eight nodes are not 8.00 nodes."""
    assert count(number) == words


@pytest.mark.parametrize(
    ("cost_usd", "words"), [(0.25, "$0.25"), (1234.0, "$1,234"), (2e-7, "$2.0e-07")]
)
def test_money_is_shown_however_small(cost_usd: float, words: str) -> None:
    """A step costs little; it does not cost nothing."""
    assert money(cost_usd) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (4.5e-6, "4.5 µJ"),
        (0.25, "250 mJ"),
        (0.0, "0 J"),
        (9e4, "90 kJ"),
        (1.88e18, "1.88 EJ"),
        (None, "–"),
    ],
)
def test_quantities_have_a_prefix(value: float | None, words: str) -> None:
    """Exponents are for machines."""
    assert quantity(value, "J") == words


def test_a_column_has_one_unit() -> None:
    """Numbers under one another are compared by eye."""
    assert column([1500.0, 20.0, None], "W") == ("kW", ["1.50", "0.02", "–"])


def test_a_strategy_in_words_leaves_out_what_is_one() -> None:
    """What is not parallel needs no word."""
    assert strategy_in_words(sample_result().strategy) == (
        "dp 4 × tp 2, zero1, megatron, 32 micro-batches"
    )


def test_options_in_words_name_what_is_switched_on() -> None:
    """The label of a ranked strategy must tell it from its neighbours."""
    options = StrategyOptions(
        dp=2, tp=4, pp=2, sharding="zero1", sequence_parallel=True, recompute="full",
        schedule="interleaved", virtual_stages=4,
    )  # fmt: skip

    assert options_in_words(options) == (
        "pp 2 × dp 2 × tp 4, zero1, sequence parallel, interleaved × 4, micro-batch 1, "
        "full recomputation"
    )
