"""The page of a study in a real browser: it opens from disk, is linked, reads and saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser import needs_chromium, tables_that_scroll
from tests.design.synthetic import NASTY, axis, expansion_results, large_results, outcome, study
from wattree.design import Outcome, Results
from wattree.design.answers import NoAnswer, pareto, sweep_of
from wattree.design.points import point_of
from wattree.design.study import Change
from wattree.report.design.page import design_page

Opened = Callable[..., Any]


@cache
def written(make: Callable[[], Results]) -> str:
    """Return the page of results, which takes a second to write and which several tests open."""
    return design_page(make())


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens a page of results; what goes wrong in it fails the test."""
    wrong: list[str] = []
    pages = []

    def open_page(make: Callable[[], Results], *, idle: bool = False, **context: Any) -> Any:
        path = tmp_path / "report.html"
        path.write_text(written(make), encoding="utf-8")
        found = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **context})
        pages.append(found)
        if (
            not idle
        ):  # most tests look at a plot or two: the others would take seconds, and shift them
            found.add_init_script("window.requestIdleCallback = () => 0")
        found.on("pageerror", lambda error: wrong.append(str(error)))
        found.on("console", lambda line: line.type == "error" and wrong.append(line.text))
        found.on("dialog", lambda dialog: wrong.append(dialog.message))
        found.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:", "blob:")) or wrong.append(request.url)
            ),
        )
        found.goto(path.as_uri())
        found.wait_for_selector("html[data-ready=yes]")
        return found

    yield open_page
    for one in pages:
        one.close()
    assert wrong == []


def drawn(page: Any, figure: str) -> None:
    """Scroll to a figure and wait until it shows the present state and hears of clicks.

    The page finds in one frame what came into view, and draws it in the next; one more is painted.
    """
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    page.wait_for_selector(f"#{figure} .canvas .main-svg")
    for _ in range(3):
        next_frame(page)


def next_frame(page: Any) -> None:
    """Wait until the page has come to its next frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => done()))")


def until(page: Any, state: str) -> None:
    """Wait until an expression is true; the page's policy forbids the driver's own way to."""
    while not page.evaluate(state):
        next_frame(page)


def pointed_at(page: Any, figure: str, *, across: float, down: float) -> tuple[float, float]:
    """Move to a part of a plot and wait until the plot says what lies there; return the place."""
    drawn(page, figure)
    box = page.locator(f"#{figure} .canvas .nsewdrag").first.bounding_box()
    place = (box["x"] + box["width"] * across, box["y"] + box["height"] * down)
    page.mouse.move(0, 0)  # a plot that was drawn anew looks when something moves
    page.mouse.move(*place)
    page.wait_for_selector(f"#{figure} .canvas .hoverlayer .hovertext")
    return place


def traces(page: Any, figure: str) -> Any:
    """Return the traces of a plot as the library has them."""
    return page.evaluate(
        f"document.querySelector('#{figure} .canvas').data"
        ".map(t => ({name: t.name, points: [...(t.customdata || [])]}))"
    )


def nasty_results() -> Results:
    """Return results whose every text tries to leave its place."""
    axes = (axis(NASTY, (NASTY, "plain")), axis("n", (1, 2)))
    outcomes = [
        outcome(
            {NASTY: kind, "n": n},
            step_s=float(n),
            power_w=1e3,
            capital_usd=1e6,
            workloads=(NASTY,),
            strategy=f"<img src=x onerror=harmed=1> {NASTY} %{{x}} {n}",
            reason=NASTY if (kind, n) == ("plain", 2) else None,
        )
        for kind in axes[0].values
        for n in axes[1].values
    ]
    about = study(
        axes,
        (NASTY,),
        title=NASTY,
        notes=(NASTY,),
        changes=(Change(path=NASTY, value=NASTY, source=NASTY),),
    )
    return Results(study=about, outcomes=tuple(outcomes), points=4)


@needs_chromium
def test_it_opens_from_disk_and_draws_every_plot_and_its_table(opened: Opened) -> None:
    """Without any request, violation of its policy or error; who cannot see a plot reads it."""
    page = opened(expansion_results, idle=True)
    names = page.eval_on_selector_all("figure:has(.canvas)", "nodes => nodes.map(node => node.id)")
    page.wait_for_selector("html[data-drawn=yes]")  # without scrolling, as for a picture of it
    assert page.locator(".canvas:visible > .plot-container").count() == len(names)
    assert page.locator("#points tbody tr").count()
    for name in names:
        page.locator(f"#{name} details summary").click()
        page.wait_for_selector(f"#{name} details table tbody tr")
    assert "16.000 ×" in page.inner_text("#tornado details table")
    assert "1.00 ×" in page.inner_text("#heat details table")
    policy = page.get_attribute("meta[http-equiv=Content-Security-Policy]", "content")
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert len(names) == 8
    pictures = page.eval_on_selector_all("header figure", "nodes => nodes.map(node => node.id)")
    assert pictures == ["plot-front", "plot-step", "plot-energy"]  # with the answer, for a manager


@needs_chromium
def test_texts_from_files_are_texts(opened: Opened) -> None:
    """A workload named `<script>` is a name, in HTML, in data and in labels of plots."""
    page = opened(nasty_results)
    for name in page.eval_on_selector_all(
        "figure:has(.canvas)", "nodes => nodes.map(node => node.id)"
    ):
        drawn(page, name)
    page.check("#points-infeasible")
    pointed_at(page, "heat", across=1 / 4, down=1 / 4)
    assert page.evaluate("typeof harmed") == "undefined"
    assert page.inner_text("h1") == NASTY
    assert page.locator("img, object, iframe").count() == 0
    assert page.locator("script").count() == 3


@needs_chromium
def test_a_selection_is_seen_in_all_plots(opened: Opened) -> None:
    """Selected by keyboard in the table: ringed, outlined, and divided into bars."""
    page = opened(expansion_results)
    for name in ("scatter", "heat", "time-bars", "energy-bars"):
        drawn(page, name)
    page.locator("#points").scroll_into_view_if_needed()
    page.wait_for_selector("#points tbody tr")
    page.focus("#points [data-point='15']")
    page.keyboard.press("Space")
    until(page, "document.querySelector('#status').textContent.includes('1 selected')")
    for name in ("scatter", "heat", "time-bars", "energy-bars"):
        drawn(page, name)
    ringed = next(trace for trace in traces(page, "scatter") if trace["name"] == "selected")
    assert ringed["points"] == [15]
    assert all(trace["points"] == [15] for trace in traces(page, "time-bars"))
    assert all(trace["points"] == [15] for trace in traces(page, "energy-bars"))
    outlines = "document.querySelector('#heat .canvas').layout.shapes.length"
    grids = page.evaluate("document.querySelector('#heat .canvas').data.length")
    assert page.evaluate(outlines) == grids == 6
    assert page.evaluate("document.activeElement.dataset.point") == "15"


@needs_chromium
def test_few_choices_are_panels_and_lines_have_their_names_at_their_ends(opened: Opened) -> None:
    """Nothing has to be chosen to be seen, and printed, and no legend to be looked up."""
    page = opened(expansion_results)
    drawn(page, "worth-0")
    drawn(page, "time-bars")
    few = opened(nasty_results)
    drawn(few, "heat")
    layouts = page.evaluate(
        "['worth-0', 'time-bars'].map(id => document.querySelector(`#${id} .canvas`).layout).map("
        "one => [one.grid?.rows ?? 1, one.showlegend, one.annotations.map(note => note.text)])"
    )
    (panels, *_), (_, legend, names) = layouts
    hidden = page.locator("label:has(#worth-0-by)").is_hidden()

    assert panels > 1
    assert hidden
    assert few.locator("label:has(#heat-rows)").is_hidden()
    assert len(few.evaluate("document.querySelector('#heat .canvas').data.map(one => one.z)")) == 3
    assert legend is False
    assert len(names) == len(traces(page, "time-bars"))
    drawn(page, "tornado")
    sides = page.eval_on_selector_all("#tornado .annotation", "all => all.map(n => n.textContent)")
    assert {side.strip(" ■") for side in sides} == {"better", "worse"}
    assert not page.locator("svg .legend").count()


@needs_chromium
def test_workloads_and_colors_of_points_are_named_where_they_are_drawn(opened: Opened) -> None:
    """Bars of two workloads are two panels; colors of points say what they are."""
    page = opened(partial(large_results, 60))
    drawn(page, "time-bars")
    layout = page.evaluate("document.querySelector('#time-bars .canvas').layout")
    written = [note["text"] for note in layout["annotations"]]
    named = opened(nasty_results)
    named.select_option("#scatter-color", NASTY)
    drawn(named, "scatter")
    ends = named.text_content("#scatter .canvas")

    assert page.locator("label:has(#bars-workload)").is_hidden()
    assert layout["grid"]["rows"] == 2
    assert {"language model", "recommender"} <= set(written)
    assert "plain" in ends
    assert "front" in ends


@needs_chromium
def test_clicking_a_cell_selects_its_points(opened: Opened) -> None:
    """And clicking it again lets them go."""
    page = opened(expansion_results)
    for expected in ("4 selected", "0 selected"):
        page.mouse.click(*pointed_at(page, "heat", across=1 / 6, down=1 / 4))
        until(page, f"document.querySelector('#status').textContent.includes('{expected}')")
        assert expected in page.text_content("#status")
        # Clicks closer together are one double click, by the clock of the page.
        canvas = "document.querySelector('#heat .canvas')"
        until(page, f"Date.now() - {canvas}._mouseDownTime > {canvas}._context.doubleClickDelay")


@needs_chromium
def test_filters_leave_what_the_front_is_computed_from(opened: Opened) -> None:
    """The page's front of what is shown is that of the same points in Python."""
    results = large_results(800)
    page = opened(lambda: results)
    page.select_option("#scatter-y", "capital_usd")
    page.locator("#filters summary").click()
    nodes = page.locator("#filter-axes fieldset", has_text="nodes")
    nodes.locator("label", has_text="32").locator("input").uncheck()
    drawn(page, "scatter")
    shown = [
        place
        for place, one in enumerate(results.outcomes)
        if one.point.values["nodes"] != 32 and one.feasible
    ]
    front = pareto(sweep_of(results.where(shown)), ["time_s", "capital_usd"])
    assert not isinstance(front, NoAnswer)
    found = {trace["name"]: trace["points"] for trace in traces(page, "scatter")}
    assert found["points"] == shown
    assert found["front"] == np.array(shown)[front.points].tolist()
    page.click("#filter-reset")
    fit = int(results.feasible.sum())
    until(page, f"document.querySelector('#status').textContent.startsWith('{fit} of {fit} ')")


@needs_chromium
def test_on_paper_panels_are_whole_and_dark_on_white(opened: Opened) -> None:
    """A plot taller than a sheet would be cut through a panel; a dark page prints pale text."""
    page = opened(partial(large_results, 400), color_scheme="dark")
    page.click("#theme")
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.emulate_media(media="print")
    page.evaluate("() => { dispatchEvent(new Event('beforeprint')); }")
    canvases = (
        "[...document.querySelectorAll('figure.plot .canvas:not([hidden])')].map(canvas => ({"
    )
    canvases += "figure: canvas.closest('figure').id, height: canvas.layout.height, "
    canvases += "ink: canvas.layout.font.color, line: canvas.layout.xaxis.gridcolor, "
    canvases += "panels: canvas._fullLayout._subplots.cartesian.length}))"
    printed = page.evaluate(canvases)
    text = page.evaluate("getComputedStyle(document.body).color")
    kept = page.evaluate(
        "['#worth-0', '#worth-0 figcaption', '#worth-0 .summary', '#worth-0 .canvas'].map(name =>"
        " getComputedStyle(document.querySelector(name))).map(s => [s.breakInside, s.breakAfter])"
    )
    page.evaluate("() => { dispatchEvent(new Event('afterprint')); }")
    page.emulate_media(media="screen")
    drawn(page, "worth-0")
    left = page.locator("#worth-0 .canvas").count()

    assert {each["ink"] for each in printed} == {"#000000"}
    assert len({each["line"] for each in printed}) == 1
    assert max(each["height"] for each in printed) <= 1017  # A4 between its margins
    assert sum(each["figure"] == "worth-0" for each in printed) > 1 == left
    assert kept == [["auto", "auto"], ["auto", "avoid"], ["auto", "avoid"], ["avoid", "auto"]]
    assert all(each["panels"] == 1 for each in printed)
    assert text == "rgb(0, 0, 0)"


@needs_chromium
def test_plots_are_saved_for_a_paper(opened: Opened, tmp_path: Path) -> None:
    """Black on white, from the dark page too."""
    page = opened(expansion_results, color_scheme="dark")
    drawn(page, "tornado")
    found = {}
    for kind in ("svg", "png"):
        with page.expect_download() as download:
            page.click(f"#tornado [data-save={kind}]")
        download.value.save_as(tmp_path / "plot")
        found[download.value.suggested_filename] = (tmp_path / "plot").read_bytes()
    assert set(found) == {"tornado.svg", "tornado.png"}
    assert found["tornado.svg"].startswith(b"<svg")
    assert b"rgb(255, 255, 255)" in found["tornado.svg"]
    assert found["tornado.png"].startswith(b"\x89PNG")


@needs_chromium
def test_it_is_used_with_a_keyboard_and_read_aloud(opened: Opened) -> None:
    """Headings in order, names on all controls, the skip link first."""
    page = opened(expansion_results, reduced_motion="reduce")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    headings = page.eval_on_selector_all("h1, h2, h3", "all => all.map(h => +h.tagName[1])")
    assert headings[0] == 1
    assert max(np.diff(headings)) <= 1
    nameless = page.eval_on_selector_all(
        "button, select, input, [role=img], [role=region]",
        """all => all.filter(one => !(one.textContent.trim() && one.tagName === "BUTTON")
          && !one.labels?.length && !one.getAttribute("aria-label")
          && !one.getAttribute("aria-labelledby")).map(one => one.outerHTML)""",
    )
    assert nameless == []
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


@needs_chromium
def test_it_fits_the_window(opened: Opened) -> None:
    """The page scrolls only down, and so does whatever is in it; also of one that is resized."""
    page = opened(partial(large_results, 100), viewport={"width": 390, "height": 800})
    for name in ("heat", "tornado"):
        drawn(page, name)
    page.locator("#points").scroll_into_view_if_needed()
    page.wait_for_selector("#points tbody tr")
    for details in page.locator("details.data summary").all():
        details.click()
    wrong = {}
    for width in (390, 800, 1360, 390):
        page.set_viewport_size({"width": width, "height": 800})
        for name in ("heat", "tornado"):
            drawn(page, name)
            canvas = f"document.querySelector('#{name} .canvas')"  # it follows a moment later
            until(page, f"Math.abs({canvas}._fullLayout.width - {canvas}.clientWidth) < 1")
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width or tables_that_scroll(page):
            wrong[width] = wide, tables_that_scroll(page)
    assert wrong == {}


@needs_chromium
def test_paper_has_every_plot_and_whole_tables(opened: Opened) -> None:
    """Those, too, that no one scrolled to."""
    page = opened(expansion_results, viewport={"width": 680, "height": 900})
    page.emulate_media(media="print")
    page.evaluate("() => { dispatchEvent(new Event('beforeprint')); }")
    empty = (
        "[...document.querySelectorAll('.canvas')].filter(one => !one.hidden && "
        "!one.querySelector('.main-svg')).length"
    )
    assert page.evaluate(empty) == 0
    assert page.locator("#points tbody tr").count() > 0
    assert page.locator("#points thead").inner_text().split()[0] == "point"
    assert page.evaluate("document.documentElement.scrollWidth") <= 680


@needs_chromium
@pytest.mark.parametrize("kind", ["empty", "infeasible", "one", "no axes"])
def test_small_and_hopeless_studies_have_a_page_too(opened: Opened, kind: str) -> None:
    """What cannot be said is said to be so."""
    axes = () if kind == "no axes" else (axis("n", (1, 2)),)
    values = {} if kind == "no axes" else {"n": 1}
    fits = outcome(values, step_s=1, power_w=1, capital_usd=1)
    bad = Outcome(point=point_of(values), feasible=False, reason="no such node")
    outcomes = {"empty": (), "infeasible": (bad, bad), "one": (fits,), "no axes": (fits,)}[kind]
    page = opened(lambda: Results(study=study(axes), outcomes=outcomes, points=2))
    said = page.inner_text("main")
    expected = "no point of the study is feasible" if kind in {"empty", "infeasible"} else "#1"
    assert expected in said
