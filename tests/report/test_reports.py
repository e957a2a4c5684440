"""Reports and pictures: they open from disk, say what they show, and read at any width."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wattree
from tests.browser import broken_rules, needs_chromium, tables_that_scroll
from tests.report.test_energy_text import accounted
from tests.search.jobs import FEWEST
from tests.validation.test_table import ENTRIES
from wattree.cli.main import run
from wattree.errors import OutputError
from wattree.kineto.op_classes import COMMUNICATION, WAITING
from wattree.learn.explain import ClassTime, Explanation, StepFault
from wattree.learn.measured_steps import MeasuredRank
from wattree.predict import Prediction
from wattree.report.html.documents import (
    write_comparison_report,
    write_explanation_report,
    write_plan_report,
    write_step_report,
    write_validation_report,
)
from wattree.report.plots import PLOTS, plots_of, write_plot
from wattree.report.plots.bars import link_shares
from wattree.report.plots.figure import part_colors
from wattree.report.plots.of_runs import step_plot
from wattree.report.plots.of_step import busy_shares, fullest_memory
from wattree.units import format_bytes
from wattree.validation import Validation

#: A name that would be markup or a script if it were not escaped.
NASTY = "<img src=x onerror=alert(1)>"


def job(**changes: Any) -> wattree.Job:
    """Return a small job with a pipeline, on two nodes."""
    return wattree.job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 64},
            "cluster": {"node": "dgx-a100", "nodes": 2},
            "strategy": {"pp": 2, "tp": 2, "dp": 4, "recompute": "full"},
            **changes,
        }
    )


@cache
def predicted() -> Prediction:
    """Return its step."""
    return wattree.simulate(job())


def explanation() -> Explanation:
    """Return a run that waits for its data and for a slow rank."""
    times = {"products": (0.2, 0.21), "data": (0.0, 0.05), "elementwise": (0.03, 0.02)}
    classes = [ClassTime(name=name, predicted_s=p, measured_s=m) for name, (p, m) in times.items()]
    rank = MeasuredRank(
        rank=0,
        step_s=0.28,
        classes_s={WAITING: 0.0, COMMUNICATION: 0.0} | {n: m for n, (_, m) in times.items()},
        hidden_s=0.01,
        collectives=2.0,
        sizes_bytes=None,
    )
    fault = StepFault(
        fault="data",
        title=f"the step waits for {NASTY}",
        lost_s=0.05,
        evidence="50 ms of each step",
        causes=("too few workers", "slow storage"),
    )
    return Explanation(
        tensor_bytes=(2.0**30, None),
        predicted_s=0.23,
        measured_s=0.28,
        traced_s=0.28,
        interval_s=(0.21, 0.25),
        classes=tuple(classes),
        hidden_s=(0.01, 0.02),
        collectives=(2.0, 2.0),
        faults=(fault,),
        ranks=(rank,),
        notes=("one rank alone",),
    )


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write one report of each kind."""
    folder = tmp_path_factory.mktemp("reports")
    names = ("step", "plan", "compare", "explain", "validate")
    paths = {name: folder / f"{name}.html" for name in names}
    write_explanation_report(paths["explain"], explanation(), NASTY)
    write_validation_report(paths["validate"], Validation(scored=ENTRIES))
    write_step_report(paths["step"], predicted())
    write_plan_report(paths["plan"], wattree.plan(job(strategy="auto"), top=4, limits=FEWEST))
    result = folder / f"{NASTY.replace('/', '')}.json"
    result.write_text(json.dumps(predicted().result.as_json()))
    write_comparison_report(paths["compare"], wattree.compare([result, result]))
    return paths


def test_every_picture_is_drawn_and_is_the_same_every_time(tmp_path: Path) -> None:
    """A picture in a repository must not change when nothing did."""
    plots = plots_of(predicted())
    assert list(plots) == list(PLOTS)
    for name, plot in plots.items():
        for ending in ("svg", "png") if name == "power" else ("svg",):
            first, second = tmp_path / f"{name}-1.{ending}", tmp_path / f"{name}-2.{ending}"
            write_plot(first, plot)
            write_plot(second, plot)
            assert first.read_bytes() == second.read_bytes()
            assert first.stat().st_size > 1_000
        assert plot.summary
    with pytest.raises(OutputError, match="cannot be written"):
        write_plot(tmp_path / "none" / "a.png", plots["power"])


def test_a_part_has_one_color_in_all_pictures() -> None:
    """Who has learned what is orange need not learn it anew in the next picture."""
    known = [f"part {number}" for number in range(14)]
    all_parts, few = part_colors(known[:11], known), part_colors(known[3:6], known)

    assert len(set(all_parts.values())) == len(all_parts)
    assert {part: all_parts[part] for part in few} == few
    assert len(set(part_colors(known[5:], known).values())) == len(known[5:])


@pytest.mark.parametrize("name", ["step", "plan", "compare"])
def test_a_report_begins_with_the_answer_and_how_sure_it_is(
    reports: dict[str, Path], name: str
) -> None:
    """The first screen is for who has no time: answer, cost, certainty, then pictures."""
    text = reports[name].read_text(encoding="utf-8")
    text = text[text.index("<main") :]
    places = [text.index(words) for words in ('class="cards answers"', "What it costs", "How sure")]
    # Intervals reach farther up than down.
    assert re.search(r"-\d+\.\d % to \+\d+\.\d %", text[places[-1] :][:400])

    assert places == sorted(places)
    assert places[-1] < text.index("<figure") < text.index("<table")


def test_memory_in_a_picture_has_the_peak_of_the_trace() -> None:
    """Intervals take the instant at which most is held: an average would hide what runs out."""
    trace = predicted().trace
    edges, held = fullest_memory(trace)

    assert held.sum(axis=1).max() == pytest.approx(trace.peak_bytes.max())
    assert edges[-1] == pytest.approx(trace.makespan_s)


def test_shares_of_the_timeline_are_the_times_of_the_tasks() -> None:
    """What is drawn as forward takes as long as the tasks of forward do."""
    trace = predicted().trace
    graph = trace.graph
    shares = busy_shares(trace, 0, 200)
    mine = np.unique(
        np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))[
            (graph.stream_class[graph.stream_ids] == 0) & (graph.stream_kind[graph.stream_ids] == 0)
        ]
    )
    forward = mine[graph.phase[mine] == 0]
    spent_s = (trace.end_s - trace.start_s)[forward].sum()

    assert shares["forward"].sum() * trace.makespan_s / 200 == pytest.approx(spent_s)
    assert all(share.max(initial=0.0) <= 1 + 1e-9 for share in shares.values())


def test_links_are_at_most_fully_used() -> None:
    """A link carries no more than its bandwidth allows."""
    names, shares = link_shares(predicted().trace)

    assert len(names) == len(shares) > 0
    assert (shares <= 1 + 1e-6).all()
    assert (np.diff(shares) <= 0).all()


def test_links_of_one_kind_are_one_bar() -> None:
    """Stages have links that are alike: a bar of each stage would say the same."""
    names, _ = link_shares(predicted().trace)
    kinds = [name.rsplit(") ", 1)[-1] for name in names]

    assert len(kinds) == len(set(kinds))


def test_parts_are_named_at_the_parts() -> None:
    """A legend sends its reader back and forth; every part has its name once, at a line to it."""
    times = {"compute": 20.0, "exposed_communication": 3.0, "host_overhead": 0.4}
    more = {**times, "recomputation": 5.0, "optimizer": 1e-3, "pipeline_bubble": 2e-3}
    plots = [step_plot({"1": times, "2": more, "3": more}), *plots_of(predicted()).values()]
    for plot in plots:
        for is_narrow in (False, True):
            assert 'id="legend' not in plot.svg(is_narrow=is_narrow).replace(f"{plot.name}-", "")
    text = plots[0].svg(is_narrow=True)
    names = re.findall(r">([a-z][a-z ]+)</text>", text)

    assert sorted(names) == [
        *("compute", "exposed communication", "host overhead", "other parts", "recomputation")
    ]


def test_memory_in_a_picture_includes_what_is_no_tensor() -> None:
    """Else a strategy that does not fit would be drawn below the capacity."""
    plot = plots_of(predicted())["memory"]
    held = format_bytes(predicted().result.memory.peak_bytes)

    assert f"at most {held}" in plot.summary
    assert ">framework<" in plot.svg()


def test_a_report_of_generation_has_times_of_tokens(tmp_path: Path) -> None:
    """They are what its reader looks for."""
    generating = wattree.job_from_mapping(
        {
            "workload": "generate",
            "model": "gpt2",
            "data": {"prompt_length": 128, "generate_length": 16, "global_batch": 8},
            "cluster": {"node": "dgx-a100"},
            "strategy": {"dp": 8},
        }
    )
    path = tmp_path / "report.html"
    write_step_report(path, wattree.simulate(generating))
    text = path.read_text(encoding="utf-8")

    for words in ("Prediction of one generated batch", "First token", "Output token", "prefill"):
        assert words in text


def test_reports_are_small_load_nothing_and_run_no_script(reports: dict[str, Path]) -> None:
    """They are mailed, and open where there is no network."""
    for path in reports.values():
        text = path.read_text(encoding="utf-8")
        assert path.stat().st_size < 3_000_000
        assert "<script" not in text
        assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
        assert NASTY not in text


@needs_chromium
def test_reports_read_at_any_width_and_break_no_rule_of_access(
    browser: Any, reports: dict[str, Path]
) -> None:
    """Nothing sticks out of the page, no table scrolls; axe-core's rules, light and dark."""
    found = []
    for name, path in reports.items():
        page = browser.new_page()
        page.goto(path.as_uri())
        for width in (1360, 800, 390):
            page.set_viewport_size({"width": width, "height": 900})
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if wide > 0:
                found.append(f"{name} at {width}: {wide} px too wide")
            found += [f"{name} at {width}: '{table}' scrolls" for table in tables_that_scroll(page)]
        found += [f"{name}, {broken}" for broken in broken_rules(page)]
        page.close()

    assert not found


@needs_chromium
def test_a_printed_report_has_every_picture_and_whole_tables(
    browser: Any, reports: dict[str, Path]
) -> None:
    """On A4 nothing is clipped: no part of a page is wider than the paper."""
    page = browser.new_page(viewport={"width": 720, "height": 1000})
    for path in reports.values():
        page.goto(path.as_uri())
        page.emulate_media(media="print")
        clipped = page.evaluate(
            "[...document.querySelectorAll('table, svg')].filter(each =>"
            " each.getBoundingClientRect().right > innerWidth + 1).length"
        )
        empty = page.evaluate(
            "[...document.querySelectorAll('figure .wide svg')].filter(each =>"
            " each.getBoundingClientRect().height < 40).length"
        )
        assert (clipped, empty) == (0, 0)
    page.close()


def test_the_report_of_a_long_pipeline_is_small(tmp_path: Path) -> None:
    """Sixteen stages have as many rows of a timeline."""
    strategy = {"preset": "megatron", "tp": 8, "pp": 16, "virtual_stages": 2, "micro_batch": 1}
    of_pipeline = wattree.job_from_mapping(
        {
            "model": "gpt3-175b",
            "data": {"sequence_length": 2048, "global_batch": 64},
            "cluster": {"node": "dgx-h100", "nodes": 16},
            "strategy": strategy,
        }
    )
    path = tmp_path / "report.html"
    write_step_report(path, wattree.simulate(of_pipeline))

    assert path.stat().st_size < 3e6


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Write the job with changes."""

    def write(**changes: Any) -> Path:
        text = {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 64},
            "cluster": {"node": "dgx-a100"},
            **changes,
        }
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(text))
        return path

    return write


@pytest.mark.usefixtures("small_space")
def test_commands_write_reports_and_pictures(
    job_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One option each."""
    report, picture = tmp_path / "a.html", tmp_path / "a.svg"
    path = str(job_file(strategy="ddp"))
    words = ["--report", str(report), "--plot", f"step={picture}"]
    assert run(["simulate", path, *words]) == 0
    assert "gpt2 on 1 x dgx-a100" in report.read_text()
    assert picture.read_text().startswith("<?xml")
    assert run(["plan", path, "--report", str(report)]) == 0
    assert "Ranked strategies" in report.read_text()
    assert run(["compare", path, path, "--report", str(report)]) == 0
    assert "Side by side" in report.read_text()
    rows = tmp_path / "rows.csv"
    rows.write_text("".join(Path("validation/rows.csv").read_text().splitlines(True)[:6]))
    picture.unlink()
    words = ["--report", str(report), "--plot", f"rows-step-time-s={picture}"]
    assert run(["validate", "--rows", str(rows), *words]) == 0
    assert "predicted against measured" in report.read_text()
    assert picture.read_text().startswith("<?xml")
    assert run(["simulate", path, "--report", str(tmp_path / "none" / "a.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_what_has_no_tokens_nor_price_has_a_report() -> None:
    """The card of the cost says why there is none."""
    from wattree.report.html.views import step_cards

    cards = {card.name: card for card in step_cards(accounted().as_json() | {"cost_usd": None})}

    assert cards["Cost per step"].value == "no price"
    assert "a node file with `price` gives it" in cards["Cost per step"].note
    assert "Carbon per step" in cards
