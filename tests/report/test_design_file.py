"""The page of a study as a file: what it says, how large it is, and its colors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.design.synthetic import expansion_results, large_results, study
from wattree.design.results import Results
from wattree.report.design.page import design_page
from wattree.report.html import templates


def test_the_page_says_whether_expansion_is_worth_it() -> None:
    """The break-even with its bounds, and the gain at 1,000 GB/s, in one section."""
    text = design_page(expansion_results())
    section = text[text.index(">expanded bandwidth</h3>") :]
    section = section[: section.index("</section>")]
    assert "480 GB from 258.8 GB/s (between 200 GB/s and 400 GB/s)" in section
    assert "at 1,000 GB/s 480 GB has 28.1 % less time" in section


def test_ten_thousand_points_stay_below_ten_megabytes() -> None:
    """All of them, with both workloads."""
    results = large_results(10_000)
    assert len(results) == 10_000
    assert len(design_page(results).encode()) <= 10e6


def test_marks_say_what_the_figures_rest_on() -> None:
    """A reconstruction must not be taken for a datasheet."""
    plain = expansion_results()
    marked = Results(
        study=study(plain.study.axes, notes=("Two of the clusters are a Reconstruction.",)),
        outcomes=plain.outcomes,
        points=30,
    )
    text = design_page(marked)
    assert "<strong>Reconstruction</strong>" in text
    assert "6 points are still to be evaluated" in text
    assert "<strong>Reconstruction</strong>" not in design_page(plain)


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_texts_stand_out_from_the_page(theme: str) -> None:
    """Contrast of 4.5 for text (WCAG 2.2, 1.4.3) and 3 for what is drawn (1.4.11)."""
    style = templates.style()
    rule = style[style.index(theme) :].split("}")[0]
    colors = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", rule))
    for name, least in {"ink": 7, "quiet": 4.5, "accent": 4.5, "warn": 4.5, "mark": 3}.items():
        for page in ("page", "raised"):
            assert contrast(colors[name], colors[page]) >= least, name
    assert contrast(colors["neutral"], colors["page"]) >= 3


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colors (WCAG 2.2)."""
    lightness = sorted(_luminance(color) for color in (first, second))
    return (lightness[1] + 0.05) / (lightness[0] + 0.05)


def _luminance(color: str) -> float:
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
