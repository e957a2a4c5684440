"""The page to plan with, in a real browser."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from tests.browser import broken_rules, needs_chromium
from tests.serve.served import endless_server
from wattree.serve.state import START

#: A global batch of fewer steps to simulate than that of the page's start.
SMALL = "16"


@needs_chromium
def test_figures_follow_a_change_and_the_address_holds_it(page: Any) -> None:
    """A control is moved, and all figures are new."""
    before = page.inner_text("#figures")
    page.select_option("[name=recompute]", "full")
    page.wait_for_function(
        "text => document.getElementById('figures').innerText !== text", arg=before
    )

    assert "recompute=full" in page.evaluate("location.search")
    assert page.get_attribute("#job-file", "href").endswith(
        "recompute=full"
    ) or "recompute=full" in (page.get_attribute("#job-file", "href"))
    page.reload()
    assert page.input_value("[name=recompute]") == "full"


@needs_chromium
def test_from_start_to_a_ranked_plan_a_step_and_a_comparison(page: Any) -> None:
    """What a first user does."""
    page.click("#plan")
    page.wait_for_selector("[data-over=yes]")
    assert "Best by time" in page.inner_text("#plans")
    assert "the runner-up" in page.inner_text("#plans")
    assert "Best by time" in page.locator("#heard").text_content()
    page.emulate_media(media="print")
    assert "choose" not in page.inner_text("#plans")  # paper has no buttons
    page.emulate_media(media="screen")
    page.click("#keep")
    page.wait_for_selector("#compared table")
    page.click("#plans [data-use] >> nth=1")
    page.wait_for_function("() => document.querySelector('[name=tp]').value !== '1'")
    page.click("#keep")
    page.wait_for_function("() => document.querySelectorAll('#compared [data-drop]').length === 2")
    page.click("#open")
    page.wait_for_selector("#step svg")
    assert "Where the step goes" in page.inner_text("#step")


def plan_small(page: Any) -> None:
    """Rank strategies for a batch that is soon searched, and wait for the last."""
    page.fill("[name=global_batch]", SMALL)
    page.click("#plan")
    page.wait_for_selector("[data-over=yes]")


@needs_chromium
def test_a_plan_of_another_job_is_marked(page: Any) -> None:
    """Its strategies may still be used, but are ranked for what the job was."""
    plan_small(page)
    page.click("#plans [data-use] >> nth=1")
    assert not page.is_visible("#earlier")
    page.fill("[name=global_batch]", "256")
    assert page.is_visible("#earlier")
    page.fill("[name=global_batch]", SMALL)
    assert not page.is_visible("#earlier")


@needs_chromium
def test_a_step_of_earlier_controls_is_marked(page: Any) -> None:
    """It names its strategy, and says that the controls have another."""
    page.fill("[name=global_batch]", SMALL)
    page.click("#open")
    page.wait_for_selector("#step svg")
    assert ": dp 8, " in page.inner_text("#step")
    assert not page.is_visible("#changed")
    page.fill("[name=global_batch]", "256")
    assert page.is_visible("#changed")


@needs_chromium
def test_files_of_a_framework_are_saved_or_what_it_cannot_express_is_said(page: Any) -> None:
    """The framework of the software is chosen; its launch script may be run."""
    assert page.input_value("#framework") == "torchtitan"
    with page.expect_download() as saving:
        page.click("#take")
    with zipfile.ZipFile(saving.value.path()) as archive:
        modes = {each.filename: each.external_attr >> 16 for each in archive.infolist()}
    assert saving.value.suggested_filename == "torchtitan.zip"
    assert modes["torchtitan/launch.sh"] & 0o111
    assert any(name.endswith(".toml") for name in modes)

    page.select_option("#framework", "maxtext")
    page.click("#take")
    page.wait_for_selector("#taken [role=alert]")


@needs_chromium
def test_a_search_can_be_cancelled(browser: Any) -> None:
    """While progress is drawn anew, the button stays the one that was pressed."""
    drawn = "old => document.querySelector('progress').value !== old"
    with endless_server() as address:
        page = browser.new_page()
        page.goto(address)
        page.click("#plan")
        page.focus("#cancel")
        box = page.locator("#cancel").bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 5)
        page.mouse.down()
        page.wait_for_function(drawn, arg=page.evaluate("document.querySelector('progress').value"))
        page.mouse.up()
        page.wait_for_selector("[data-over=yes]")

        assert "cancelled" in page.inner_text("#plans")
        assert page.evaluate("document.activeElement.textContent") == "Plan"
        page.close()


@needs_chromium
def test_without_its_server_the_page_keeps_what_was_chosen(page: Any) -> None:
    """It says so where the figures stood, and goes on when the server is back."""
    parts = re.compile("/(figures|controls)")
    page.route(parts, lambda route: route.abort())
    page.select_option("[name=recompute]", "full")
    page.wait_for_selector("#figures [role=alert]")
    assert "does not answer" in page.inner_text("#figures")
    page.set_viewport_size({"width": 390, "height": 844})
    box = page.locator("#figures [role=alert]").bounding_box()
    assert 0 < box["y"] < 844  # in sight beside the control that was moved
    page.unroute(parts)
    with page.expect_response(re.compile("/controls")):
        page.select_option("[name=sharding]", "zero2")

    assert page.input_value("[name=recompute]") == "full"


@needs_chromium
def test_what_is_chosen_by_software_and_file_follows(page: Any, tmp_path: Path) -> None:
    """The framework of the software; and why a file is refused, line by line."""
    with page.expect_response(re.compile("/controls")):
        page.select_option("[name=software]", "hf-trainer")
    page.wait_for_function("() => document.getElementById('framework').value === 'hf-trainer'")
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": -5}', encoding="utf-8")
    page.set_input_files("#file", path)
    page.wait_for_function("() => document.getElementById('file-hint').innerText.includes('; ')")

    assert page.inner_text("#file-hint").startswith("config.json: hidden_size: found -5")


@needs_chromium
def test_lists_of_controls_stay_in_place_while_their_values_change(page: Any) -> None:
    """Of a list that was opened right after a number was typed, too."""
    page.evaluate("document.querySelector('[name=tp]').dataset.mark = 'own'")
    page.fill("[name=global_batch]", "7")
    with page.expect_response(re.compile("/controls")):
        page.focus("[name=tp]")
    page.wait_for_selector("[name=micro_batch] option[value='7']", state="attached")

    assert page.evaluate("document.activeElement.dataset.mark") == "own"


@needs_chromium
def test_a_strategy_is_used_whole_where_lists_do_not_offer_its_values_yet(page: Any) -> None:
    """Hybrid shards of two do not fit the strategy on the page, but the one that is used."""
    assert page.locator("[name=fsdp] option[value='2']").is_disabled()
    used = {**START, "pp": "2", "sharding": "hybrid", "fsdp": "2", "recompute": "full"}
    page.evaluate(
        """query => {
            const button = document.createElement("button");
            button.dataset.use = query;
            document.body.append(button);
            button.click();
        }""",
        urlencode(used),
    )

    assert dict(parse_qsl(page.evaluate("location.search.slice(1)"))) == used


@needs_chromium
def test_the_page_breaks_no_rule_of_access_and_fits_every_width(page: Any) -> None:
    """axe-core's rules, light and dark, with plan, comparison, step and a mistake on the page."""
    plan_small(page)
    page.click("#keep")
    page.wait_for_selector("#compared table")
    page.click("#open")
    page.wait_for_selector("#step svg")
    page.fill("[name=global_batch]", "7")
    page.wait_for_selector("#figures [role=alert]")
    found = []
    for width in (1360, 800, 390, 320):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        found += [f"{wide} px too wide at {width}"] * (wide > 0)
    assert page.locator("#figures [role=alert]").bounding_box()["y"] < 900  # beside the controls
    assert not [*found, *broken_rules(page)]
